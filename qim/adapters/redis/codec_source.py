"""Message-store requests to script calls and back: OPEN's restoring, reads, fanout's checkpoint, audit (pure)."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from qim.adapters.redis.codec_membership import change_args
from qim.adapters.redis.codec_message import before_of, cutoff_of, overlay_of, users_of
from qim.adapters.redis.layout import (
    FACT,
    INCARNATION_KEY,
    INTENT,
    MEMBER,
    U64_MAX,
    Call,
    marker_of,
    number,
    pack_position,
    run_id_of,
    small,
    u32,
    u64,
    unpack_position,
)
from qim.core.contract.entities import CommitAuditFact, CommitState, decode_stored_record
from qim.core.ports.store_audit import (
    AdvanceCoverage,
    CoverageAdvanced,
    CoverageOpened,
    OpenCoverage,
)
from qim.core.ports.store_message import (
    AppliedRecord,
    ApplyOutbox,
    OutboxApplied,
    PendingRead,
    ReadPending,
)
from qim.core.ports.store_reads import BodiesRead, ReadBodies
from qim.core.ports.store_source import (
    CommitSource,
    FactsRead,
    OpenSource,
    ReadFacts,
    ReadSource,
    SourceCommitted,
    SourceOpened,
    SourceRead,
)

_COMMITTED: Final = int(CommitState.COMMITTED)


def encode_apply(request: ApplyOutbox) -> Call:
    """Effective records to restore."""
    shard = u32(request.shard)
    keys = [
        INCARNATION_KEY,
        b"ws:" + shard,
        b"wp:" + shard,
        b"wi:" + shard,
        b"wa:" + shard,
        b"dx:" + shard,
        b"ho:" + shard,
        b"wo:" + shard,
    ]
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        cutoff_of(request.now_wall),
        u64(request.applied_from),
        u64(request.applied_to),
        u64(request.filter_epoch),
        run_id_of(request.incarnation) if request.whole else b"",
        request.before,
    ]
    for record in request.records:
        conversation_id = record.conversation_id
        keys += (
            b"d:" + record.dedupe_key,
            b"c:" + conversation_id,
            b"h:" + conversation_id,
            b"gm:" + conversation_id,
            b"gv:" + conversation_id,
        )
        args += _applied_args(record)
    return Call("apply_outbox", keys, args)


def _applied_args(record: AppliedRecord) -> list[bytes]:
    seq, conversation_id, write = (
        record.conversation_seq,
        record.conversation_id,
        record.membership,
    )
    assert len(record.last_activity_id) == 16
    args = [
        INTENT.pack(
            record.request_digest,
            record.message_id,
            record.sent_at,
            record.not_after,
            0 if write is None else write.version,
            conversation_id,
        ),
        u64(seq) + record.last_activity_id,
        record.stored,
        MEMBER.pack(conversation_id, seq, record.message_id),
        FACT.pack(_COMMITTED, True, record.offset, conversation_id, seq, record.dedupe_key),
        bytes((record.conversation_kind,)),
        users_of(record.single_users),
    ]
    if write is None:
        return [*args, b"", b"", b"", b"", b"", b"", b"", b"", overlay_of(record.overlay)]
    return [
        *args,
        u64(write.previous_version),
        u64(seq - 1),
        *change_args(record.conversation_kind, write),
        b"",
    ]


def decode_apply(request: ApplyOutbox, run_id: bytes, raw: Sequence[Any]) -> OutboxApplied:
    """Done."""
    return OutboxApplied(op=request.op)


def encode_pending(request: ReadPending) -> Call:
    """Intents without a confirmed append."""
    shard = u32(request.shard)
    return Call(
        "read_pending",
        [INCARNATION_KEY, b"ws:" + shard, b"wp:" + shard],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            b"(" + request.after if request.after else b"-",
            small(request.limit),
        ],
    )


def decode_pending(request: ReadPending, run_id: bytes, raw: Sequence[Any]) -> PendingRead:
    """In the order of the index."""
    return PendingRead(
        op=request.op, stored=tuple(raw[3:]), last=raw[2] or request.after, more=raw[1] == b"1"
    )


def encode_bodies(request: ReadBodies) -> Call:
    """Records by coordinates."""
    keys, args = [INCARNATION_KEY], [b""]
    for conversation_id, seq, _ in request.names:
        keys.append(b"h:" + conversation_id)
        args.append(u64(seq))
    return Call("read_bodies", keys, args)


def decode_bodies(request: ReadBodies, run_id: bytes, raw: Sequence[Any]) -> BodiesRead:
    """A row counts only if it is the message's own: a reused seq shows as two rows."""
    return BodiesRead(
        op=request.op,
        stored=tuple(
            [
                next((row for row in rows if _message_id(row) == message_id), None)
                for (_, _, message_id), rows in zip(request.names, raw[1:], strict=True)
            ]
        ),
    )


def _message_id(stored: bytes) -> bytes:
    try:
        return decode_stored_record(stored).message_id
    except msgspec.DecodeError:
        return b""


def encode_open_source(request: OpenSource) -> Call:
    """Fanout's Open."""
    assert request.fresh_key
    return Call(
        "open_source",
        [INCARNATION_KEY, b"fs:" + u32(request.partition)],
        [u64(request.epoch), request.fresh_key, request.opener],
    )


def decode_open_source(request: OpenSource, run_id: bytes, raw: Sequence[Any]) -> SourceOpened:
    """None: start at the log's start."""
    return SourceOpened(
        op=request.op,
        incarnation=run_id + b"/" + raw[1],
        position=unpack_position(raw[2]),
        filter_epoch=number(raw[3]),
    )


def encode_commit_source(request: CommitSource) -> Call:
    """Receipts, dead letters, checkpoint."""
    partition = u32(request.partition)
    return Call(
        "commit_source",
        [INCARNATION_KEY, b"fs:" + partition, b"fr:" + partition, b"fd:" + partition],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            u64(request.from_offset),
            pack_position(request.to),
            u64(request.filter_epoch),
            small(len(request.receipts)),
            u64(request.log_start) if request.log_start else b"",
            *[u64(offset) + receipt for offset, receipt in request.receipts],
            *[u64(offset) + letter for offset, letter in request.dead_letters],
        ],
    )


def decode_commit_source(
    request: CommitSource, run_id: bytes, raw: Sequence[Any]
) -> SourceCommitted:
    """Done."""
    return SourceCommitted(op=request.op)


def encode_read_source(request: ReadSource) -> Call:
    """The auditor's look at a partition."""
    partition = u32(request.partition)
    return Call(
        "read_source",
        [
            INCARNATION_KEY,
            b"fs:" + partition,
            b"fr:" + partition,
            b"fd:" + partition,
            b"ws:" + partition,
        ],
        [
            b"",
            b"[" + u64(request.low),
            b"(" + u64(min(request.high, U64_MAX)),
            small(request.limit + 1),
        ],
    )


def decode_read_source(request: ReadSource, run_id: bytes, raw: Sequence[Any]) -> SourceRead:
    """Both lists end at the same offset when one was cut, so that a reader goes on from there for both."""
    receipts, letters = _offset_rows(raw[3]), _offset_rows(raw[4])
    limit = request.limit
    cuts = [rows[limit][0] for rows in (receipts, letters) if len(rows) > limit]
    if cuts:
        end = min(cuts)
        receipts = [row for row in receipts if row[0] < end]
        letters = [row for row in letters if row[0] < end]
    return SourceRead(
        op=request.op,
        incarnation=run_id + b"/" + raw[5],
        checkpoint=number(raw[1][:8]) if raw[1] else -1,
        applied=number(raw[2]),
        receipts=tuple(receipts),
        dead_letters=tuple(letters),
        more=bool(cuts),
        applied_before=before_of(raw[2], raw[7]),
        lost=tuple(
            [
                (number(raw[6][at : at + 8]), number(raw[6][at + 8 : at + 16]))
                for at in range(0, len(raw[6]), 16)
            ]
        ),
    )


def _offset_rows(rows: Sequence[bytes]) -> list[tuple[int, bytes]]:
    return [(number(row[:8]), row[8:]) for row in rows]


def encode_read_facts(request: ReadFacts) -> Call:
    """Facts in message_id order."""
    shard = u32(request.shard)
    return Call(
        "read_facts",
        [INCARNATION_KEY, b"wi:" + shard, b"wa:" + shard],
        [b"", b"(" + request.after if request.after else b"-", small(request.limit)],
    )


def decode_read_facts(request: ReadFacts, run_id: bytes, raw: Sequence[Any]) -> FactsRead:
    """One fact a row."""
    facts = []
    for message_id, held in zip(raw[2::2], raw[3::2], strict=True):
        state, rebuilt, offset, conversation_id, seq, _ = FACT.unpack(held)
        facts.append(
            CommitAuditFact(
                message_id=message_id,
                conversation_id=conversation_id,
                conversation_seq=seq,
                state=state,
                rebuilt=bool(rebuilt),
                outbox_offset=-1 if offset == U64_MAX else offset,
            )
        )
    return FactsRead(op=request.op, facts=tuple(facts), more=raw[1] == b"1")


def encode_open_coverage(request: OpenCoverage) -> Call:
    """The auditor's Open."""
    assert request.fresh_key
    shard = u32(request.partition)
    return Call(
        "open_coverage",
        [INCARNATION_KEY, b"wc:" + shard, b"ws:" + shard],
        [u64(request.epoch), request.fresh_key, request.opener],
    )


def decode_open_coverage(
    request: OpenCoverage, run_id: bytes, raw: Sequence[Any]
) -> CoverageOpened:
    """Where the cursor stands."""
    return CoverageOpened(
        op=request.op, incarnation=run_id + b"/" + raw[1], covered_to=number(raw[2])
    )


def encode_coverage(request: AdvanceCoverage) -> Call:
    """What the auditor has covered."""
    shard = u32(request.partition)
    return Call(
        "advance_coverage",
        [INCARNATION_KEY, b"wc:" + shard, b"ws:" + shard, b"wi:" + shard, b"wa:" + shard],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            u64(request.covered_to),
            *request.drop_facts,
        ],
    )


def decode_coverage(
    request: AdvanceCoverage, run_id: bytes, raw: Sequence[Any]
) -> CoverageAdvanced:
    """Done."""
    return CoverageAdvanced(op=request.op)
