"""Message-store requests to script calls and back: commits and marks (pure; docs: pipeline §1).

``encode_*`` give a Call whose keys and arguments the script's header numbers; ``decode_*`` get the raw reply of a call
that answered ``K``. Other answers (R, F, U, X) mean the same everywhere and are read in codec.py.
"""

from collections.abc import Sequence
from typing import Any, Final

from qim.adapters.redis.layout import (
    COMMIT,
    DEDUPE_GRACE_MS,
    EMPTY_DIGEST,
    FACT,
    INCARNATION_KEY,
    INTENT,
    MEMBER,
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
from qim.core.contract.entities import CommitState
from qim.core.ports.store_message import (
    CommitsFound,
    Existing,
    Fresh,
    HeadsWritten,
    LookupCommits,
    MarkCommitted,
    MarkedCommitted,
    MarkedRefused,
    MarkItem,
    MarkLost,
    MarkRefused,
    MembershipChange,
    OpenShard,
    ReserveAndRecord,
    Reserved,
    ReserveItem,
    ReserveResult,
    ShardOpened,
    VersionMoved,
    WriteHeads,
)

DROPPED_BESIDES: Final = 8
"""A reservation of n commits drops at most n plus these dedupe entries past the window."""
_NO_USERS: Final = b""
_COMMITTED: Final = int(CommitState.COMMITTED)
_REFUSED: Final = int(CommitState.REFUSED)


def cutoff_of(now_wall: int) -> bytes:
    """not_after below this is past the dedupe window."""
    return u64(max(0, now_wall - DEDUPE_GRACE_MS))


def users_of(users: tuple[int, int] | None) -> bytes:
    """users16 of a single chat, or b""."""
    return _NO_USERS if users is None else u64(users[0]) + u64(users[1])


def overlay_of(overlay: tuple[int, int] | None) -> bytes:
    """user8 target8 (user 0: a recall), or b""."""
    return b"" if overlay is None else u64(overlay[0]) + u64(overlay[1])


def before_of(applied: bytes, held: bytes) -> bytes:
    """The digest of the record before ``applied``: what moves it without one leaves that of another place behind."""
    return held[8:] if applied and held[:8] == applied else b""


def encode_open_shard(request: OpenShard) -> Call:
    """One shard's Open."""
    shard = u32(request.shard)
    assert request.fresh_key
    return Call(
        "open_shard",
        [INCARNATION_KEY, b"ws:" + shard, b"wi:" + shard],
        [u64(request.epoch), request.fresh_key, request.opener],
    )


def decode_open_shard(request: OpenShard, run_id: bytes, raw: Sequence[Any]) -> ShardOpened:
    """The floor is above every id recorded, whether its mark was kept or not."""
    return ShardOpened(
        op=request.op,
        incarnation=run_id + b"/" + raw[1],
        applied=number(raw[2]),
        filter_epoch=number(raw[3]),
        hlc_floor=max(raw[4], raw[5], EMPTY_DIGEST),
        before=before_of(raw[2], raw[6]),
    )


def shard_keys(shard: bytes) -> list[bytes]:
    """What every script that reserves may touch of a writer shard."""
    return [
        INCARNATION_KEY,
        b"ws:" + shard,
        b"wp:" + shard,
        b"wi:" + shard,
        b"wa:" + shard,
        b"dx:" + shard,
    ]


def encode_reserve(request: ReserveAndRecord) -> Call:
    """A batch of new commits."""
    keys = shard_keys(u32(request.shard))
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        cutoff_of(request.now_wall),
        small(len(request.items) + DROPPED_BESIDES),
    ]
    for item in request.items:
        conversation_id = item.conversation_id
        keys += (b"d:" + item.dedupe_key, b"c:" + conversation_id, b"h:" + conversation_id)
        args += (
            intent_of(item, 0),
            VERSION.pack(item.conversation_kind, item.version, item.membership_digest),
            _NO_USERS if item.single_users is None else users_of(item.single_users),
            item.record,
            overlay_of(item.overlay),
        )
    return Call("reserve_and_record", keys, args)


def intent_of(item: ReserveItem, version: int) -> bytes:
    """The 72 bytes of a dedupe entry that the caller knows; ``version`` is what a membership change makes, else 0."""
    assert len(item.dedupe_key) == len(item.message_id) == len(item.conversation_id) == 16
    assert len(item.request_digest) == 16 and len(item.membership_digest) in (0, 16)
    return INTENT.pack(
        item.request_digest,
        item.message_id,
        item.sent_at,
        item.not_after,
        version,
        item.conversation_id,
    )


def decode_reserve(
    request: ReserveAndRecord | MembershipChange, run_id: bytes, raw: Sequence[Any]
) -> Reserved:
    """One result an item."""
    return Reserved(op=request.op, results=tuple([_result(verdict) for verdict in raw[1:]]))


def _result(verdict: bytes) -> ReserveResult:
    kind = verdict[0]
    if kind == 0x46:  # F
        return Fresh(conversation_seq=number(verdict[1:9]), last_activity_id=verdict[9:25])
    if kind == 0x45:  # E
        return _existing(verdict[1:])
    if kind == 0x56:  # V
        version = number(verdict[1:9])
        return VersionMoved(version=version, digest=verdict[9:25] if version else b"")
    raise MalformedReply(f"verdict {verdict[:1]!r}")


def _existing(entry: bytes) -> Existing:
    state, digest, message_id, sent_at, _, version, conversation_id, seq, activity = (
        COMMIT.unpack_from(entry)
    )
    return Existing(
        state=state,
        request_digest=digest,
        message_id=message_id,
        conversation_id=conversation_id,
        conversation_seq=seq,
        last_activity_id=activity,
        sent_at=sent_at,
        version=version,
        stored=entry[COMMIT.size :],
    )


def encode_lookup(request: LookupCommits) -> Call:
    """What stands under these dedupe keys."""
    return Call(
        "lookup_commits",
        [
            INCARNATION_KEY,
            b"ws:" + u32(request.shard),
            *[b"d:" + key for key in request.dedupe_keys],
        ],
        [marker_of(request.incarnation), u64(request.epoch), cutoff_of(request.now_wall)],
    )


def decode_lookup(request: LookupCommits, run_id: bytes, raw: Sequence[Any]) -> CommitsFound:
    """None where nothing stands or the window is past."""
    return CommitsFound(
        op=request.op, commits=tuple([_existing(entry) if entry else None for entry in raw[1:]])
    )


def pack_fact(state: int, rebuilt: bool, offset: int, member: MarkItem) -> bytes:
    """A CommitAuditFact row; offset -1: none."""
    return FACT.pack(
        state,
        rebuilt,
        offset if offset >= 0 else U64_MAX,
        member.conversation_id,
        member.conversation_seq,
        member.dedupe_key,
    )


def _member(item: MarkItem) -> bytes:
    return MEMBER.pack(item.conversation_id, item.conversation_seq, item.message_id)


def encode_mark(request: MarkCommitted) -> Call:
    """Confirmed appends."""
    shard = u32(request.shard)
    keys = [
        INCARNATION_KEY,
        b"ws:" + shard,
        b"wp:" + shard,
        b"wa:" + shard,
        b"ho:" + shard,
        b"wo:" + shard,
    ]
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        u64(request.applied_to),
        request.before,
    ]
    for item in request.items:
        keys.append(b"d:" + item.dedupe_key)
        args += (_member(item), pack_fact(_COMMITTED, False, item.offset, item))
    return Call("mark_committed", keys, args)


def decode_mark(request: MarkCommitted, run_id: bytes, raw: Sequence[Any]) -> MarkedCommitted:
    """Done."""
    return MarkedCommitted(op=request.op)


def encode_refuse(request: MarkRefused) -> Call:
    """Records the log refused by name."""
    shard = u32(request.shard)
    keys = [INCARNATION_KEY, b"ws:" + shard, b"wp:" + shard, b"wa:" + shard, b"wo:" + shard]
    args = [marker_of(request.incarnation), u64(request.epoch)]
    for item in request.items:
        keys += (b"d:" + item.dedupe_key, b"h:" + item.conversation_id)
        args += (_member(item), pack_fact(_REFUSED, False, -1, item))
    return Call("mark_refused", keys, args)


def decode_refuse(request: MarkRefused, run_id: bytes, raw: Sequence[Any]) -> MarkedRefused:
    """Done."""
    return MarkedRefused(op=request.op)


def lost(request: MarkCommitted | MarkRefused, raw: Sequence[Any]) -> MarkLost:
    """An item without its intent."""
    return MarkLost(op=request.op, index=raw[1])


def encode_heads(request: WriteHeads) -> Call:
    """ConversationHeads, only forward."""
    return Call(
        "write_heads",
        [
            INCARNATION_KEY,
            b"ws:" + u32(request.shard),
            *[b"c:" + head[0] for head in request.heads],
        ],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            *[u64(seq) + activity + message_id for _, seq, activity, message_id in request.heads],
        ],
    )


def decode_heads(request: WriteHeads, run_id: bytes, raw: Sequence[Any]) -> HeadsWritten:
    """Done."""
    return HeadsWritten(op=request.op)
