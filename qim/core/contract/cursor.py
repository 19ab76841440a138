"""The device's mailbox cursor: signed, opaque to the client, judged in one fixed order (contract.md, Frames).

Only the pull path makes new ones (pipeline.md §3.3).
"""

import hmac
from enum import Enum
from typing import Final

import msgspec

from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.sequences import FIRST_SHARD_EPOCH, U16_MAX, before_first, mailbox_seq

SIGNATURE_BYTES: Final = 16
_CONTEXT: Final = (
    b"qim.cursor.v1\x00"  # no other signature of the same secret is ever taken for a cursor's
)


class Cursor(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """Everything up to `seq` (a mailbox_seq, inclusive) of this user's mailbox is on this device.

    shard_epoch is a field of its own and never the top bits of seq: before the first record they differ.
    """

    tenant_id: str
    user_id: int
    device_id: bytes
    shard: int
    shard_epoch: int
    lane: int
    seq: int


class CursorOwner(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whose cursor it must be, as authenticated and routed by the server."""

    tenant_id: str
    user_id: int
    device_id: bytes
    shard: int
    lane: int


class ShardRange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the shard's node knows: trim_seq, the effective trim, and end_seq, the last record of the log; both
    inclusive mailbox_seqs, the predecessor of the first record where there is none."""

    shard_epoch: int
    trim_seq: int
    end_seq: int


class CursorVerdict(Enum):
    """INVALID, EXPIRED and REBASED all lead the client to REBUILD; REDIRECT to the shard's node."""

    GOOD = "GOOD"
    INVALID = "INVALID"
    EXPIRED = "EXPIRED"
    REBASED = "REBASED"
    REDIRECT = "REDIRECT"

    @property
    def error_code(self) -> ErrorCode | None:
        """What the client is told, None for GOOD and REDIRECT (a frame of its own)."""
        return _ERROR_CODES.get(self)


_ERROR_CODES: Final = {
    CursorVerdict.INVALID: ErrorCode.CURSOR_INVALID,
    CursorVerdict.EXPIRED: ErrorCode.CURSOR_EXPIRED,
    CursorVerdict.REBASED: ErrorCode.CURSOR_REBASED,
}

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Cursor)


def encode_cursor(cursor: Cursor, secret: bytes) -> bytes:
    """HMAC-SHA256 cut to 16 bytes, then the fields as a MessagePack array."""
    payload = _encoder.encode(cursor)
    return _signature(payload, secret) + payload


def decode_cursor(data: bytes, secret: bytes) -> Cursor:
    """The cursor in `data`. Raises ProtocolError CURSOR_INVALID on anything this secret did not sign."""
    payload = data[SIGNATURE_BYTES:]
    if not hmac.compare_digest(data[:SIGNATURE_BYTES], _signature(payload, secret)):
        raise ProtocolError(ErrorCode.CURSOR_INVALID, "the cursor's signature does not match")
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        # Signed by us and yet unreadable: another version's format. The client rebuilds.
        raise ProtocolError(
            ErrorCode.CURSOR_INVALID, "the cursor's format is not known here"
        ) from None


def judge(cursor: Cursor, *, owner: CursorOwner, shard: ShardRange | None) -> CursorVerdict:
    """Fixed order: range (its owner, its epoch's own numbers), ahead of us, before the trim, epoch behind, not here.

    shard None: this node does not hold the shard, so only what needs no state of it is judged before REDIRECT.
    """
    theirs = (cursor.tenant_id, cursor.user_id, cursor.device_id, cursor.shard, cursor.lane)
    if theirs != (owner.tenant_id, owner.user_id, owner.device_id, owner.shard, owner.lane):
        return CursorVerdict.INVALID
    if not _in_range(cursor):
        return CursorVerdict.INVALID
    if shard is None:
        return CursorVerdict.REDIRECT
    same_epoch = cursor.shard_epoch == shard.shard_epoch
    if cursor.shard_epoch > shard.shard_epoch or (same_epoch and cursor.seq > shard.end_seq):
        return CursorVerdict.INVALID
    if not same_epoch:
        return CursorVerdict.REBASED
    return CursorVerdict.EXPIRED if cursor.seq < shard.trim_seq else CursorVerdict.GOOD


def _in_range(cursor: Cursor) -> bool:
    """seq lies in its own epoch, or is the predecessor of that epoch's first record."""
    if not FIRST_SHARD_EPOCH <= cursor.shard_epoch <= U16_MAX:
        return False
    last = mailbox_seq(cursor.shard_epoch, (1 << 48) - 1)
    return before_first(cursor.shard_epoch, 0) <= cursor.seq <= last


def _signature(payload: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, _CONTEXT + payload, "sha256")[:SIGNATURE_BYTES]
