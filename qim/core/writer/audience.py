"""Who a message is for: the frozen audience of a conversation, and a bounded cache of the latest ones.

The cache only saves reads: ReserveAndRecord compares the version again in its script, so a stale entry costs a
re-freeze and never a wrong audience (pipeline.md §1.2). It does not keep former members: history asks the store.
"""

from collections import OrderedDict

from msgspec import Struct

from qim.core.contract.entities import ConversationKind
from qim.core.ports.store_reads import MembershipRead


class Audience(Struct, frozen=True, kw_only=True):
    """A conversation at one version; kind 0: there is none. ``members`` sorted, ``present`` the same for look-ups."""

    kind: int
    version: int
    digest: bytes
    control_seq: int
    members: tuple[int, ...]
    present: frozenset[int]
    creator: int
    name: str
    meta: bytes


NOWHERE = Audience(
    kind=0,
    version=0,
    digest=b"",
    control_seq=0,
    members=(),
    present=frozenset(),
    creator=0,
    name="",
    meta=b"",
)


def audience_of(read: MembershipRead) -> Audience:
    """The latest version a MembershipRead names; a single chat's two users are all its history knows."""
    if read.kind == 0:
        return NOWHERE
    version = read.version
    if read.kind == ConversationKind.SINGLE or version is None:
        members = tuple(sorted(member.user_id for member in read.everyone))
    else:
        members = tuple(member.user_id for member in version.members)
    return Audience(
        kind=read.kind,
        version=version.version if version is not None else 0,
        digest=version.digest if version is not None else b"",
        control_seq=version.control_seq if version is not None else 0,
        members=members,
        present=frozenset(members),
        creator=read.creator,
        name=read.name,
        meta=read.meta,
    )


class AudienceCache:
    """Latest audiences by conversation, least recently used out first; an entry is worth nothing in another generation."""

    def __init__(self, conversations_max: int, members_max: int) -> None:
        self._conversations_max = conversations_max
        self._members_max = members_max
        self._entries: OrderedDict[bytes, tuple[int, Audience]] = OrderedDict()
        self._members = 0
        self._changed = False

    def get(self, conversation_id: bytes, generation: int) -> Audience | None:
        """The audience learnt in this generation, or None."""
        entry = self._entries.get(conversation_id)
        if entry is None or entry[0] != generation:
            return None
        self._entries.move_to_end(conversation_id)
        return entry[1]

    def put(self, conversation_id: bytes, generation: int, audience: Audience) -> None:
        """Remember; conversations that don't exist are not cached (a cache of absences only goes stale)."""
        self.drop(conversation_id)
        if audience.kind == 0:
            return
        self._changed = True
        self._entries[conversation_id] = (generation, audience)
        self._members += len(audience.members)
        while len(self._entries) > self._conversations_max or self._members > self._members_max:
            _, (_, oldest) = self._entries.popitem(last=False)
            self._members -= len(oldest.members)

    def drop(self, conversation_id: bytes) -> None:
        """Forget."""
        entry = self._entries.pop(conversation_id, None)
        if entry is not None:
            self._changed = True
            self._members -= len(entry[1].members)

    def members(self) -> int:
        """What the entries weigh."""
        return self._members

    def check(self) -> None:
        """The weight is what the entries weigh, and within its limits; weighed again only after a change: ``put`` and
        ``drop`` alone make one."""
        if self._changed:
            self._changed = False
            assert self._members == sum([len(entry[1].members) for entry in self._entries.values()])
        assert len(self._entries) <= self._conversations_max
        assert self._members <= self._members_max
