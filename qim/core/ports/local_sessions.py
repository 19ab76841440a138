"""Orders of the client to its local store about the session list, read marks and the user's own states (pipeline.md §§4, 6).

Conventions as in ports/local_store.py. What each does to a row is core/client/conversation.py's: read marks only forward,
states by (version, device_id), so that every order may be repeated and come late.
"""

from msgspec import Struct

from qim.core.ports.local_rows import LocalMessage


class ListedConversation(Struct, frozen=True, kw_only=True, gc=False):
    """One entry of SESSION_LIST_BATCH as the device keeps it; peer_user_id 0: none."""

    conversation_id: bytes
    conversation_kind: int
    peer_user_id: int
    last_activity_id: bytes
    head: LocalMessage | None
    unread: int
    unread_exact: bool
    read_seq: int
    version: int
    flags: int
    value: bytes


class SaveSessions(Struct, frozen=True, kw_only=True, gc=False):
    """A page of the list. Answers: SessionsSaved.

    Where the own count (``user_id``, ``window``) differs from the list's at the same read mark, the row gets doubtful.
    """

    op: int
    user_id: int
    window: int
    conversations: tuple[ListedConversation, ...]


class SessionsSaved(Struct, frozen=True, kw_only=True, gc=False):
    """Durable."""

    op: int


class SaveRead(Struct, frozen=True, kw_only=True, gc=False):
    """The user read up to ``read_seq``: the greater mark stands. Answers: StateSaved with version 0."""

    op: int
    conversation_id: bytes
    read_seq: int


class SaveUserState(Struct, frozen=True, kw_only=True, gc=False):
    """The user's own change of a state. Answers: StateSaved.

    The version is ``version`` or the one behind what stands, whichever is greater: a change made here, seeing what
    stands, wins over it.
    """

    op: int
    conversation_id: bytes
    version: int
    device_id: bytes
    flags: int
    value: bytes


class StateSaved(Struct, frozen=True, kw_only=True, gc=False):
    """``version``: under which the state stands (read marks: 0)."""

    op: int
    version: int


class SyncedState(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One state of STATE_BATCH."""

    conversation_id: bytes
    version: int
    device_id: bytes
    read_seq: int
    flags: int
    value: bytes


class SaveStates(Struct, frozen=True, kw_only=True, gc=False):
    """A STATE_BATCH and its revision, ONE transaction. Answers: SessionsSaved."""

    op: int
    states: tuple[SyncedState, ...]
    revision: int


class SaveStateSent(Struct, frozen=True, kw_only=True, gc=False):
    """The server has this read mark (0: none) and the state of this version (0: none). Answers: SessionsSaved."""

    op: int
    conversation_id: bytes
    read_seq: int
    version: int


class ReadUnsent(Struct, frozen=True, kw_only=True, gc=False):
    """Marks and states the server isn't known to have, in id order after ``after``. Answers: UnsentRead."""

    op: int
    after: bytes
    limit: int


class UnsentState(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """read_seq 0: the mark is sent; version 0: the state is."""

    conversation_id: bytes
    read_seq: int
    version: int
    flags: int
    value: bytes


class UnsentRead(Struct, frozen=True, kw_only=True, gc=False):
    """``more``: others stand behind the last."""

    op: int
    rows: tuple[UnsentState, ...]
    more: bool


class ReadUnfilled(Struct, frozen=True, kw_only=True, gc=False):
    """(conversation_id, read_seq) of those whose unread the device can't count yet, in id order. Answers: UnfilledRead."""

    op: int
    after: bytes
    limit: int


class UnfilledRead(Struct, frozen=True, kw_only=True, gc=False):
    """``more``: others stand behind the last."""

    op: int
    rows: tuple[tuple[bytes, int], ...]
    more: bool


LocalSessionRequest = (
    SaveSessions | SaveRead | SaveUserState | SaveStates | SaveStateSent | ReadUnsent | ReadUnfilled
)
LocalSessionReply = SessionsSaved | StateSaved | UnsentRead | UnfilledRead
