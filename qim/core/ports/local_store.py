"""The client's own store (SQLite in production): pending rows, messages, cursor, anchors (pipeline.md §6).

One lane: the driver applies orders in the order they were given, each in ONE transaction, each durable before its
answer. Every order is answered by its typed reply or by ``Failed``/``Unknown`` (a client treats both as not done and
repeats what may be repeated; every order here may). Message identity is ``message_id``: a row is inserted once and an
insert of one that stands is not ``fresh``. Times are wall ms; nothing here interprets a body.
"""

from enum import IntEnum

from msgspec import Struct


class LocalState(IntEnum):
    """What survives a restart: REBUILDING holds until the rebuild is done (pipeline.md §6, REBUILD)."""

    ONLINE = 1
    REBUILDING = 2


class LocalMessage(Struct, frozen=True, kw_only=True, gc=False):
    """A message as the device keeps it. body None: a tombstone. conversation_kind 0, peer_user_id 0: not told."""

    message_id: bytes
    conversation_id: bytes
    conversation_kind: int
    conversation_seq: int
    last_activity_id: bytes
    kind: int
    sender_id: int
    client_message_id: bytes | None
    custom_type: str
    body: bytes | None
    tombstone: int
    sent_at: int
    peer_user_id: int
    trace_id: int


class Coordinates(Struct, frozen=True, kw_only=True, gc=False):
    """Where a sent message stands, from SEND_ACK, from the own mailbox entry, or from history."""

    client_message_id: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_seq: int
    last_activity_id: bytes
    sent_at: int


class PendingMessage(Struct, frozen=True, kw_only=True, gc=False):
    """A message the user sent: durable before it is transmitted. not_after 0: never transmitted yet.

    ``order`` rises with every row of the device: rows of one conversation go out in it.
    """

    order: int
    client_message_id: bytes
    conversation_id: bytes | None
    peer_user_id: int | None
    kind: int
    custom_type: str
    body: bytes
    retention_class: int
    created_at: int
    not_after: int = 0


class PendingGroupChange(Struct, frozen=True, kw_only=True, gc=False):
    """A membership change the user asked for (MembershipOp); conversation_id None for CREATE."""

    order: int
    client_message_id: bytes
    operation: int
    conversation_id: bytes | None
    members: tuple[int, ...]
    name: str
    meta: bytes
    created_at: int
    not_after: int = 0


PendingRow = PendingMessage | PendingGroupChange


class LoadLocal(Struct, frozen=True, kw_only=True, gc=False):
    """Read what a start needs. Answers: LocalLoaded."""

    op: int


class LocalLoaded(Struct, frozen=True, kw_only=True, gc=False):
    """cursor None: a new device, or REBUILDING has not saved one yet. covered_through belongs to the cursor (0: none).

    pending: every unsettled row in ``order``; order_last: the greatest order ever given; rebuild_target: the first
    sync_to_seq of the rebuild under way (0: none).
    """

    op: int
    attempt: int
    state: int
    cursor: bytes | None
    covered_through: int
    rebuild_target: int
    order_last: int
    pending: tuple[PendingRow, ...]


class SavePending(Struct, frozen=True, kw_only=True, gc=False):
    """Insert a row (a client_message_id that stands keeps its row). Answers: LocalSaved."""

    op: int
    row: PendingRow
    traces: tuple[int, ...] = ()


class SaveNotAfter(Struct, frozen=True, kw_only=True, gc=False):
    """Fix not_after of rows just before their FIRST transmission. Answers: LocalSaved.

    0 takes it back: the connection went before the row could be transmitted, as the machine that fixed it knows.
    """

    op: int
    rows: tuple[tuple[bytes, int], ...]
    traces: tuple[int, ...] = ()


class SaveAttempt(Struct, frozen=True, kw_only=True, gc=False):
    """The number of the next AUTH, on disk before it is used. Answers: LocalSaved."""

    op: int
    attempt: int


class SaveBatch(Struct, frozen=True, kw_only=True, gc=False):
    """A MAILBOX_BATCH: messages, cursor, covered_through, anchors, settled rows, ONE transaction. Answers: MessagesSaved.

    moves_anchors: raise each conversation's anchor to the greatest seq of these messages (never while REBUILDING).
    settled: pending rows whose own mailbox copy is here; each becomes sent with these coordinates.
    """

    op: int
    messages: tuple[LocalMessage, ...]
    cursor: bytes
    covered_through: int
    moves_anchors: bool
    settled: tuple[Coordinates, ...]
    traces: tuple[int, ...] = ()


class SavePush(Struct, frozen=True, kw_only=True, gc=False):
    """PUSH_EVENTS: messages by message_id. No cursor, no anchor: there is no field for one. Answers: MessagesSaved."""

    op: int
    messages: tuple[LocalMessage, ...]
    traces: tuple[int, ...] = ()


class SaveHistory(Struct, frozen=True, kw_only=True, gc=False):
    """HISTORY_BATCH: messages, and the anchor raised to ``anchor`` (0: not moved). Answers: MessagesSaved.

    An anchor moves only when the batch continues it (newer from the anchor), else it would jump over a hole.
    """

    op: int
    conversation_id: bytes
    messages: tuple[LocalMessage, ...]
    anchor: int
    settled: tuple[Coordinates, ...] = ()


class MessagesSaved(Struct, frozen=True, kw_only=True, gc=False):
    """``fresh``: indexes of the messages that did not stand before: exactly these are applied now."""

    op: int
    fresh: tuple[int, ...]


class SaveAck(Struct, frozen=True, kw_only=True, gc=False):
    """SEND_ACK, or found by look-up: the row is sent, with these coordinates. Answers: LocalSaved."""

    op: int
    coordinates: Coordinates
    traces: tuple[int, ...] = ()


class SaveGroupOk(Struct, frozen=True, kw_only=True, gc=False):
    """GROUP_OK: the change is done. Answers: LocalSaved."""

    op: int
    client_message_id: bytes
    conversation_id: bytes
    version: int
    control_seq: int


class SaveFailed(Struct, frozen=True, kw_only=True, gc=False):
    """The row is failed for good with an ErrorCode; sending again is a new client_message_id. Answers: LocalSaved."""

    op: int
    client_message_id: bytes
    code: int


class SaveState(Struct, frozen=True, kw_only=True, gc=False):
    """The stored state; drop_cursor forgets cursor and covered_through in the same transaction. Answers: LocalSaved.

    rebuild_target: sync_to_seq that ends the rebuild (0: not known yet).
    """

    op: int
    state: int
    drop_cursor: bool
    rebuild_target: int


class ReadAnchors(Struct, frozen=True, kw_only=True, gc=False):
    """(conversation_id, anchor) in id order after ``after`` (b"" first), conversations without one as 0. Answers: AnchorsRead."""

    op: int
    after: bytes
    limit: int


class AnchorsRead(Struct, frozen=True, kw_only=True, gc=False):
    """``more``: others stand behind the last."""

    op: int
    anchors: tuple[tuple[bytes, int], ...]
    more: bool


class LocalSaved(Struct, frozen=True, kw_only=True, gc=False):
    """Durable."""

    op: int


LocalStoreRequest = (
    LoadLocal
    | SavePending
    | SaveNotAfter
    | SaveAttempt
    | SaveBatch
    | SavePush
    | SaveHistory
    | SaveAck
    | SaveGroupOk
    | SaveFailed
    | SaveState
    | ReadAnchors
)
LocalStoreReply = LocalLoaded | LocalSaved | MessagesSaved | AnchorsRead
