"""Message-store requests to script calls and back: commits, marks, membership (pure; docs: pipeline §1).

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
from qim.core.contract.entities import (
    CommitState,
    ConversationKind,
    Interval,
    Member,
    MembershipVersion,
)
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
    MemberHistory,
    MembershipChange,
    MembershipRead,
    MembershipWrite,
    OpenShard,
    ReadMembership,
    ReadVersions,
    ReserveAndRecord,
    Reserved,
    ReserveItem,
    ReserveResult,
    ShardOpened,
    VersionMoved,
    VersionsRead,
    WriteHeads,
)

DROPPED_BESIDES: Final = 8
"""A reservation of n commits drops at most n plus these dedupe entries past the window."""
_BITS: Final = tuple(1 << bit for bit in range(8))
_NO_USERS: Final = b""
_RECORDED: Final = int(CommitState.RECORDED)
_COMMITTED: Final = int(CommitState.COMMITTED)
_REFUSED: Final = int(CommitState.REFUSED)


def cutoff_of(now_wall: int) -> bytes:
    """not_after below this is past the dedupe window."""
    return u64(max(0, now_wall - DEDUPE_GRACE_MS))


def users_of(users: tuple[int, int] | None) -> bytes:
    """users16 of a single chat, or b""."""
    return _NO_USERS if users is None else u64(users[0]) + u64(users[1])


def encode_open_shard(request: OpenShard) -> Call:
    """One shard's Open."""
    shard = u32(request.shard)
    assert request.fresh_key
    return Call(
        "open_shard",
        [INCARNATION_KEY, b"ws:" + shard, b"wi:" + shard],
        [u64(request.epoch), request.fresh_key],
    )


def decode_open_shard(request: OpenShard, run_id: bytes, raw: Sequence[Any]) -> ShardOpened:
    """The floor is above every id recorded, whether its mark was kept or not."""
    return ShardOpened(
        op=request.op,
        incarnation=run_id + b"/" + raw[1],
        applied=number(raw[2]),
        filter_epoch=number(raw[3]),
        hlc_floor=max(raw[4], raw[5], EMPTY_DIGEST),
    )


def _shard_keys(shard: bytes) -> list[bytes]:
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
    keys = _shard_keys(u32(request.shard))
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
            _intent(item, 0),
            VERSION.pack(item.conversation_kind, item.version, item.membership_digest),
            _NO_USERS if item.single_users is None else users_of(item.single_users),
            item.record,
        )
    return Call("reserve_and_record", keys, args)


def _intent(item: ReserveItem, version: int) -> bytes:
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
    keys = [INCARNATION_KEY, b"ws:" + shard, b"wp:" + shard, b"wa:" + shard]
    args = [marker_of(request.incarnation), u64(request.epoch), u64(request.applied_to)]
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
    keys = [INCARNATION_KEY, b"ws:" + shard, b"wp:" + shard, b"wa:" + shard]
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


def encode_change(request: MembershipChange) -> Call:
    """A membership control message and the version it makes."""
    item, write = request.item, request.membership
    conversation_id = item.conversation_id
    keys = _shard_keys(u32(request.shard))
    keys += [
        b"d:" + item.dedupe_key,
        b"c:" + conversation_id,
        b"h:" + conversation_id,
        b"gm:" + conversation_id,
        b"gv:" + conversation_id,
    ]
    before = VERSION.pack(item.conversation_kind, write.previous_version, write.previous_digest)
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        cutoff_of(request.now_wall),
        _intent(item, write.version),
        before,
        item.record,
        *change_args(item.conversation_kind, write),
    ]
    return Call("membership_change", keys, args)


def change_args(conversation_kind: int, write: MembershipWrite) -> list[bytes]:
    """operation1, kind1 version8 digest16 after, users, creator8, name, meta."""
    assert len(write.digest) == 16
    return [
        bytes((write.operation,)),
        VERSION.pack(conversation_kind, write.version, write.digest),
        b"".join([u64(user) for user in write.users]),
        u64(write.creator),
        write.name.encode(),
        write.meta,
    ]


def encode_read_membership(request: ReadMembership) -> Call:
    """The writer's read of the latest version."""
    conversation_id = request.conversation_id
    return Call(
        "read_membership",
        [
            INCARNATION_KEY,
            b"ws:" + u32(request.shard),
            b"c:" + conversation_id,
            b"gm:" + conversation_id,
            b"gv:" + conversation_id,
        ],
        [marker_of(request.incarnation), u64(request.epoch)],
    )


def decode_read_membership(
    request: ReadMembership, run_id: bytes, raw: Sequence[Any]
) -> MembershipRead:
    """A single chat's two users count as members of version 0."""
    if len(raw) == 1:
        return MembershipRead(
            op=request.op, kind=0, version=None, everyone=(), creator=0, name="", meta=b""
        )
    kind, number_, digest = VERSION.unpack_from(raw[1])
    if kind == ConversationKind.SINGLE:
        version = _single_version(request.conversation_id, raw[2])
        histories = tuple([MemberHistory(m.user_id, ((0, U64_MAX),)) for m in version.members])
    else:
        bitmap = raw[6][8:]
        everyone = _everyone(raw, 7)
        version = MembershipVersion(
            conversation_id=request.conversation_id,
            version=number_,
            digest=digest,
            control_seq=number(raw[1][25:33]),
            members=_members(everyone, bitmap),
        )
        histories = tuple(
            [
                MemberHistory(user, tuple([(i.joined_at, i.left_at) for i in intervals]))
                for user, _, intervals in everyone
            ]
        )
    return MembershipRead(
        op=request.op,
        kind=kind,
        version=version,
        everyone=histories,
        creator=number(raw[3]),
        name=raw[4].decode(),
        meta=raw[5],
    )


def _single_version(conversation_id: bytes, users: bytes) -> MembershipVersion:
    pair = sorted({number(users[:8]), number(users[8:16])})
    always = (Interval(0, U64_MAX),)
    return MembershipVersion(
        conversation_id=conversation_id,
        version=0,
        digest=b"",
        control_seq=0,
        members=tuple([Member(user, always) for user in pair]),
    )


_Everyone = list[tuple[int, int, tuple[Interval, ...]]]


def _everyone(flat: Sequence[bytes], start: int) -> _Everyone:
    """(user, slot, intervals) of user8, slot4 (joined8 left8)* pairs, sorted by user."""
    rows: _Everyone = []
    for at in range(start, len(flat) - 1, 2):
        held = flat[at + 1]
        intervals = tuple(
            [
                Interval(number(held[i : i + 8]), number(held[i + 8 : i + 16]))
                for i in range(4, len(held), 16)
            ]
        )
        rows.append((number(flat[at]), number(held[:4]), intervals))
    rows.sort()
    return rows


def _members(everyone: _Everyone, bitmap: bytes) -> tuple[Member, ...]:
    slots = 8 * len(bitmap)
    return tuple(
        [
            Member(user, intervals)
            for user, slot, intervals in everyone
            if slot < slots and bitmap[slot >> 3] & _BITS[slot & 7]
        ]
    )


def encode_read_versions(request: ReadVersions) -> Call:
    """Exact versions by name."""
    keys, args = [INCARNATION_KEY], [b""]
    for shard, conversation_id, version, digest in request.names:
        keys += (
            b"ws:" + u32(shard),
            b"c:" + conversation_id,
            b"gm:" + conversation_id,
            b"gv:" + conversation_id,
        )
        args.append(u64(version) + (digest or EMPTY_DIGEST))
    return Call("read_versions", keys, args)


def decode_read_versions(request: ReadVersions, run_id: bytes, raw: Sequence[Any]) -> VersionsRead:
    """None: NotYet."""
    versions: list[MembershipVersion | None] = []
    for name, found in zip(request.names, raw[2::2], strict=True):
        _, conversation_id, version, digest = name
        if not found:
            versions.append(None)
        elif len(found) == 1:
            versions.append(_single_version(conversation_id, found[0]))
        else:
            named = found[-1]
            versions.append(
                MembershipVersion(
                    conversation_id=conversation_id,
                    version=version,
                    digest=digest,
                    control_seq=number(named[:8]),
                    members=_members(_everyone(found, 0), named[8:]),
                )
            )
    return VersionsRead(
        op=request.op,
        versions=tuple(versions),
        applied=tuple([number(applied) for applied in raw[1::2]]),
    )


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
