"""Mailbox-store requests to script calls and back: claims, rows, watermarks, pulls (pure; docs: pipeline §3)."""

from collections.abc import Sequence
from typing import Any, Final

from qim.adapters.redis.layout import (
    INCARNATION_KEY,
    U64_MAX,
    Call,
    marker_of,
    number,
    pack_position,
    small,
    u32,
    u64,
    unpack_position,
)
from qim.core.contract.entities import NO_SOURCE
from qim.core.ports.store_mailbox import (
    AppendEntries,
    ClaimDispatches,
    Claimed,
    DispatchesFinished,
    EntriesAppended,
    FinishDispatches,
    FloorRaised,
    LaneMove,
    MailboxesRead,
    MailboxOpened,
    MailboxRows,
    MailboxTrimmed,
    OpenMailbox,
    Progress,
    ProgressRead,
    RaiseFloor,
    ReadMailboxes,
    ReadProgress,
    ReadShardState,
    ShardStateRead,
    TrimMailbox,
    Trimmed,
)

_LANES: Final = tuple(bytes((lane,)) for lane in range(256))
_SCORE: Final = b"0"


def encode_open_mailbox(request: OpenMailbox) -> Call:
    """One shard's Open."""
    shard = u32(request.shard)
    assert request.fresh_key
    return Call(
        "open_mailbox",
        [INCARNATION_KEY, b"ms:" + shard, b"mc:" + shard, b"mx:" + shard, b"mh:" + shard],
        [u64(request.epoch), request.fresh_key, request.opener, u64(request.initial)],
    )


def decode_open_mailbox(request: OpenMailbox, run_id: bytes, raw: Sequence[Any]) -> MailboxOpened:
    """All state of the shard, read from its hash."""
    held = dict(zip(raw[3::2], raw[4::2], strict=True))
    packed = held.get(b"w", u64(request.initial))
    days = held.get(b"d", b"")
    return MailboxOpened(
        op=request.op,
        incarnation=run_id + b"/" + raw[1],
        base=number(packed[:8]),
        lanes=_lanes(packed),
        trim=number(held.get(b"t", b"")),
        floors=tuple(
            sorted(
                [
                    (number(field[1:]), number(value))
                    for field, value in held.items()
                    if field[:1] == b"f"
                ]
            )
        ),
        days=tuple(
            [
                (number(days[at : at + 4]), number(days[at + 4 : at + 12]))
                for at in range(0, len(days), 12)
            ]
        ),
        position=unpack_position(held.get(b"p", b"")),
        counter_lost=raw[2] == b"1",
    )


def _lanes(packed: bytes) -> tuple[tuple[int, int], ...]:
    return tuple([(packed[at], number(packed[at + 1 : at + 9])) for at in range(8, len(packed), 9)])


def encode_claim(request: ClaimDispatches) -> Call:
    """First offsets of dispatch ids."""
    shard = u32(request.shard)
    args = [marker_of(request.incarnation), u64(request.epoch)]
    for dispatch_id, offset, partition, source_offset in (
        (c.dispatch_id, c.offset, c.source_partition, c.source_offset) for c in request.claims
    ):
        if partition == NO_SOURCE:
            args += (dispatch_id, u64(offset) + u32(partition) + u64(0), b"")
        else:
            source = u32(partition)
            args += (dispatch_id, u64(offset) + source + u64(source_offset), b"f" + source)
    return Call(
        "claim_dispatches",
        [INCARNATION_KEY, b"ms:" + shard, b"mc:" + shard, b"mx:" + shard],
        args,
    )


def decode_claim(request: ClaimDispatches, run_id: bytes, raw: Sequence[Any]) -> Claimed:
    """-1: below the floor."""
    return Claimed(
        op=request.op,
        first_offsets=tuple([number(row[:8]) if row else -1 for row in raw[1:]]),
        digests=tuple([row[8:] for row in raw[1:]]),
    )


def _packed(base: int, lanes: list[tuple[int, int]]) -> bytes:
    """base8 (lane1 seq8)* of the lanes that differ from the base, ascending."""
    if not lanes:
        return u64(base)
    lanes.sort()
    return u64(base) + b"".join([_LANES[lane] + u64(seq) for lane, seq in lanes])


def _watermarks(base_from: int, base_to: int, moves: Sequence[LaneMove]) -> tuple[bytes, bytes]:
    if not moves:
        return u64(base_from), u64(base_to)
    before = [(move.lane, move.from_) for move in moves if move.from_ != base_from]
    after = [(move.lane, move.to) for move in moves if move.to != base_to]
    return _packed(base_from, before), _packed(base_to, after)


def encode_append(request: AppendEntries) -> Call:
    """Rows are grouped by mailbox, so that a user of a whole batch costs one ZADD."""
    shard = u32(request.shard)
    before, after = _watermarks(request.base_from, request.base_to, request.moves)
    mailboxes: dict[tuple[int, int, str], list[bytes]] = {}
    least = U64_MAX
    for row in request.rows:
        name = (row.day, row.user_id, row.tenant_id)
        seq = row.mailbox_seq
        if seq < least:
            least = seq
        member = u64(seq) + row.entry
        args = mailboxes.get(name)
        if args is None:
            mailboxes[name] = [_SCORE, member]
        else:
            args += (_SCORE, member)
    days: dict[int, list[bytes]] = {}
    keys: list[bytes] = []
    counted: list[bytes] = []
    for (day, user_id, tenant_id), rows in mailboxes.items():
        user = u64(user_id) + tenant_id.encode()
        days.setdefault(day, []).extend((_SCORE, user))
        keys.append(b"mb:%b%b%b" % (shard, u32(day), user))
        counted.append(b"%d" % len(rows))
        counted += rows
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        before,
        after,
        pack_position(request.position),
        u64(least),
        b"%d" % len(request.days),
    ]
    args += [u32(day) + u64(first) for day, first in sorted(request.days)]
    first_keys = [INCARNATION_KEY, b"ms:" + shard]
    for day, users in days.items():
        first_keys.append(b"mu:" + shard + u32(day))
        args.append(b"%d" % len(users))
        args += users
    return Call("append_entries", first_keys + keys, args + counted)


def decode_append(request: AppendEntries, run_id: bytes, raw: Sequence[Any]) -> EntriesAppended:
    """Done."""
    return EntriesAppended(op=request.op)


def trimmed(request: AppendEntries, raw: Sequence[Any]) -> Trimmed:
    """A late call."""
    return Trimmed(op=request.op, trim=number(raw[1]))


def encode_finish(request: FinishDispatches) -> Call:
    """Progress marks."""
    shard = u32(request.shard)
    args = [marker_of(request.incarnation), u64(request.epoch)]
    for item in request.items:
        args += (item.dispatch_id, u64(item.offset), u32(item.entry_count) + item.digest)
    return Call("finish_dispatches", [INCARNATION_KEY, b"ms:" + shard, b"mc:" + shard], args)


def decode_finish(
    request: FinishDispatches, run_id: bytes, raw: Sequence[Any]
) -> DispatchesFinished:
    """Indexes whose stored digest differs."""
    return DispatchesFinished(op=request.op, differing=tuple(raw[1:]))


def encode_progress(request: ReadProgress) -> Call:
    """The auditor's look at progress."""
    shard = u32(request.shard)
    return Call(
        "read_progress",
        [INCARNATION_KEY, b"mc:" + shard],
        [marker_of(request.incarnation), *request.dispatch_ids],
    )


def decode_progress(request: ReadProgress, run_id: bytes, raw: Sequence[Any]) -> ProgressRead:
    """None: not finished, or gone."""
    return ProgressRead(
        op=request.op,
        progress=tuple(
            [
                Progress(dispatch_id, number(row[:8]), number(row[8:12]), row[12:]) if row else None
                for dispatch_id, row in zip(request.dispatch_ids, raw[1:], strict=True)
            ]
        ),
    )


def encode_floor(request: RaiseFloor) -> Call:
    """A floor and the claims below it."""
    shard, source = u32(request.shard), u32(request.source_partition)
    return Call(
        "raise_floor",
        [INCARNATION_KEY, b"ms:" + shard, b"mc:" + shard, b"mx:" + shard],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            source,
            u64(request.floor),
            small(request.limit),
        ],
    )


def decode_floor(request: RaiseFloor, run_id: bytes, raw: Sequence[Any]) -> FloorRaised:
    """``more``: ask again."""
    return FloorRaised(op=request.op, more=raw[1] == b"1")


def encode_read(request: ReadMailboxes) -> Call:
    """Pulls of one shard."""
    shard = u32(request.shard)
    prefix = b"mb:" + shard
    args = [marker_of(request.incarnation)]
    for read in request.reads:
        args += (
            u64(read.user_id) + read.tenant_id.encode(),
            _LANES[read.lane],
            u64(read.after),
            u64(min(read.after + 1, U64_MAX)),
            u64(read.up_to) if read.up_to else b"",
            small(read.limit),
            prefix,
        )
    return Call("read_mailboxes", [INCARNATION_KEY, b"ms:" + shard], args)


def decode_read(request: ReadMailboxes, run_id: bytes, raw: Sequence[Any]) -> MailboxesRead:
    """A row's first 8 bytes are its place; the entry is what follows."""
    return MailboxesRead(
        op=request.op,
        results=tuple(
            [
                MailboxRows(
                    number(rows[0]),
                    number(rows[1]),
                    tuple([row[8:] for row in rows[3:]]),
                    rows[2] == b"1",
                )
                for rows in raw[1:]
            ]
        ),
    )


def encode_trim(request: TrimMailbox) -> Call:
    """The leading day range."""
    shard, day = u32(request.shard), u32(request.day)
    return Call(
        "trim_mailbox",
        [INCARNATION_KEY, b"ms:" + shard, b"mu:" + shard + day],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            day,
            u64(request.to),
            small(request.limit),
            b"mb:" + shard + day,
        ],
    )


def decode_trim(request: TrimMailbox, run_id: bytes, raw: Sequence[Any]) -> MailboxTrimmed:
    """``more``: ask again."""
    return MailboxTrimmed(op=request.op, trim=number(raw[1]), more=raw[2] == b"1")


def encode_shard_state(request: ReadShardState) -> Call:
    """The auditor's look."""
    return Call("read_shard_state", [INCARNATION_KEY, b"ms:" + u32(request.shard)], [b""])


def decode_shard_state(
    request: ReadShardState, run_id: bytes, raw: Sequence[Any]
) -> ShardStateRead:
    """-1: no state."""
    packed = raw[2]
    base = number(packed[:8]) if packed else -1
    return ShardStateRead(
        op=request.op,
        incarnation=run_id + b"/" + raw[1],
        base=base,
        min_watermark=min([base, *[seq for _, seq in _lanes(packed)]]),
        trim=number(raw[3]),
        redo=_offsets(raw[4]),
        settled=_offsets(raw[5]),
    )


def _offsets(packed: bytes) -> tuple[tuple[int, int], ...]:
    """(partition4 offset8)*."""
    return tuple(
        [
            (number(packed[at : at + 4]), number(packed[at + 4 : at + 12]))
            for at in range(0, len(packed), 12)
        ]
    )
