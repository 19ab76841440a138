"""Identities: the HLC message_id and everything derived by H (contract.md, Five sequences).

message_id is 16 bytes big-endian: physical ms:48 · logical:16 · writer instance:16 · instance-lease epoch low:16 ·
zero:32. It is for dedupe and tracing; people never sort by it. Values outside their bounds are our own bug and
raise ValueError (struct.error in `event_id`).
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from qim.core.contract.entities import MessageKind
from qim.core.contract.hashing import U64_MAX, H, digest_of, frame_field
from qim.core.contract.sequences import U16_MAX, U48_MAX, successor

__all__ = [
    "DEFAULT_TENANT_ID",
    "ID_BYTES",
    "NIL_ID",
    "TENANT_ID_BYTES_MAX",
    "HybridClock",
    "MessageId",
    "MessageIdParts",
    "control_digest",
    "dedupe_key",
    "dispatch_id",
    "event_id",
    "group_conversation_id",
    "membership_digest_next",
    "pack_message_id",
    "request_digest",
    "single_conversation_id",
    "successor",
    "tenant_id_is_valid",
    "unpack_message_id",
]

MessageId = bytes

ID_BYTES: Final = 16
NIL_ID: Final = bytes(ID_BYTES)
TENANT_ID_BYTES_MAX: Final = 64
DEFAULT_TENANT_ID: Final = "default"
TENANTS_FRAMED_MAX: Final = 1_024

_MESSAGE_ID = struct.Struct(">QHHI")
_THREE_INTEGERS = struct.Struct(">IQIQIQ")
_ID_AND_INTEGER = struct.Struct(">I16sIQ")
_INTEGER_AND_ID = struct.Struct(">IQI16s")
_TWO_INTEGERS = struct.Struct(">IQIQ")


class MessageIdParts(NamedTuple):
    """A message_id taken apart; physical_ms is wall time in ms since 1970, the rest are u16."""

    physical_ms: int
    logical: int
    instance: int
    epoch_low: int


def pack_message_id(physical_ms: int, logical: int, instance: int, epoch_low: int) -> MessageId:
    """16 bytes that compare in the order of (physical_ms, logical, instance, epoch_low)."""
    if not 0 <= physical_ms <= U48_MAX:
        raise ValueError(f"physical_ms must fit 48 bits, got {physical_ms}")
    for name, value in (("logical", logical), ("instance", instance), ("epoch_low", epoch_low)):
        if not 0 <= value <= U16_MAX:
            raise ValueError(f"{name} must fit 16 bits, got {value}")
    return _MESSAGE_ID.pack(physical_ms << 16 | logical, instance, epoch_low, 0)


def unpack_message_id(message_id: MessageId) -> MessageIdParts:
    """The parts of 16 bytes; the 32 zero bits are not looked at."""
    if len(message_id) != ID_BYTES:
        raise ValueError(f"a message_id has {ID_BYTES} bytes, got {len(message_id)}")
    high, instance, epoch_low, _ = _MESSAGE_ID.unpack(message_id)
    return MessageIdParts(high >> 16, high & U16_MAX, instance, epoch_low)


class HybridClock:
    """A hybrid logical clock: message_ids that rise though the wall clock stands, steps back or is overrun.

    It outlives a restart only through `raise_above`: OPEN raises it above the greatest id in the outbox partition.
    """

    def __init__(self, instance: int, epoch: int) -> None:
        """instance: u16 writer instance; epoch: its instance-lease epoch, of which the low 16 bits are used."""
        self._suffix = pack_message_id(0, 0, instance, epoch & U16_MAX)[8:]
        self._stamp = 0  # physical_ms << 16 | logical: adding 1 carries an overflowing logical into the physical part

    def next(self, wall_ms: int) -> MessageId:
        """An id greater than every earlier one and than all those raised above."""
        self._stamp = max(wall_ms << 16, self._stamp + 1)
        if self._stamp >> 64:
            raise ValueError(f"the clock left its 48 bits at wall_ms {wall_ms}")
        return self._stamp.to_bytes(8, "big") + self._suffix

    def raise_above(self, message_id: MessageId) -> None:
        """From now on `next` is greater than `message_id`, whichever writer made it."""
        parts = unpack_message_id(message_id)
        self._stamp = max(self._stamp, parts.physical_ms << 16 | parts.logical)

    def ahead_ms(self, wall_ms: int) -> int:
        """By how many ms the ids run ahead of this wall clock, 0 where they don't."""
        return max(0, (self._stamp >> 16) - wall_ms)


def tenant_id_is_valid(tenant_id: str) -> bool:
    """1..64 bytes of UTF-8."""
    try:
        return 0 < len(tenant_id.encode()) <= TENANT_ID_BYTES_MAX
    except UnicodeEncodeError:
        return False


def dispatch_id(message_id: MessageId, shard: int) -> bytes:
    """16 bytes: the one identity of a message's dispatch to a MailboxShard, however often it is sent."""
    # As H frames 16 bytes and an integer, in one call: it runs for every target shard of every message, on both sides.
    return digest_of("qim.dispatch", _ID_AND_INTEGER.pack(16, message_id, 8, shard))


def event_id(shard: int, mailbox_seq: int, user_id: int) -> bytes:
    """16 bytes: the identity of one user's mailbox entry; a replay must find the same."""
    # As H frames three integers, in one call: this runs once for every recipient of every message.
    return digest_of("qim.event", _THREE_INTEGERS.pack(8, shard, 8, mailbox_seq, 8, user_id))


def single_conversation_id(tenant_id: str, user_a: int, user_b: int) -> bytes:
    """16 bytes, the same from both sides; a chat with oneself is allowed."""
    low, high = (user_a, user_b) if user_a <= user_b else (user_b, user_a)
    if low < 0 or high > U64_MAX:
        return H("qim.single", tenant_id, low, high)  # which says what is wrong
    return digest_of("qim.single", _framed_tenant(tenant_id) + _TWO_INTEGERS.pack(8, low, 8, high))


def group_conversation_id(tenant_id: str, creator: int, client_message_id: bytes) -> bytes:
    """16 bytes: a repeated CREATE_GROUP names the same group."""
    return H("qim.group", tenant_id, creator, client_message_id)


def request_digest(
    tenant_id: str, sender_id: int, conversation_id: bytes, kind: int, custom_type: str, body: bytes
) -> bytes:
    """16 bytes over what the client sent, body as it sent it: the same client_message_id with another digest is a
    conflict."""
    return H("qim.request", tenant_id, sender_id, conversation_id, kind, custom_type, body)


def control_digest(tenant_id: str, sender_id: int, opcode: int, remaining_fields: bytes) -> bytes:
    """16 bytes over kind = CONTROL and the fields besides client_message_id and not_after, as encoded by
    `frames.remaining_fields`; the opcode keeps GROUP_ADD and GROUP_REMOVE with equal fields apart."""
    return H("qim.control", tenant_id, sender_id, MessageKind.CONTROL, opcode, remaining_fields)


def membership_digest_next(
    previous: bytes,
    *,
    op: int,
    users: tuple[int, ...],
    version: int,
    control: tuple[bytes | int | str, ...],
) -> bytes:
    """16 bytes naming `version` together with all versions before it (NIL_ID before the first).

    control: the facts of the control message that made it, known before its seq is (message_id, actor, group meta).
    """
    return H("qim.membership", previous, op, len(users), *users, version, *control)


def dedupe_key(tenant_id: str, sender_id: int, client_message_id: bytes) -> bytes:
    """16 bytes: the key under which the commit of (tenant, sender, client_message_id) is found."""
    if len(client_message_id) != ID_BYTES or not 0 <= sender_id <= U64_MAX:
        return H("qim.dedupe", tenant_id, sender_id, client_message_id)
    sender_and_id = _INTEGER_AND_ID.pack(8, sender_id, ID_BYTES, client_message_id)
    return digest_of("qim.dedupe", _framed_tenant(tenant_id) + sender_and_id)


@lru_cache(maxsize=TENANTS_FRAMED_MAX)
def _framed_tenant(tenant_id: str) -> bytes:
    """As H frames it: gateway and writer both derive two identities a send, nearly always for the same few tenants."""
    return frame_field(tenant_id)
