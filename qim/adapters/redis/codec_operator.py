"""Requests of the operator's tools to script calls and back (pure)."""

from collections.abc import Sequence
from typing import Any

from qim.adapters.redis.layout import (
    INCARNATION_KEY,
    Call,
    marker_of,
    number,
    pack_position,
    small,
    u32,
    u64,
)
from qim.core.contract.entities import NO_SOURCE
from qim.core.ports.store_operator import (
    AmendSource,
    BumpShard,
    HotRead,
    ProjectionRestarted,
    ReadHot,
    RestartProjection,
    ShardBumped,
    SourceAmended,
)


def encode_amend(request: AmendSource) -> Call:
    """Receipts replaced, checkpoint put."""
    partition = u32(request.partition)
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        u64(request.from_offset),
        pack_position(request.to),
        u64(request.filter_epoch),
        u64(request.drop_from) + u64(request.drop_to) if request.drop_from >= 0 else b"",
        u64(request.lost[0]) + u64(request.lost[1]) if request.lost[0] < request.lost[1] else b"",
    ]
    for offset, receipt in request.receipts:
        args += (u64(offset), u64(offset + 1), receipt)
    return Call("amend_source", [INCARNATION_KEY, b"fs:" + partition, b"fr:" + partition], args)


def decode_amend(request: AmendSource, run_id: bytes, raw: Sequence[Any]) -> SourceAmended:
    """Done."""
    return SourceAmended(op=request.op)


def encode_read_hot(request: ReadHot) -> Call:
    """Hot rows by outbox offset."""
    return Call(
        "read_hot",
        [INCARNATION_KEY, b"ho:" + u32(request.shard)],
        [b"", u64(request.low), small(request.limit), small(request.limit + 1)],
    )


def decode_read_hot(request: ReadHot, run_id: bytes, raw: Sequence[Any]) -> HotRead:
    """Rows whose history row is gone are left out."""
    rows = zip(raw[2::2], raw[3::2], strict=True)
    return HotRead(
        op=request.op,
        rows=tuple([(number(offset), stored) for offset, stored in rows if stored]),
        more=raw[1] == b"1",
    )


def encode_bump(request: BumpShard) -> Call:
    """A mailbox shard begins anew."""
    shard = u32(request.shard)
    return Call(
        "bump_shard",
        [INCARNATION_KEY, b"ms:" + shard, b"mc:" + shard, b"mx:" + shard],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            u64(request.from_watermark),
            u64(request.to_watermark),
            u64(request.void_from),
            _offsets(request.redo),
            u32(NO_SOURCE),
            _offsets(request.promised),
            *[part for number, offset in request.unsettled for part in (u32(number), u64(offset))],
        ],
    )


def _offsets(pairs: Sequence[tuple[int, int]]) -> bytes:
    return b"".join([u32(partition) + u64(offset) for partition, offset in pairs])


def decode_bump(request: BumpShard, run_id: bytes, raw: Sequence[Any]) -> ShardBumped:
    """How many claims are void."""
    return ShardBumped(op=request.op, voided=int(raw[1]))


def encode_restart(request: RestartProjection) -> Call:
    """A session shard starts at the log's start."""
    return Call(
        "restart_projection",
        [INCARNATION_KEY, b"ss:" + u32(request.shard)],
        [marker_of(request.incarnation), u64(request.epoch), u64(request.shard_epoch)],
    )


def decode_restart(
    request: RestartProjection, run_id: bytes, raw: Sequence[Any]
) -> ProjectionRestarted:
    """Done."""
    return ProjectionRestarted(op=request.op)
