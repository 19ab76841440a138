"""The writer's reads of hot history to script calls and back (pure; docs: pipeline §5): rows, intervals, overlays."""

from collections.abc import Sequence
from typing import Any

from qim.adapters.redis.layout import (
    INCARNATION_KEY,
    U64_MAX,
    VERSION,
    Call,
    MalformedReply,
    marker_of,
    number,
    small,
    u32,
    u64,
)
from qim.core.contract.entities import ConversationKind
from qim.core.ports.store_reads import HistoryItem, HistoryPage, HistoryRead, ReadHistory


def encode_history(request: ReadHistory) -> Call:
    """Hot rows between two seqs, both excluded, of each conversation."""
    shard = u32(request.shard)
    keys = [INCARNATION_KEY, b"ws:" + shard, b"wp:" + shard, b"wo:" + shard]
    args = [marker_of(request.incarnation), u64(request.epoch), small(request.bytes_max)]
    for item in request.items:
        conversation_id = item.conversation_id
        keys += (
            b"h:" + conversation_id,
            b"c:" + conversation_id,
            b"gm:" + conversation_id,
            b"ov:" + conversation_id,
            b"od:" + conversation_id,
        )
        args += _item_args(item)
    return Call("read_history", keys, args)


def _item_args(item: HistoryItem) -> list[bytes]:
    low = u64(min(max(item.low + 1, 0), U64_MAX))
    high = u64(min(max(item.high, 0), U64_MAX))
    return [
        item.conversation_id,
        b"[" + low,
        b"(" + high if item.high <= U64_MAX else b"+",
        b"1" if item.newest_first else b"0",
        small(item.limit),
        u64(item.user_id) if item.user_id else b"",
        b"".join([u64(seq) for seq in item.judged]),
    ]


def decode_history(request: ReadHistory, run_id: bytes, raw: Sequence[Any]) -> HistoryRead:
    """``more`` is exact."""
    if len(raw) != len(request.items) + 1:
        raise MalformedReply(f"ReadHistory: {len(raw) - 1} pages of {len(request.items)}")
    pages = [_page(item, page) for item, page in zip(request.items, raw[1:], strict=True)]
    return HistoryRead(op=request.op, pages=tuple(pages))


def _page(item: HistoryItem, raw: Sequence[bytes]) -> HistoryPage:
    more, floor, version, users, creator, slot, recalled, deleted = raw[:8]
    kind = VERSION.unpack_from(version)[0] if version else 0
    pair = None
    intervals = _intervals(slot)
    if kind == ConversationKind.SINGLE:
        pair = (number(users[:8]), number(users[8:16]))
        # A single chat records no intervals: its two users see all of it.
        intervals = ((0, U64_MAX),) if item.user_id in pair else ()
    return HistoryPage(
        stored=tuple(raw[8:]),
        more=more == b"1",
        floor=number(floor),
        kind=kind,
        users=pair,
        creator=number(creator),
        intervals=intervals,
        recalled=_seqs(recalled),
        deleted=_seqs(deleted),
    )


def _intervals(slot: bytes) -> tuple[tuple[int, int], ...]:
    return tuple(
        [
            (number(slot[at : at + 8]), number(slot[at + 8 : at + 16]))
            for at in range(4, len(slot), 16)
        ]
    )


def _seqs(packed: bytes) -> tuple[int, ...]:
    return tuple([number(packed[at : at + 8]) for at in range(0, len(packed), 8)])
