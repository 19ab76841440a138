"""Membership requests to script calls and back (pure; docs: pipeline §1.9, contract "Interval").

A version is a bitmap over the conversation's slots; who sits in a slot, and each one's intervals, is one hash.
"""

from collections.abc import Sequence
from typing import Any, Final

from qim.adapters.redis.codec_message import cutoff_of, intent_of, shard_keys
from qim.adapters.redis.layout import (
    EMPTY_DIGEST,
    INCARNATION_KEY,
    U64_MAX,
    VERSION,
    Call,
    marker_of,
    number,
    u32,
    u64,
)
from qim.core.contract.entities import (
    ConversationKind,
    Interval,
    Member,
    MemberHistoryRow,
    MembershipVersion,
)
from qim.core.ports.store_message import MembershipChange, MembershipWrite
from qim.core.ports.store_reads import MembershipRead, ReadMembership, ReadVersions, VersionsRead

_BITS: Final = tuple(1 << bit for bit in range(8))


def encode_change(request: MembershipChange) -> Call:
    """A membership control message and the version it makes."""
    item, write = request.item, request.membership
    conversation_id = item.conversation_id
    keys = shard_keys(u32(request.shard))
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
        intent_of(item, write.version),
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
        histories = tuple([MemberHistoryRow(m.user_id, ((0, U64_MAX),)) for m in version.members])
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
                MemberHistoryRow(user, tuple([(i.joined_at, i.left_at) for i in intervals]))
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
    """None: NotYet. The members of a conversation come with its first version that is there."""
    versions: list[MembershipVersion | None] = []
    everyone: dict[bytes, _Everyone] = {}
    for name, found in zip(request.names, raw[2::2], strict=True):
        _, conversation_id, version, digest = name
        if not found:
            versions.append(None)
        elif version == 0:
            versions.append(_single_version(conversation_id, found[0]))
        else:
            if conversation_id not in everyone:
                everyone[conversation_id] = _everyone(found, 0)
            versions.append(
                MembershipVersion(
                    conversation_id=conversation_id,
                    version=version,
                    digest=digest,
                    control_seq=number(found[-1][:8]),
                    members=_members(everyone[conversation_id], found[-1][8:]),
                )
            )
    return VersionsRead(
        op=request.op,
        versions=tuple(versions),
        applied=tuple([number(applied) for applied in raw[1::2]]),
    )
