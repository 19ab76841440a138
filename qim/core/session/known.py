"""Conversations of which a user is known to be, or have been, a member; and read marks known to stand.

Membership once had is never lost (an interval stays), and a mark only rises: what is kept here is never wrong, only
incomplete. Both spare a question: the first one to the writer, the second one an append of what would lose.
"""

Name = tuple[str, int, bytes]


class Known:
    """(tenant, user, conversation) -> a read mark that stands; bounded, the longest unused goes first."""

    def __init__(self, known_max: int) -> None:
        self._known_max = known_max
        self._marks: dict[Name, int] = {}

    def member(self, tenant_id: str, user_id: int, conversation_id: bytes) -> bool:
        """True where the membership is known."""
        name = (tenant_id, user_id, conversation_id)
        mark = self._marks.pop(name, None)
        if mark is None:
            return False
        self._marks[name] = mark
        return True

    def learn(self, tenant_id: str, user_id: int, conversation_id: bytes) -> None:
        """The user is, or was, a member."""
        self.read(tenant_id, user_id, conversation_id, 0)

    def read(self, tenant_id: str, user_id: int, conversation_id: bytes, read_seq: int) -> None:
        """A mark stands: it was validated before it went into the log, so the user is a member, too."""
        name = (tenant_id, user_id, conversation_id)
        mark = max(read_seq, self._marks.pop(name, 0))
        if len(self._marks) >= self._known_max:
            del self._marks[next(iter(self._marks))]
        self._marks[name] = mark

    def mark(self, tenant_id: str, user_id: int, conversation_id: bytes) -> int:
        """The greatest mark known to stand; 0: none is known."""
        return self._marks.get((tenant_id, user_id, conversation_id), 0)

    def clear(self) -> None:
        """A store was reset: what stood may stand no more."""
        self._marks.clear()

    def check(self) -> None:
        """Bounded."""
        assert len(self._marks) <= self._known_max
