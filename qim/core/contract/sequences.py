"""The five sequences and their fixed-width forms (contract.md, Five sequences).

In memory a u64 is an int and a u128 is 16 bytes big-endian, so that bytes compare as numbers do. In stores and Lua
both are fixed-width big-endian, in JSON strings: Lua numbers are doubles and collapse neighbours above 2^53.
Everything here raises ValueError on values outside its bounds: such a value is our own bug, a peer's is refused before.
"""

U16_MAX = (1 << 16) - 1
U48_MAX = (1 << 48) - 1
U64_MAX = (1 << 64) - 1
U128_MAX = (1 << 128) - 1
NIL_U128 = bytes(16)
"""The all-zero u128: 'no activity yet', never a valid id."""

FIRST_SHARD_EPOCH = 1
"""shard_epoch starts at 1, so that 'before the first record' always exists as the u64 predecessor."""


def _bounded(name: str, value: int, greatest: int) -> int:
    if not 0 <= value <= greatest:
        raise ValueError(f"{name} must lie in 0..{greatest}, got {value}")
    return value


def mailbox_seq(shard_epoch: int, offset: int) -> int:
    """u64 = shard_epoch:16 · dispatch offset:48."""
    return _bounded("shard_epoch", shard_epoch, U16_MAX) << 48 | _bounded("offset", offset, U48_MAX)


def split_mailbox_seq(seq: int) -> tuple[int, int]:
    """(shard_epoch, offset) as the bits say; a cursor's epoch is its own field, never these top bits."""
    return _bounded("mailbox_seq", seq, U64_MAX) >> 48, seq & U48_MAX


def before_first(shard_epoch: int, first_offset: int) -> int:
    """The u64 predecessor of (shard_epoch | first_offset): where a shard without stored state starts."""
    if shard_epoch < FIRST_SHARD_EPOCH:
        raise ValueError(f"shard_epoch starts at {FIRST_SHARD_EPOCH}, got {shard_epoch}")
    return mailbox_seq(shard_epoch, first_offset) - 1


def room_seq(room_epoch: int, counter: int) -> int:
    """u64 = room epoch:16 · counter:48; no holes inside an epoch."""
    return _bounded("room_epoch", room_epoch, U16_MAX) << 48 | _bounded("counter", counter, U48_MAX)


def split_room_seq(seq: int) -> tuple[int, int]:
    """(room_epoch, counter)."""
    return _bounded("room_seq", seq, U64_MAX) >> 48, seq & U48_MAX


def successor(value: bytes) -> bytes:
    """The u128 after `value`, 16 bytes; ValueError at the end of the range."""
    return u128_bytes(u128_int(value) + 1)


def next_activity(message_id: bytes, previous: bytes) -> bytes:
    """last_activity_id = max(message_id, previous + 1), so it rises within a conversation whatever the clocks did."""
    return max(message_id, successor(previous))


def u64_bytes(value: int) -> bytes:
    """8 bytes big-endian."""
    return _bounded("u64", value, U64_MAX).to_bytes(8, "big")


def u64_int(data: bytes) -> int:
    """The u64 in exactly 8 bytes."""
    return int.from_bytes(_sized("u64", data, 8), "big")


def u128_bytes(value: int) -> bytes:
    """16 bytes big-endian."""
    return _bounded("u128", value, U128_MAX).to_bytes(16, "big")


def u128_int(data: bytes) -> int:
    """The u128 in exactly 16 bytes."""
    return int.from_bytes(_sized("u128", data, 16), "big")


def _sized(name: str, data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"{name} must be {size} bytes, got {len(data)}")
    return data
