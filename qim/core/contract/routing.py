"""Where a user, a conversation and a shard belong: pure computation, never a query (contract.md, Routing)."""

import struct
from collections.abc import Sequence
from typing import Final

import xxhash

VIRTUAL_BUCKET_COUNT: Final = 65536
LANE_COUNT: Final = 64
SHARD_COUNT_MAX: Final = VIRTUAL_BUCKET_COUNT

_U64 = struct.Struct(">Q")


def user_hash(user_id: int) -> int:
    """xxh3_64 of the u64 user_id as 8 bytes big-endian, seed 0."""
    return xxhash.xxh3_64_intdigest(_U64.pack(user_id), 0)


def bucket(user_id: int) -> int:
    """The user's virtual bucket, 0..65535."""
    return user_hash(user_id) & (VIRTUAL_BUCKET_COUNT - 1)


def shard(user_id: int, shard_count: int) -> int:
    """The user's MailboxShard, 0..shard_count-1; shard_count a power of two (`shard_count_is_legal`)."""
    return bucket(user_id) * shard_count >> 16


def lane(user_id: int) -> int:
    """The user's lane inside the shard, 0..63."""
    return user_hash(user_id) >> 16 & (LANE_COUNT - 1)


def conversation_bucket(conversation_id: bytes) -> int:
    """The conversation's virtual bucket, 0..65535, from its 16 id bytes."""
    return xxhash.xxh3_64_intdigest(conversation_id, 0) & (VIRTUAL_BUCKET_COUNT - 1)


def writer_shard(conversation_id: bytes, outbox_partition_count: int) -> int:
    """The writer shard, which IS the outbox partition: one lease, one epoch, one fence."""
    return conversation_bucket(conversation_id) * outbox_partition_count >> 16


def shard_count_is_legal(count: int) -> bool:
    """A power of two in 1..65536; holds for outbox_partition_count too."""
    return 1 <= count <= SHARD_COUNT_MAX and count & (count - 1) == 0


def rendezvous_order(resource: int, instances: Sequence[str]) -> tuple[str, ...]:
    """All instances, the one that should hold the resource first; losing one moves only what it held."""
    packed = _U64.pack(resource)
    return tuple(
        sorted(
            instances, key=lambda name: (-xxhash.xxh3_64_intdigest(name.encode() + packed, 0), name)
        )
    )


def rendezvous(resource: int, instances: Sequence[str]) -> str:
    """The instance that should wish for the lease of `resource`; a wish only, the registry decides.

    Raises ValueError when there is no instance.
    """
    if not instances:
        raise ValueError("rendezvous needs at least one instance")
    return rendezvous_order(resource, instances)[0]
