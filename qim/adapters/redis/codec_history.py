"""Requests around tiered history to script calls and back (pure; docs: pipeline §5, §1.8): position, trim, restore, overlays."""

from collections.abc import Sequence
from typing import Any, Final

from qim.adapters.redis.layout import (
    EMPTY_DIGEST,
    INCARNATION_KEY,
    VERSION,
    Call,
    MalformedReply,
    marker_of,
    number,
    pack_position,
    small,
    u32,
    u64,
    unpack_position,
)
from qim.core.ports.archive import ArchivedConversation
from qim.core.ports.store_history import (
    ArchiveCommitted,
    ArchiveOpened,
    ArchivePositionRead,
    CommitArchive,
    ConversationsRestored,
    HotTrimmed,
    OpenArchive,
    OverlaysRead,
    ReadArchivePosition,
    ReadOverlays,
    RestoreConversations,
    TrimHot,
)

_NO_SEQ: Final = u64(0)


def encode_open_archive(request: OpenArchive) -> Call:
    """The archiver's Open."""
    assert request.fresh_key
    return Call(
        "open_archive",
        [INCARNATION_KEY, b"as:" + u32(request.partition)],
        [u64(request.epoch), request.fresh_key, request.opener],
    )


def decode_open_archive(request: OpenArchive, run_id: bytes, raw: Sequence[Any]) -> ArchiveOpened:
    """None: start at the log's start."""
    return ArchiveOpened(
        op=request.op,
        incarnation=run_id + b"/" + raw[1],
        position=unpack_position(raw[2]),
        filter_epoch=number(raw[3]),
    )


def encode_commit_archive(request: CommitArchive) -> Call:
    """Position and watermark."""
    return Call(
        "commit_archive",
        [INCARNATION_KEY, b"as:" + u32(request.partition)],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            u64(request.from_offset),
            pack_position(request.to),
            u64(request.filter_epoch),
        ],
    )


def decode_commit_archive(
    request: CommitArchive, run_id: bytes, raw: Sequence[Any]
) -> ArchiveCommitted:
    """Done."""
    return ArchiveCommitted(op=request.op)


def encode_archive_position(request: ReadArchivePosition) -> Call:
    """An unfenced look."""
    return Call("read_archive_position", [INCARNATION_KEY, b"as:" + u32(request.partition)], [b""])


def decode_archive_position(
    request: ReadArchivePosition, run_id: bytes, raw: Sequence[Any]
) -> ArchivePositionRead:
    """0: no position stands."""
    return ArchivePositionRead(op=request.op, offset=number(raw[1]))


def encode_trim_hot(request: TrimHot) -> Call:
    """Leading hot rows that are archived and old."""
    shard = u32(request.shard)
    return Call(
        "trim_hot",
        [INCARNATION_KEY, b"ws:" + shard, b"as:" + shard, b"ho:" + shard],
        [
            marker_of(request.incarnation),
            u64(request.epoch),
            u64(max(0, request.before_wall)),
            small(request.limit),
            small(request.limit + 1),
        ],
    )


def decode_trim_hot(request: TrimHot, run_id: bytes, raw: Sequence[Any]) -> HotTrimmed:
    """How many rows went."""
    return HotTrimmed(op=request.op, removed=raw[1], more=raw[2] == b"1")


def encode_restore(request: RestoreConversations) -> Call:
    """What the archive keeps of some conversations."""
    keys = [INCARNATION_KEY, b"ws:" + u32(request.shard)]
    args = [
        marker_of(request.incarnation),
        u64(request.epoch),
        u64(request.applied_to) if request.applied_to else b"",
    ]
    for conversation in request.conversations:
        conversation_id = conversation.conversation_id
        keys += (b"c:" + conversation_id, b"gm:" + conversation_id, b"gv:" + conversation_id)
        args += _conversation_args(conversation)
    return Call("restore_conversations", keys, args)


def _conversation_args(conversation: ArchivedConversation) -> list[bytes]:
    assert len(conversation.conversation_id) == len(conversation.last_activity_id) == 16
    users, latest = conversation.single_users, b""
    if users is not None:
        latest = VERSION.pack(conversation.conversation_kind, 0, EMPTY_DIGEST) + _NO_SEQ
    elif conversation.versions:
        newest = max(conversation.versions, key=lambda version: version.version)
        verdict = VERSION.pack(conversation.conversation_kind, newest.version, newest.digest)
        latest = verdict + u64(newest.control_seq)
    return [
        conversation.conversation_id,
        u64(conversation.greatest_seq) + conversation.last_activity_id,
        b"" if users is None else u64(users[0]) + u64(users[1]),
        latest,
        _versions(conversation),
        b"".join(
            [
                u64(row.user_id)
                + u32(16 * len(row.intervals))
                + b"".join([u64(joined) + u64(left) for joined, left in row.intervals])
                for row in conversation.everyone
            ]
        ),
        u64(conversation.creator),
        conversation.name.encode(),
        conversation.meta,
        b"".join(
            [u64(user) + u64(target) + u64(seq) for target, seq, user in conversation.overlays]
        ),
    ]


def _versions(conversation: ArchivedConversation) -> bytes:
    """A bit a member: its index among everyone is the slot it gets in an empty store."""
    index = {row.user_id: at for at, row in enumerate(conversation.everyone)}
    parts: list[bytes] = []
    for version in conversation.versions:
        assert len(version.digest) == 16
        places = [index[member.user_id] for member in version.members]
        bitmap = bytearray((max(places, default=-1) >> 3) + 1)
        for place in places:
            bitmap[place >> 3] |= 1 << (place & 7)
        parts.append(
            u64(version.version)
            + version.digest
            + u64(version.control_seq)
            + u32(len(bitmap))
            + bytes(bitmap)
        )
    return b"".join(parts)


def decode_restore(
    request: RestoreConversations, run_id: bytes, raw: Sequence[Any]
) -> ConversationsRestored:
    """Done."""
    return ConversationsRestored(op=request.op)


def encode_overlays(request: ReadOverlays) -> Call:
    """Recalls by coordinates."""
    shards = _shards_named(request)
    keys = [INCARNATION_KEY, *(b"ws:" + u32(shard) for shard in shards)]
    args = [b"", small(len(shards))]
    for shard, conversation_id, seq in request.names:
        keys += (b"wo:" + u32(shard), b"ov:" + conversation_id)
        args.append(conversation_id + u64(seq))
    return Call("read_overlays", keys, args)


def decode_overlays(request: ReadOverlays, run_id: bytes, raw: Sequence[Any]) -> OverlaysRead:
    """One a name; None where the shard is not known to be whole in the run that answers.

    A writer from before decision 0028 marked it whole under the run_id alone: mailboxes are upgraded before writers.
    """
    shards = _shards_named(request)
    if len(raw) != 1 + len(shards) + len(request.names):
        raise MalformedReply(f"ReadOverlays: {len(raw) - 1} answers to {len(request.names)}")
    names = (run_id, run_id.partition(b".")[0])
    whole = {shard: mark in names for shard, mark in zip(shards, raw[1:], strict=False)}
    recalled = [
        number(seq) if whole[name[0]] else None
        for name, seq in zip(request.names, raw[1 + len(shards) :], strict=True)
    ]
    return OverlaysRead(op=request.op, recalled=tuple(recalled))


def _shards_named(request: ReadOverlays) -> list[int]:
    """Each once, in the order of the names."""
    return list(dict.fromkeys([shard for shard, _, _ in request.names]))
