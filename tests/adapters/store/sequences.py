"""Random store requests over a world so small that they meet: few keys, conversations, versions, users, epochs."""

from typing import Any

from hypothesis import strategies as st

from qim.core.archived import MembershipStep, membership_after
from qim.core.contract.entities import NO_SOURCE, MembershipOp
from qim.core.ports import store_audit as audit
from qim.core.ports import store_history as history
from qim.core.ports import store_mailbox as mailbox
from qim.core.ports import store_message as message
from qim.core.ports import store_operator as operator
from qim.core.ports import store_reads as reads
from qim.core.ports import store_session as session
from qim.core.ports import store_source as source
from qim.core.ports.archive import ArchivedConversation
from qim.core.ports.log import Position
from tests.adapters.store.requests import (
    HOUR,
    MARKER,
    NOW,
    applied,
    digest_of,
    grouped,
    key,
    marked,
    mid,
    single,
    step,
)
from tests.adapters.store.servers import RUN_ID

BOUND = RUN_ID + b"/" + MARKER
SHARDS = st.integers(0, 1)
EPOCHS = st.sampled_from([2, 2, 2, 2, 3, 1, (1 << 60) + 1, 1 << 60])
INCARNATIONS = st.sampled_from([BOUND] * 12 + [RUN_ID + b"/other"])
CONVERSATIONS = st.sampled_from([b"\x00" * 16, b"\xff" * 16, b"\x00" * 15 + b"\xff"])
NUMBERS = st.integers(1, 12)
SEQS = st.integers(0, 9)
VERSIONS = st.integers(0, 4)
CLOCKS = st.sampled_from([NOW, NOW, NOW, NOW + 3 * HOUR, NOW + 3 * HOUR + 1, NOW + 5 * HOUR])
LIMITS = st.integers(0, 4)
OFFSETS = st.integers(0, 12)
USERS = st.integers(1, 6) | st.just((1 << 64) - 1)
DAYS = st.integers(20_000, 20_002)
WATERMARKS = st.integers(0, 6).map(lambda n: (1 << 53) + n)


@st.composite
def items(draw: st.DrawFn) -> message.ReserveItem:
    number, version = draw(NUMBERS), draw(VERSIONS)
    fields: dict[str, Any] = {
        "conversation_id": draw(CONVERSATIONS),
        "message_id": mid(draw(st.sampled_from([number, number, 50 + number]))),
        "not_after": NOW + draw(st.integers(0, 2)) * HOUR,
        "overlay": draw(st.none() | st.tuples(st.integers(0, 2), SEQS)),
    }
    if draw(st.booleans()):
        users = draw(st.sampled_from([(1, 2), (1, 2), None]))
        return single(number, single_users=users, **fields)
    return grouped(number, version, digest_of(version), **fields)


@st.composite
def writes(draw: st.DrawFn) -> message.MembershipWrite:
    version = draw(st.integers(1, 4))
    operation = (
        MembershipOp.CREATE
        if version == 1
        else draw(st.sampled_from([MembershipOp.ADD, MembershipOp.REMOVE, MembershipOp.LEAVE]))
    )
    users = tuple(draw(st.lists(USERS, min_size=1, max_size=12, unique=True)))
    return step(version, operation, users)


@st.composite
def mark_items(draw: st.DrawFn) -> message.MarkItem:
    return marked(draw(items()), draw(SEQS), draw(OFFSETS))


@st.composite
def applied_records(draw: st.DrawFn) -> message.AppliedRecord:
    write = draw(st.none() | writes())
    item = draw(items())
    return applied(item, draw(st.integers(1, 9)), draw(OFFSETS), write)


@st.composite
def changes(draw: st.DrawFn) -> message.MembershipChange:
    write = draw(writes())
    item = grouped(
        draw(NUMBERS),
        write.previous_version,
        write.previous_digest,
        conversation_id=draw(CONVERSATIONS),
    )
    return message.MembershipChange(
        op=1,
        shard=draw(SHARDS),
        epoch=draw(EPOCHS),
        incarnation=draw(INCARNATIONS),
        now_wall=draw(CLOCKS),
        item=item,
        membership=write,
    )


POSITIONS = st.builds(Position, st.sampled_from([b"", b"topic"]), OFFSETS, st.just(b"d" * 16))
MEMBERS = st.binary(max_size=40)


def tuples(strategy: st.SearchStrategy[Any], most: int = 4) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=most).map(tuple)


NAMES = st.tuples(SHARDS, CONVERSATIONS, VERSIONS).map(lambda n: (*n, digest_of(n[2])))
HISTORY_ITEMS = st.builds(
    reads.HistoryItem,
    conversation_id=CONVERSATIONS,
    low=st.integers(-1, 9),
    high=st.integers(0, 9) | st.just(1 << 64),
    newest_first=st.booleans(),
    limit=LIMITS,
    user_id=st.integers(0, 2),
    judged=tuples(SEQS),
)
OFFSET_ROWS = tuples(st.tuples(OFFSETS, st.binary(max_size=4)))
LANE_MOVES = st.lists(
    st.builds(mailbox.LaneMove, st.integers(0, 3), WATERMARKS, WATERMARKS),
    max_size=3,
    unique_by=lambda move: move.lane,
).map(tuple)
CLAIMS = st.builds(
    mailbox.Claim, NUMBERS.map(key), OFFSETS, st.sampled_from([0, 1, NO_SOURCE]), OFFSETS
)
TENANTS = st.sampled_from(["t", "t\x00", "", "ü"])
ROWS = st.builds(
    mailbox.MailboxRow, TENANTS, USERS, DAYS, WATERMARKS, st.binary(min_size=1, max_size=4)
)
READS = st.builds(
    mailbox.MailboxRead,
    TENANTS,
    USERS,
    st.integers(0, 3),
    WATERMARKS,
    WATERMARKS | st.just(0),
    LIMITS,
)
DEVICES = st.sampled_from([b"", b"d", b"\xff\x00"])
GATEWAYS = st.sampled_from(["g", "h"])
HOLDS = st.builds(
    mailbox.PresenceHold,
    TENANTS,
    USERS,
    DEVICES,
    st.integers(0, 2),
    st.sampled_from([NOW << 16, (NOW << 16) + 1, NOW + HOUR << 16]),
    st.integers(0, 3),
)


@st.composite
def archived_conversations(draw: st.DrawFn) -> ArchivedConversation:
    conversation_id, group = draw(CONVERSATIONS), draw(st.booleans())
    steps = [
        MembershipStep(
            version=version,
            digest=digest_of(version),
            control_seq=draw(st.integers(1, 9)),
            operation=MembershipOp.CREATE if version == 1 else draw(st.sampled_from(MembershipOp)),
            users=tuple(draw(st.lists(USERS, max_size=9, unique=True))),
        )
        for version in range(1, draw(st.integers(0, 4)) + 1)
    ]
    versions, everyone = membership_after(conversation_id, steps if group else ())
    return ArchivedConversation(
        conversation_id=conversation_id,
        conversation_kind=2 if group else 1,
        greatest_seq=draw(SEQS),
        last_activity_id=mid(draw(NUMBERS)),
        single_users=None if group else (1, 2),
        versions=versions,
        everyone=everyone,
        creator=1,
        name=draw(st.sampled_from(["", "ü"])),
        meta=draw(st.binary(max_size=3)),
        overlays=draw(tuples(st.tuples(SEQS, SEQS, st.integers(0, 2)))),
    )


PROJECTED_ROWS = st.builds(
    session.ProjectedRow,
    TENANTS,
    USERS,
    CONVERSATIONS,
    st.integers(0, 5).map(mid),
    SEQS,
    st.integers(0, 9).map(mid),
)
STATE_CHANGES = st.builds(
    session.StateChange,
    offset=OFFSETS,
    tenant_id=TENANTS,
    user_id=st.integers(1, 2),
    conversation_id=CONVERSATIONS,
    read_seq=SEQS,
    version=st.integers(0, 3),
    device_id=DEVICES,
    flags=st.integers(0, 7),
    value=st.binary(max_size=3),
)

_COMMON: dict[str, st.SearchStrategy[Any]] = {
    "op": st.just(1),
    "shard": SHARDS,
    "partition": SHARDS,
    "epoch": EPOCHS,
    "incarnation": INCARNATIONS,
    "now_wall": CLOCKS,
    "limit": LIMITS,
    "fresh_key": st.just(MARKER),
    "opener": st.sampled_from([b"", b"a" * 16, b"b" * 16]),
    "conversation_id": CONVERSATIONS,
    "tenant_id": TENANTS,
    "user_id": USERS,
    "device_id": DEVICES,
    "gateway": GATEWAYS,
    "ttl_ms": st.sampled_from([HOUR, 90_000]),
    "position": POSITIONS,
}
_OWN: dict[type, dict[str, st.SearchStrategy[Any]]] = {
    message.OpenShard: {},
    message.ApplyOutbox: {
        "applied_from": st.integers(0, 2),
        "applied_to": OFFSETS,
        "filter_epoch": EPOCHS,
        "records": tuples(applied_records()),
    },
    message.ReserveAndRecord: {"items": tuples(items(), 5)},
    message.LookupCommits: {"dedupe_keys": tuples(NUMBERS.map(key))},
    message.MarkCommitted: {"applied_to": OFFSETS, "items": tuples(mark_items(), 2)},
    message.MarkRefused: {"items": tuples(mark_items(), 2)},
    message.ReadPending: {"after": st.just(b"") | st.binary(min_size=1, max_size=40)},
    reads.ReadMembership: {},
    reads.ReadVersions: {"names": tuples(NAMES)},
    reads.ReadHistory: {"items": tuples(HISTORY_ITEMS), "bytes_max": st.integers(0, 900)},
    reads.ReadBodies: {"names": tuples(st.tuples(CONVERSATIONS, SEQS, NUMBERS.map(mid)))},
    message.WriteHeads: {
        "heads": tuples(st.tuples(CONVERSATIONS, SEQS, NUMBERS.map(mid), NUMBERS.map(mid)))
    },
    source.OpenSource: {},
    source.CommitSource: {
        "from_offset": OFFSETS,
        "to": POSITIONS,
        "filter_epoch": EPOCHS,
        "receipts": OFFSET_ROWS,
        "dead_letters": OFFSET_ROWS,
        "log_start": st.just(0) | OFFSETS,
    },
    source.ReadSource: {"low": OFFSETS, "high": OFFSETS},
    source.ReadFacts: {"after": st.just(b"") | NUMBERS.map(mid)},
    audit.OpenCoverage: {},
    audit.AdvanceCoverage: {"covered_to": OFFSETS, "drop_facts": tuples(NUMBERS.map(mid))},
    history.OpenArchive: {},
    history.CommitArchive: {"from_offset": OFFSETS, "to": POSITIONS, "filter_epoch": EPOCHS},
    history.ReadArchivePosition: {},
    history.TrimHot: {"before_wall": st.sampled_from([NOW + 1, NOW, 0])},
    history.RestoreConversations: {
        "conversations": tuples(archived_conversations(), 3),
        "applied_to": OFFSETS,
    },
    history.ReadOverlays: {"names": tuples(st.tuples(SHARDS, CONVERSATIONS, SEQS))},
    mailbox.OpenMailbox: {"initial": WATERMARKS},
    mailbox.ClaimDispatches: {"claims": tuples(CLAIMS)},
    mailbox.AppendEntries: {
        "base_from": WATERMARKS,
        "base_to": WATERMARKS,
        "moves": LANE_MOVES,
        "rows": tuples(ROWS, 8),
        "days": tuples(st.tuples(DAYS, OFFSETS), 2),
    },
    mailbox.FinishDispatches: {
        "items": tuples(
            st.builds(
                mailbox.Progress,
                NUMBERS.map(key),
                OFFSETS,
                st.integers(0, 3),
                st.sampled_from([b"d" * 16, b"e" * 16]),
            )
        )
    },
    mailbox.ReadProgress: {"dispatch_ids": tuples(NUMBERS.map(key))},
    mailbox.RaiseFloor: {"source_partition": SHARDS, "floor": OFFSETS},
    mailbox.ReadMailboxes: {"reads": tuples(READS)},
    mailbox.TrimMailbox: {"day": DAYS, "to": WATERMARKS},
    mailbox.EnterPresence: {"conn": st.integers(0, 2), "attempt": st.integers(0, 3)},
    mailbox.RefreshPresence: {"holds": tuples(HOLDS)},
    mailbox.LeavePresence: {"session_epoch": st.sampled_from([NOW << 16, (NOW << 16) + 1])},
    mailbox.ReadPresence: {"users": tuples(st.tuples(TENANTS, USERS))},
    mailbox.ReadShardState: {},
    session.OpenSession: {},
    session.ProjectDispatches: {
        "from_offset": OFFSETS,
        "to": POSITIONS,
        "rows": tuples(PROJECTED_ROWS, 6),
    },
    session.ApplyStates: {
        "from_offset": OFFSETS,
        "to": POSITIONS,
        "changes": tuples(STATE_CHANGES, 6),
    },
    session.ReadSessions: {},
    session.ReadStates: {"since_offset": st.integers(-1, 12)},
    session.ReadMarks: {"users": tuples(st.tuples(SHARDS, TENANTS, USERS))},
    session.NoteDelivered: {"items": tuples(st.tuples(TENANTS, USERS, DEVICES, WATERMARKS))},
    session.ReadDelivered: {},
    operator.AmendSource: {
        "from_offset": OFFSETS,
        "to": POSITIONS,
        "filter_epoch": EPOCHS,
        "drop_from": st.integers(-1, 12),
        "drop_to": OFFSETS,
        "receipts": OFFSET_ROWS,
        "lost": st.tuples(OFFSETS, OFFSETS),
    },
    operator.ReadHot: {"low": OFFSETS},
    operator.BumpShard: {
        "from_watermark": WATERMARKS,
        "to_watermark": WATERMARKS,
        "void_from": OFFSETS,
        "redo": tuples(st.tuples(SHARDS, OFFSETS), 2),
        "unsettled": tuples(st.tuples(SHARDS, OFFSETS), 2),
        "promised": tuples(st.tuples(SHARDS, OFFSETS), 2),
    },
    operator.RestartProjection: {"shard_epoch": st.integers(1, 3)},
}
WRITER_KINDS = (
    message.ReserveAndRecord,
    message.MarkCommitted,
    message.ApplyOutbox,
    message.MembershipChange,
)
MAILBOX_KINDS = (mailbox.AppendEntries, mailbox.ClaimDispatches, mailbox.ReadMailboxes)
SESSION_KINDS = (
    session.ProjectDispatches,
    session.ApplyStates,
    session.ApplyStates,
    session.ReadSessions,
    session.ReadStates,
    session.ReadMarks,
    session.NoteDelivered,
    session.ReadDelivered,
)


def requests_of(kind: type) -> st.SearchStrategy[Any]:
    """Random requests of one type."""
    if kind is message.MembershipChange:
        return changes()
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    fields = {name: _COMMON[name] for name in names if name in _COMMON} | _OWN[kind]
    return st.builds(kind, **fields)


KINDS = (*_OWN, message.MembershipChange)
