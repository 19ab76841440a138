"""Entities of contract.md that are stored, logged or handed between services, as frozen plain data.

Encoded as MessagePack arrays in declared order: new fields go to the end with defaults. 16-byte ids are bytes, u64 are
ints. A rule about an entity stands with the stage that owns it, not here.
"""

from enum import IntEnum
from typing import Final

import msgspec
from msgspec import Struct

EMPTY_ID: Final = b"\0" * 16
FORMAT_VERSION: Final = 1
NO_SOURCE: Final = 0xFFFFFFFF
"""``source_partition`` of a redriven or repaired dispatch: it carries no source offset, only its claim decides."""


class ConversationKind(IntEnum):
    """What a conversation is."""

    SINGLE = 1
    GROUP = 2
    ROOM = 3


class MessageKind(IntEnum):
    """What a message is; CONTROL never counts as unread."""

    TEXT = 1
    CUSTOM = 2
    CONTROL = 3
    RECALL = 4
    DELETE_FOR_ME = 5


class RetentionClass(IntEnum):
    """How long history keeps it (contract.md, Parameters)."""

    DEFAULT = 0
    EPHEMERAL = 1
    TENANT_CUSTOM = 2
    COMPLIANCE_HOLD = 3


class MembershipOp(IntEnum):
    """A change of membership."""

    CREATE = 1
    ADD = 2
    REMOVE = 3
    LEAVE = 4


MEMBERSHIP_CUSTOM_TYPE: Final = "qim.membership.v1"


class CommitState(IntEnum):
    """Commit state machine: RECORDED -> COMMITTED | REFUSED (RESERVED and RECORDED are one script; OUTBOXED is the log's)."""

    RECORDED = 2
    COMMITTED = 4
    REFUSED = 5


class MembershipDelta(Struct, frozen=True, array_like=True, gc=False):
    """What a membership control message did: ``version`` is V+1, ``digest`` its membership_digest, ``count`` |V+1|."""

    op: int
    users: tuple[int, ...]
    previous_version: int
    version: int
    digest: bytes
    count: int
    name: str = ""
    meta: bytes = b""


class MessageRecord(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """The one copy of a body.

    Encoded with conversation_seq = 0 and last_activity_id = empty: the store and the outbox put seq (8 B) and activity
    (16 B) in front, and every reader takes the two from that prefix (pipeline.md §1.2; ``stored_record``).
    ``version``/``membership_digest`` name the frozen audience of a group (V = 0: single chat, audience = sender, peer).
    ``recipients`` is only for membership control: exactly these users get it.
    """

    tenant_id: str
    conversation_id: bytes
    conversation_kind: int
    kind: int
    sender_id: int
    device_id: bytes
    client_message_id: bytes
    request_digest: bytes
    message_id: bytes
    version: int
    membership_digest: bytes
    peer_user_id: int
    recipients: tuple[int, ...]
    delta: MembershipDelta | None
    body: bytes
    custom_type: str
    retention_class: int
    sent_at: int
    not_after: int
    trace_id: int
    flags: int = 0
    format_version: int = FORMAT_VERSION
    conversation_seq: int = 0
    last_activity_id: bytes = EMPTY_ID
    target_seq: int = 0
    """RECALL and DELETE_FOR_ME: the conversation_seq the overlay lies on."""


class GroupDispatch(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One message for one mailbox shard; audience = (version, membership_digest), or explicit recipients if any.

    ``source_*`` and ``source_checkpoint`` (f) are for the audit and the mailbox's floor and decide nothing else.
    """

    dispatch_id: bytes
    tenant_id: str
    message_id: bytes
    conversation_id: bytes
    conversation_kind: int
    conversation_seq: int
    last_activity_id: bytes
    kind: int
    sender_id: int
    client_message_id: bytes
    sent_at: int
    retention_class: int
    shard: int
    version: int
    membership_digest: bytes
    recipients: tuple[int, ...]
    peer_user_id: int
    inline_body: bytes | None
    custom_type: str
    body_digest: bytes
    trace_id: int
    source_partition: int
    source_offset: int
    source_epoch: int
    source_checkpoint: int
    format_version: int = FORMAT_VERSION
    target_seq: int = 0


class UserMailboxEntry(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Light reference in one user's mailbox; client_message_id only in the sender's own copy. ``dispatch_offset`` is derived."""

    mailbox_seq: int
    event_id: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_seq: int
    kind: int
    sender_id: int
    client_message_id: bytes | None = None


class Interval(Struct, frozen=True, array_like=True, gc=False):
    """A member's visibility: joined_at < seq <= left_at (contract.md); left_at = 2**64 - 1 while a member."""

    joined_at: int
    left_at: int


class Member(Struct, frozen=True, array_like=True, gc=False):
    """A user and all intervals known at the time of reading."""

    user_id: int
    intervals: tuple[Interval, ...]


class MemberHistoryRow(Struct, frozen=True, array_like=True, gc=False):
    """A present or former member with all intervals (joined_at, left_at)."""

    user_id: int
    intervals: tuple[tuple[int, int], ...]


class MembershipVersion(Struct, frozen=True, kw_only=True, gc=False):
    """Named by (version, digest); immutable. ``members`` are those of exactly this version, sorted by user_id."""

    conversation_id: bytes
    version: int
    digest: bytes
    control_seq: int
    members: tuple[Member, ...]


class ReceiptShard(Struct, frozen=True, array_like=True, gc=False):
    """Where one shard's dispatch stands."""

    shard: int
    offset: int
    digest: bytes


class FanoutAuditReceipt(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """All dispatches of one source record, written before the checkpoint passes it (pipeline.md §2)."""

    source_offset: int
    message_id: bytes
    source_epoch: int
    shards: tuple[ReceiptShard, ...]
    moved_from: int = -1
    """The source_offset under which it was dispatched, where a repair published its record elsewhere; -1: this one."""

    def dispatched_under(self) -> int:
        """What its dispatches name as their source, and what a bumped shard's mark counts (pipeline.md §7)."""
        return self.source_offset if self.moved_from < 0 else self.moved_from


class CommitAuditFact(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Written in the script that RECORDS; ``rebuilt`` ones were restored by OPEN and prove nothing for their record."""

    message_id: bytes
    conversation_id: bytes
    conversation_seq: int
    state: int
    rebuilt: bool
    outbox_offset: int = -1


class PresenceEntry(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Where a device is connected. ``conn`` is the gateway's own connection number."""

    user_id: int
    device_id: bytes
    gateway: str
    conn: int
    session_epoch: int
    attempt: int
    expires_at: int


_encoder: Final = msgspec.msgpack.Encoder()
_record_decoder: Final = msgspec.msgpack.Decoder(MessageRecord)
_dispatch_decoder: Final = msgspec.msgpack.Decoder(GroupDispatch)
_entry_decoder: Final = msgspec.msgpack.Decoder(UserMailboxEntry)
_receipt_decoder: Final = msgspec.msgpack.Decoder(FanoutAuditReceipt)

RECORD_PREFIX_BYTES: Final = 24


def encode_record(record: MessageRecord) -> bytes:
    """The record without its prefix; its conversation_seq and last_activity_id must still be unset."""
    return _encoder.encode(record)


def stored_record(conversation_seq: int, last_activity_id: bytes, encoded: bytes) -> bytes:
    """seq (8 B BE) ‖ activity (16 B) ‖ record: the form the hot store and the outbox hold."""
    return conversation_seq.to_bytes(8, "big") + last_activity_id + encoded


def decode_stored_record(stored: bytes) -> MessageRecord:
    """Inverse of ``stored_record``; raises msgspec.DecodeError (a ValueError) on bytes no version can decode."""
    if len(stored) <= RECORD_PREFIX_BYTES:
        raise msgspec.DecodeError(f"stored record of {len(stored)} bytes, expected more than 24")
    record = _record_decoder.decode(stored[RECORD_PREFIX_BYTES:])
    return msgspec.structs.replace(
        record,
        conversation_seq=int.from_bytes(stored[:8], "big"),
        last_activity_id=stored[8:24],
    )


def encode_dispatch(dispatch: GroupDispatch) -> bytes:
    """The dispatch log's value (behind the framing of contract/logvalue.py)."""
    return _encoder.encode(dispatch)


def decode_dispatch(value: bytes) -> GroupDispatch:
    """Inverse of ``encode_dispatch``; raises msgspec.DecodeError."""
    return _dispatch_decoder.decode(value)


def encode_entry(entry: UserMailboxEntry) -> bytes:
    """A mailbox row (the store puts mailbox_seq, 8 B BE, in front to order rows)."""
    return _encoder.encode(entry)


def decode_entry(value: bytes) -> UserMailboxEntry:
    """Inverse of ``encode_entry``; raises msgspec.DecodeError."""
    return _entry_decoder.decode(value)


def encode_receipt(receipt: FanoutAuditReceipt) -> bytes:
    """A receipt row."""
    return _encoder.encode(receipt)


def decode_receipt(value: bytes) -> FanoutAuditReceipt:
    """Inverse of ``encode_receipt``; raises msgspec.DecodeError."""
    return _receipt_decoder.decode(value)
