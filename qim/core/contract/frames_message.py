"""Frames that send messages and read the mailbox (contract.md, Frames; pipeline.md §§1, 3, 6).

Only MAILBOX_BATCH moves a cursor; PUSH_EVENTS is a hint and may be lost.
"""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from qim.core.contract.entities import MessageKind, RetentionClass
from qim.core.contract.frame_fields import (
    ENTRIES_MAX,
    U8,
    U64,
    Body,
    CursorBytes,
    CustomType,
    Direction,
    Id16,
    Ms,
    PageLimit,
    UserId,
    WireFrame,
    custom_type_fault,
    key_fault,
)
from qim.core.contract.wire import STREAM_MAILBOX, STREAM_SENDS, Flag

Kind = Annotated[int, Meta(ge=int(min(MessageKind)), le=int(max(MessageKind)))]
Retention = Annotated[int, Meta(ge=int(min(RetentionClass)), le=int(max(RetentionClass)))]


class SendMessage(WireFrame, frozen=True, kw_only=True):
    """Send one message. conversation_id, or peer_user_id while a single chat is unknown; given both, they must agree.
    not_after: wall ms of the server after which an uncommitted request is refused; unchanged in retries."""

    OPCODE: ClassVar[int] = 0x0020
    NAME: ClassVar[str] = "SEND_MESSAGE"
    STREAM: ClassVar[int] = STREAM_SENDS
    DIRECTION: ClassVar[Direction] = "c→s"

    client_message_id: Id16
    conversation_id: Id16 | None
    peer_user_id: UserId | None
    kind: Kind
    custom_type: CustomType
    body: Body
    retention_class: Retention
    not_after: Ms

    def fault(self) -> str | None:
        if self.conversation_id is None and self.peer_user_id is None:
            return "one of conversation_id and peer_user_id must be given"
        return key_fault(self.client_message_id, self.conversation_id) or custom_type_fault(
            self.custom_type
        )


class SendAck(WireFrame, frozen=True, kw_only=True):
    """The message is COMMITTED, here are its coordinates; sent_at in the writer's wall ms."""

    OPCODE: ClassVar[int] = 0x0021
    NAME: ClassVar[str] = "SEND_ACK"
    STREAM: ClassVar[int] = STREAM_SENDS
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    client_message_id: Id16
    message_id: Id16
    conversation_id: Id16
    conversation_seq: U64
    last_activity_id: Id16
    sent_at: Ms


class MailboxEntry(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One mailbox entry joined with its body. Array inside MAILBOX_BATCH and PUSH_EVENTS.

    body None: a tombstone, or with Tombstone.NONE a hint without body (PUSH_EVENTS only). client_message_id only in
    the sender's own copy. peer_user_id only in single chats. conversation_kind 0: not told.
    """

    mailbox_seq: U64
    event_id: Id16
    message_id: Id16
    conversation_id: Id16
    conversation_seq: U64
    last_activity_id: Id16
    kind: U8
    sender_id: U64
    client_message_id: Id16 | None = None
    custom_type: CustomType
    body: Body | None
    tombstone: U8 = 0
    sent_at: Ms
    peer_user_id: UserId | None = None
    trace_id: U64
    conversation_kind: U8 = 0


Entries = Annotated[tuple[MailboxEntry, ...], Meta(max_length=ENTRIES_MAX)]


class PullMailbox(WireFrame, frozen=True, kw_only=True):
    """Entries after `cursor` up to up_to_seq inclusive (0: as far as the lane's W)."""

    OPCODE: ClassVar[int] = 0x0030
    NAME: ClassVar[str] = "PULL_MAILBOX"
    STREAM: ClassVar[int] = STREAM_MAILBOX
    DIRECTION: ClassVar[Direction] = "c→s"

    cursor: CursorBytes
    up_to_seq: U64 = 0
    limit: PageLimit = 0


class MailboxBatch(WireFrame, frozen=True, kw_only=True):
    """The contiguous prefix of the mailbox through covered_through_seq inclusive, and the cursor that stands for it;
    the client commits both in one transaction. retry_after_ms: wait so long before the next pull, 0 = don't wait."""

    OPCODE: ClassVar[int] = 0x0031
    NAME: ClassVar[str] = "MAILBOX_BATCH"
    STREAM: ClassVar[int] = STREAM_MAILBOX
    FLAGS: ClassVar[int] = int(Flag.RESPONSE)
    DIRECTION: ClassVar[Direction] = "s→c"

    entries: Entries
    covered_through_seq: U64
    has_more: bool
    cursor: CursorBytes
    retry_after_ms: Ms = 0


class PushEvents(WireFrame, frozen=True, kw_only=True):
    """A hint that these entries are there: it never moves a cursor."""

    OPCODE: ClassVar[int] = 0x0032
    NAME: ClassVar[str] = "PUSH_EVENTS"
    STREAM: ClassVar[int] = STREAM_MAILBOX
    DIRECTION: ClassVar[Direction] = "s→c"

    entries: Entries
