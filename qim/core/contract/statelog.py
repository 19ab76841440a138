"""Records of the user-state log: a read mark, or a state of one conversation of one user (pipeline.md §4).

The log is compacted by key, the last record of a key stays. A mark and a state of one conversation are therefore two keys:
kind1 (1 mark, 2 state) ‖ conversation16 ‖ user8 ‖ tenant. Partition = mailbox shard of the user.
"""

from typing import Final

import msgspec
from msgspec import Struct

KEY_MARK: Final = b"\x01"
KEY_STATE: Final = b"\x02"


class UserStateRecord(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """``version`` 0: the read mark ``read_seq`` (greatest wins); else a state, ordered by (version, device_id)."""

    tenant_id: str
    user_id: int
    conversation_id: bytes
    read_seq: int
    version: int
    device_id: bytes
    flags: int
    value: bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(UserStateRecord)


def user_state_key(record: UserStateRecord) -> bytes:
    """The compaction key: of all records with it only the last one counts."""
    kind = KEY_STATE if record.version else KEY_MARK
    user = record.user_id.to_bytes(8, "big")
    return kind + record.conversation_id + user + record.tenant_id.encode()


def encode_state_record(record: UserStateRecord) -> bytes:
    """The payload behind the framing of contract/logvalue.py."""
    return _encoder.encode(record)


def decode_state_record(payload: bytes) -> UserStateRecord:
    """Inverse of ``encode_state_record``; raises msgspec.DecodeError on anything no applier could apply."""
    record = _decoder.decode(payload)
    numbers = (record.user_id, record.read_seq, record.version)
    if len(record.conversation_id) != 16 or any(not 0 <= number < 1 << 64 for number in numbers):
        raise msgspec.DecodeError("a field is outside its bounds")
    if len(record.device_id) > 64 or not 0 <= record.flags < 1 << 32:
        raise msgspec.DecodeError("device_id or flags outside their bounds")
    return record
