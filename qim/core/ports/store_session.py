"""Requests of SessionProjection to the MAILBOX store, one a Lua script of the same name (pipeline.md §4).

Conventions as in ports/store_mailbox.py. A session shard is a mailbox shard with a fence, a checkpoint and rows of its own.
Everything stored moves one way (greatest activity, greatest read mark, greatest (version, device)), so a replay is harmless.
"""

from msgspec import Struct

from qim.core.contract.sequences import FIRST_SHARD_EPOCH
from qim.core.ports.log import Position


class OpenSession(Struct, frozen=True, kw_only=True, gc=False):
    """Raise the fence, read both positions. Answers: SessionOpened, Fenced."""

    op: int
    shard: int
    epoch: int
    fresh_key: bytes
    opener: bytes = b""


class SessionOpened(Struct, frozen=True, kw_only=True, gc=False):
    """``dispatch``/``state`` None: missing, start at that log's start. ``shard_epoch``: the mailbox shard's."""

    op: int
    incarnation: bytes
    dispatch: Position | None
    state: Position | None
    shard_epoch: int = FIRST_SHARD_EPOCH


class ProjectedRow(Struct, frozen=True, array_like=True, gc=False):
    """A conversation got a record: its place in the user's list is the greatest ``last_activity_id``.

    That is the empty id for an overlay record (RECALL, DELETE_FOR_ME): it doesn't raise the conversation, but it touches
    it, and what was computed of the conversation before the greatest ``touched_id`` is stale.
    """

    tenant_id: str
    user_id: int
    conversation_id: bytes
    last_activity_id: bytes
    conversation_seq: int
    touched_id: bytes


class ProjectDispatches(Struct, frozen=True, kw_only=True, gc=False):
    """Rows and the dispatch position from -> to, ONE script, compare-and-set. Answers: DispatchesProjected, Fenced."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    from_offset: int
    to: Position
    rows: tuple[ProjectedRow, ...]
    traces: tuple[int, ...] = ()


class DispatchesProjected(Struct, frozen=True, kw_only=True, gc=False):
    """Stored; the position stands at ``to``."""

    op: int


class StateChange(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One user-state record at ``offset``: a read mark (version 0), or a state ordered by (version >= 1, device_id).

    A second state of the same version and device replaces the first: the log's order decides, and compaction keeps the last.
    """

    offset: int
    tenant_id: str
    user_id: int
    conversation_id: bytes
    read_seq: int
    version: int
    device_id: bytes
    flags: int
    value: bytes


class ApplyStates(Struct, frozen=True, kw_only=True, gc=False):
    """Apply in offset order and move the state position, all or nothing. Answers: StatesApplied, Fenced.

    A change loses against what stands or against an earlier change of the same call; see StatesApplied.
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    from_offset: int
    to: Position
    changes: tuple[StateChange, ...]


class StatesApplied(Struct, frozen=True, kw_only=True, gc=False):
    """``losing``: indexes of changes that lost; then NOTHING was written and the position stays.

    The applier appends ``winners`` (their offset is 0) again, and only once they are durable asks without the losers (§4).
    """

    op: int
    losing: tuple[int, ...]
    winners: tuple[StateChange, ...]


class ReadSessions(Struct, frozen=True, kw_only=True, gc=False):
    """All conversations of a user with read marks and states. Answers: SessionsRead."""

    op: int
    shard: int
    incarnation: bytes
    tenant_id: str
    user_id: int


class SessionRecord(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One conversation as stored; last_activity_id empty id: only state is known (a mark before the first message)."""

    conversation_id: bytes
    last_activity_id: bytes
    conversation_seq: int
    read_seq: int
    version: int
    device_id: bytes
    flags: int
    value: bytes
    touched_id: bytes = b"\0" * 16


class SessionsRead(Struct, frozen=True, kw_only=True, gc=False):
    """Unordered by meaning (sorted by conversation_id); projected offset and state offset as of this read."""

    op: int
    records: tuple[SessionRecord, ...]
    dispatch_offset: int
    state_offset: int


class ReadStates(Struct, frozen=True, kw_only=True, gc=False):
    """States changed at user-state offsets > since (-1: all), in offset order. Answers: StatesRead."""

    op: int
    shard: int
    incarnation: bytes
    tenant_id: str
    user_id: int
    since_offset: int
    limit: int


class StatesRead(Struct, frozen=True, kw_only=True, gc=False):
    """(offset of the last change, record) each; ``more`` beyond the limit."""

    op: int
    rows: tuple[tuple[int, SessionRecord], ...]
    more: bool


class ReadMarks(Struct, frozen=True, kw_only=True, gc=False):
    """Read marks of (shard, tenant, user) triples in one conversation (READ_BY). Answers: MarksRead."""

    op: int
    incarnation: bytes
    conversation_id: bytes
    users: tuple[tuple[int, str, int], ...]


class MarksRead(Struct, frozen=True, kw_only=True, gc=False):
    """read_seq of each, 0 where none."""

    op: int
    read_seqs: tuple[int, ...]


class NoteDelivered(Struct, frozen=True, kw_only=True, gc=False):
    """What devices showed to hold, told by the MailboxNode that judged their cursors. Answers: DeliveredNoted.

    ``items``: (tenant_id, user_id, device_id, mailbox_seq) of users of this shard. Only forward, so it needs no fence.
    """

    op: int
    shard: int
    incarnation: bytes
    items: tuple[tuple[str, int, bytes, int], ...]


class DeliveredNoted(Struct, frozen=True, kw_only=True, gc=False):
    """Each stands at the greatest that was ever noted."""

    op: int


class ReadDelivered(Struct, frozen=True, kw_only=True, gc=False):
    """The delivered watermarks of a user's devices. Answers: DeliveredRead."""

    op: int
    shard: int
    incarnation: bytes
    tenant_id: str
    user_id: int


class DeliveredRead(Struct, frozen=True, kw_only=True, gc=False):
    """(device_id, mailbox_seq) of every device that ever pulled, by device_id."""

    op: int
    devices: tuple[tuple[bytes, int], ...]


SessionStoreRequest = (
    OpenSession
    | ProjectDispatches
    | ApplyStates
    | ReadSessions
    | ReadStates
    | ReadMarks
    | NoteDelivered
    | ReadDelivered
)
SessionStoreReply = (
    SessionOpened
    | DispatchesProjected
    | StatesApplied
    | SessionsRead
    | StatesRead
    | MarksRead
    | DeliveredNoted
    | DeliveredRead
)
