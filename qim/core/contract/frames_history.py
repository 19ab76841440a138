"""Frames of session list, history, user state and overlays (contract.md, Frames; pipeline.md §§4, 5)."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from qim.core.contract.frame_fields import (
    CURSOR_BYTES_MAX,
    DEVICES_MAX,
    ENTRIES_MAX,
    U8,
    U32,
    U64,
    Body,
    CustomType,
    DeviceId,
    Direction,
    Id16,
    Ms,
    PageLimit,
    StateValue,
    UserId,
    UserIds,
    WireFrame,
    conversation_fault,
    key_fault,
)
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.wire import STREAM_QUERIES, STREAM_SENDS, Flag

PageKey = Annotated[bytes, Meta(max_length=CURSOR_BYTES_MAX)]
HistoryWay = Annotated[int, Meta(ge=int(min(HistoryDirection)), le=int(max(HistoryDirection)))]


class HistoryRecord(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One visible message of a conversation. Array inside HISTORY_BATCH and, as head, SESSION_LIST_BATCH.

    body None: a tombstone. client_message_id only in the reader's own messages.
    """

    message_id: Id16
    conversation_seq: U64
    last_activity_id: Id16
    kind: U8
    sender_id: U64
    client_message_id: Id16 | None = None
    custom_type: CustomType
    body: Body | None
    tombstone: U8 = 0
    sent_at: Ms
    trace_id: U64


class SessionEntry(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One conversation of the list. head None: nothing visible yet; unread is exact iff unread_exact, else 200."""

    conversation_id: Id16
    conversation_kind: U8
    peer_user_id: UserId | None
    last_activity_id: Id16
    head: HistoryRecord | None
    unread: U32
    unread_exact: bool
    read_seq: U64
    state_version: U64 = 0
    state_flags: U32 = 0
    state_value: StateValue = b""


class ConversationState(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """The user's own state of one conversation, ordered by (version, device_id). Array inside STATE_BATCH."""

    conversation_id: Id16
    version: U64
    device_id: DeviceId
    read_seq: U64
    flags: U32
    value: StateValue = b""


class DeviceDelivered(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """How far a device of the user has the mailbox: the greatest mailbox_seq it pulled from. Array inside STATE_BATCH."""

    device_id: DeviceId
    delivered_through: U64


class PullSessionList(WireFrame, frozen=True, kw_only=True):
    """One keyset page of the list frozen under `revision` (0: freeze a new one), after page key `after`."""

    OPCODE: ClassVar[int] = 0x0040
    NAME: ClassVar[str] = "PULL_SESSION_LIST"
    STREAM: ClassVar[int] = STREAM_QUERIES
    DIRECTION: ClassVar[Direction] = "c→s"

    revision: U64 = 0
    after: PageKey | None = None
    limit: PageLimit = 0


class SessionListBatch(WireFrame, frozen=True, kw_only=True):
    """A page in falling last_activity_id. after: the key of the next page, None at the end; projected_through: the
    mailbox_seq up to which the list knows."""

    OPCODE: ClassVar[int] = 0x0041
    NAME: ClassVar[str] = "SESSION_LIST_BATCH"
    STREAM: ClassVar[int] = STREAM_QUERIES
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    conversations: Annotated[tuple[SessionEntry, ...], Meta(max_length=ENTRIES_MAX)]
    revision: U64
    after: PageKey | None
    projected_through: U64


class MarkRead(WireFrame, frozen=True, kw_only=True):
    """Read up to read_seq inclusive; only ever forward. Answered by OK."""

    OPCODE: ClassVar[int] = 0x0042
    NAME: ClassVar[str] = "MARK_READ"
    STREAM: ClassVar[int] = STREAM_QUERIES
    DIRECTION: ClassVar[Direction] = "c→s"

    conversation_id: Id16
    read_seq: U64

    def fault(self) -> str | None:
        return conversation_fault(self.conversation_id)


class PullHistory(WireFrame, frozen=True, kw_only=True):
    """Records beyond conversation_seq `anchor` (not itself) in `direction` (HistoryDirection), OLDER than 0: from the
    newest; AROUND includes it."""

    OPCODE: ClassVar[int] = 0x0043
    NAME: ClassVar[str] = "PULL_HISTORY"
    STREAM: ClassVar[int] = STREAM_QUERIES
    DIRECTION: ClassVar[Direction] = "c→s"

    conversation_id: Id16
    anchor: U64
    direction: HistoryWay
    limit: PageLimit = 0

    def fault(self) -> str | None:
        return conversation_fault(self.conversation_id)


class HistoryBatch(WireFrame, frozen=True, kw_only=True):
    """Records in rising conversation_seq. has_more: further in the direction asked (AROUND: towards older ones, and
    has_more_newer the other way). write_policy: WritePolicy."""

    OPCODE: ClassVar[int] = 0x0044
    NAME: ClassVar[str] = "HISTORY_BATCH"
    STREAM: ClassVar[int] = STREAM_QUERIES
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    conversation_id: Id16
    records: Annotated[tuple[HistoryRecord, ...], Meta(max_length=ENTRIES_MAX)]
    has_more: bool
    write_policy: U8 = 0
    has_more_newer: bool = False


class SetState(WireFrame, frozen=True, kw_only=True):
    """Replace the user's own state of a conversation. version: the client's, greater wins, then greater device_id;
    flags: StateFlag; value: opaque to the server. Answered by OK."""

    OPCODE: ClassVar[int] = 0x0045
    NAME: ClassVar[str] = "SET_STATE"
    STREAM: ClassVar[int] = STREAM_QUERIES
    DIRECTION: ClassVar[Direction] = "c→s"

    conversation_id: Id16
    version: U64
    flags: U32
    value: StateValue = b""

    def fault(self) -> str | None:
        return conversation_fault(self.conversation_id)


class StateSync(WireFrame, frozen=True, kw_only=True):
    """States changed after `since_revision` (0: all)."""

    OPCODE: ClassVar[int] = 0x0046
    NAME: ClassVar[str] = "STATE_SYNC"
    STREAM: ClassVar[int] = STREAM_QUERIES
    DIRECTION: ClassVar[Direction] = "c→s"

    since_revision: U64 = 0
    limit: PageLimit = 0


class StateBatch(WireFrame, frozen=True, kw_only=True):
    """Changed states; ask again from `revision` while has_more. devices: the user's own, those that pulled furthest."""

    OPCODE: ClassVar[int] = 0x0047
    NAME: ClassVar[str] = "STATE_BATCH"
    STREAM: ClassVar[int] = STREAM_QUERIES
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    states: Annotated[tuple[ConversationState, ...], Meta(max_length=ENTRIES_MAX)]
    revision: U64
    has_more: bool
    devices: Annotated[tuple[DeviceDelivered, ...], Meta(max_length=DEVICES_MAX)] = ()


class ReadBy(WireFrame, frozen=True, kw_only=True):
    """Who has read up to conversation_seq: asked with no users, answered by the same frame with them."""

    OPCODE: ClassVar[int] = 0x0048
    NAME: ClassVar[str] = "READ_BY"
    STREAM: ClassVar[int] = STREAM_QUERIES

    conversation_id: Id16
    conversation_seq: U64
    users: UserIds = ()
    has_more: bool = False

    def fault(self) -> str | None:
        return conversation_fault(self.conversation_id)


class Recall(WireFrame, frozen=True, kw_only=True):
    """Recall the message at target_seq for everyone: an overlay, never an edit. Answered by SEND_ACK."""

    OPCODE: ClassVar[int] = 0x0049
    NAME: ClassVar[str] = "RECALL"
    STREAM: ClassVar[int] = STREAM_SENDS
    DIRECTION: ClassVar[Direction] = "c→s"

    client_message_id: Id16
    not_after: Ms
    conversation_id: Id16
    target_seq: U64

    def fault(self) -> str | None:
        return key_fault(self.client_message_id, self.conversation_id)


class DeleteForMe(WireFrame, frozen=True, kw_only=True):
    """Hide the message at target_seq from the sender of this frame alone. Answered by SEND_ACK."""

    OPCODE: ClassVar[int] = 0x004A
    NAME: ClassVar[str] = "DELETE_FOR_ME"
    STREAM: ClassVar[int] = STREAM_SENDS
    DIRECTION: ClassVar[Direction] = "c→s"

    client_message_id: Id16
    not_after: Ms
    conversation_id: Id16
    target_seq: U64

    def fault(self) -> str | None:
        return key_fault(self.client_message_id, self.conversation_id)
