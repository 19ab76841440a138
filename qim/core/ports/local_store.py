"""The client's own store (SQLite in production): pending rows, messages, cursor, anchors (pipeline.md §6).

One lane: the driver applies orders in the order they were given, each in ONE transaction, each durable before its
answer. Every order is answered by its typed reply or by ``Failed``/``Unknown`` (a client treats both as not done and
repeats what may be repeated; every order here may). Message identity is ``message_id``: a row is inserted once and an
insert of one that stands is not ``fresh``. Rows are those of ports/local_rows.py, the session list's orders those of
ports/local_sessions.py. Times are wall ms.

Overlays (§5): a RECALL or DELETE_FOR_ME record stored here, a tombstone RECALLED, or the ack of an own one lays an overlay
on (conversation, target seq), whichever of the two came first; a recalled message loses its body for good, a deleted one
is not shown. The record's body is its target, 8 bytes big-endian. Nothing else is touched, quoting messages least of all.
"""

from msgspec import Struct

from qim.core.ports.local_rows import (
    Coordinates,
    LocalConversation,
    LocalMessage,
    LocalState,
    PendingGroupChange,
    PendingMessage,
    PendingOverlay,
    PendingRow,
)
from qim.core.ports.local_sessions import LocalSessionReply, LocalSessionRequest

__all__ = [
    "AnchorsRead",
    "Coordinates",
    "LoadLocal",
    "LocalConversation",
    "LocalLoaded",
    "LocalMessage",
    "LocalSaved",
    "LocalState",
    "LocalStoreReply",
    "LocalStoreRequest",
    "MessagesSaved",
    "PendingGroupChange",
    "PendingMessage",
    "PendingOverlay",
    "PendingRow",
    "ReadAnchors",
    "SaveAck",
    "SaveAttempt",
    "SaveBatch",
    "SaveFailed",
    "SaveGroupOk",
    "SaveHistory",
    "SaveNotAfter",
    "SavePending",
    "SavePush",
    "SaveState",
]


class LoadLocal(Struct, frozen=True, kw_only=True, gc=False):
    """Read what a start needs. Answers: LocalLoaded."""

    op: int


class LocalLoaded(Struct, frozen=True, kw_only=True, gc=False):
    """cursor None: a new device, or REBUILDING has not saved one yet. covered_through belongs to the cursor (0: none).
    anchored: some conversation has an anchor, so a cursor once stood for it; without one the disk has lost it.

    pending: every unsettled row in ``order``; order_last: the greatest order ever given; rebuild_target: the first
    sync_to_seq of the rebuild under way (0: none). state_revision: where the next STATE_SYNC goes on.
    """

    op: int
    attempt: int
    state: int
    cursor: bytes | None
    covered_through: int
    rebuild_target: int
    order_last: int
    pending: tuple[PendingRow, ...]
    state_revision: int = 0
    anchored: bool = False


class SavePending(Struct, frozen=True, kw_only=True, gc=False):
    """Insert a row (a client_message_id that stands keeps its row). Answers: LocalSaved."""

    op: int
    row: PendingRow
    traces: tuple[int, ...] = ()


class SaveNotAfter(Struct, frozen=True, kw_only=True, gc=False):
    """Fix not_after of rows just before their FIRST transmission: what stands is overwritten. Answers: LocalSaved.

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
    covers_from, covers_to: these are ALL visible records with covers_from < seq ≤ covers_to; what else stands here in that
    range and was sent before ``gone_before`` is visible no more (expired) and counts for nothing (0: not judged).
    """

    op: int
    conversation_id: bytes
    messages: tuple[LocalMessage, ...]
    anchor: int
    settled: tuple[Coordinates, ...] = ()
    covers_from: int = 0
    covers_to: int = 0
    gone_before: int = 0


class MessagesSaved(Struct, frozen=True, kw_only=True, gc=False):
    """``fresh``: indexes of the messages that did not stand before: exactly these are applied now.

    ``blank``: an overlay among them left a conversation without anything to show here; the session list knows what is older.
    ``unfilled``: a batch began a conversation in its middle: its unread can't be counted here before what is older came.
    """

    op: int
    fresh: tuple[int, ...]
    blank: bool = False
    unfilled: bool = False


class SaveAck(Struct, frozen=True, kw_only=True, gc=False):
    """SEND_ACK, or found by look-up: the row is sent, with these coordinates; an overlay lies now. Answers: LocalSaved."""

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
    | LocalSessionRequest
)
LocalStoreReply = LocalLoaded | LocalSaved | MessagesSaved | AnchorsRead | LocalSessionReply
