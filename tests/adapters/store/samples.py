"""One request of every type, bound to a marked keyspace: for rules that hold for all of them."""

from typing import Any, get_args

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
from qim.core.ports.store import StoreRequest
from tests.adapters.store.requests import (
    GROUP,
    MARKER,
    NOW,
    SINGLE,
    applied,
    digest_of,
    grouped,
    key,
    marked,
    mid,
    row,
    single,
    step,
)

POSITION = Position(b"topic", 9, b"d" * 16)
ARCHIVED = ArchivedConversation(
    conversation_id=SINGLE,
    conversation_kind=1,
    greatest_seq=9,
    last_activity_id=mid(9),
    single_users=(1, 2),
    versions=(),
    everyone=(),
    creator=0,
    name="",
    meta=b"",
    overlays=((1, 2, 0),),
)
_OWN: dict[type, dict[str, Any]] = {
    message.OpenShard: {"fresh_key": MARKER},
    message.ApplyOutbox: {
        "applied_from": 0,
        "applied_to": 5,
        "filter_epoch": 2,
        "records": (applied(single(5), 1, 4),),
    },
    message.ReserveAndRecord: {"items": (single(6),)},
    message.MembershipChange: {
        "item": grouped(1, 0, b""),
        "membership": step(1, MembershipOp.CREATE, (1, 2)),
    },
    message.LookupCommits: {"dedupe_keys": (key(5),)},
    message.MarkCommitted: {"applied_to": 9, "items": (marked(single(5), 1, 8),)},
    message.MarkRefused: {"items": (marked(single(5), 1, 8),)},
    message.ReadPending: {"after": b"", "limit": 5},
    reads.ReadMembership: {"conversation_id": GROUP},
    reads.ReadVersions: {"names": ((3, GROUP, 1, digest_of(1)),)},
    reads.ReadHistory: {
        "items": (
            reads.HistoryItem(
                conversation_id=SINGLE, low=-1, high=9, newest_first=True, limit=3, user_id=1
            ),
        )
    },
    reads.ReadBodies: {"names": ((SINGLE, 1, mid(5)),)},
    message.WriteHeads: {"heads": ((SINGLE, 3, mid(7), mid(6)),)},
    source.OpenSource: {"partition": 3, "fresh_key": MARKER},
    source.CommitSource: {
        "partition": 3,
        "from_offset": 0,
        "to": POSITION,
        "filter_epoch": 1,
        "receipts": ((3, b"r"),),
        "dead_letters": ((4, b"x"),),
    },
    source.ReadSource: {"partition": 3, "low": 0, "high": 9, "limit": 5},
    source.ReadFacts: {"after": b"", "limit": 5},
    audit.OpenCoverage: {"partition": 3, "fresh_key": MARKER},
    audit.AdvanceCoverage: {"partition": 3, "covered_to": 1, "drop_facts": (mid(5),)},
    history.OpenArchive: {"partition": 3, "fresh_key": MARKER},
    history.CommitArchive: {
        "partition": 3,
        "from_offset": 0,
        "to": POSITION,
        "filter_epoch": 1,
    },
    history.ReadArchivePosition: {"partition": 3},
    history.TrimHot: {"before_wall": NOW, "limit": 5},
    history.RestoreConversations: {"conversations": (ARCHIVED,), "applied_to": 9},
    history.ReadOverlays: {"names": ((3, SINGLE, 1),)},
    mailbox.OpenMailbox: {"fresh_key": MARKER, "initial": 99},
    mailbox.ClaimDispatches: {"claims": (mailbox.Claim(key(1), 100, NO_SOURCE, 0),)},
    mailbox.AppendEntries: {
        "base_from": 99,
        "base_to": 100,
        "moves": (),
        "rows": (row(1, 100),),
        "days": ((20_000, 100),),
        "position": POSITION,
    },
    mailbox.FinishDispatches: {"items": (mailbox.Progress(key(1), 100, 1, b"d" * 16),)},
    mailbox.ReadProgress: {"dispatch_ids": (key(1),)},
    mailbox.ReadProgress: {"dispatch_ids": (key(1),)},
    mailbox.RaiseFloor: {"source_partition": 1, "floor": 5, "limit": 5},
    mailbox.ReadMailboxes: {"reads": (mailbox.MailboxRead("t", 1, 0, 99, 0, 5),)},
    mailbox.TrimMailbox: {"day": 20_000, "to": 99, "limit": 5},
    mailbox.EnterPresence: {
        "tenant_id": "t",
        "user_id": 1,
        "device_id": b"d",
        "gateway": "g",
        "conn": 1,
        "attempt": 1,
        "now_wall": NOW,
        "ttl_ms": 9,
    },
    mailbox.RefreshPresence: {
        "gateway": "g",
        "now_wall": NOW,
        "ttl_ms": 9,
        "holds": (mailbox.PresenceHold("t", 1, b"d", 1, 1, 1),),
    },
    mailbox.LeavePresence: {"tenant_id": "t", "user_id": 1, "device_id": b"d", "session_epoch": 1},
    mailbox.ReadPresence: {"now_wall": NOW, "users": (("t", 1),)},
    mailbox.ReadShardState: {},
    session.OpenSession: {"fresh_key": MARKER},
    session.ProjectDispatches: {
        "from_offset": 0,
        "to": POSITION,
        "rows": (session.ProjectedRow("t", 1, SINGLE, mid(5), 1, mid(5)),),
    },
    session.ApplyStates: {
        "from_offset": 0,
        "to": POSITION,
        "changes": (
            session.StateChange(
                offset=3,
                tenant_id="t",
                user_id=1,
                conversation_id=SINGLE,
                read_seq=4,
                version=0,
                device_id=b"",
                flags=0,
                value=b"",
            ),
        ),
    },
    session.ReadSessions: {"tenant_id": "t", "user_id": 1},
    session.ReadStates: {"tenant_id": "t", "user_id": 1, "since_offset": -1, "limit": 5},
    session.ReadMarks: {"conversation_id": SINGLE, "users": ((3, "t", 1),)},
    session.NoteDelivered: {"items": (("t", 1, b"d", 9),)},
    session.ReadDelivered: {"tenant_id": "t", "user_id": 1},
    operator.AmendSource: {
        "partition": 3,
        "from_offset": 9,
        "to": POSITION,
        "filter_epoch": 1,
        "drop_from": -1,
        "receipts": ((3, b"r"),),
    },
    operator.ReadHot: {"low": 0, "limit": 5},
    operator.BumpShard: {
        "from_watermark": 99,
        "to_watermark": (2 << 48) - 1,
        "void_from": 100,
        "redo": ((1, 5),),
        "unsettled": ((1, 6),),
        "promised": ((1, 9),),
    },
    operator.RestartProjection: {"shard_epoch": 2},
}
_COMMON: dict[str, Any] = {
    "op": 77,
    "shard": 3,
    "epoch": 7,
    "incarnation": b"run/" + MARKER,
    "now_wall": NOW,
}
KINDS: tuple[type, ...] = get_args(StoreRequest)
OPENS = (
    message.OpenShard,
    source.OpenSource,
    mailbox.OpenMailbox,
    history.OpenArchive,
    audit.OpenCoverage,
    session.OpenSession,
)
FENCED = tuple(kind for kind in KINDS if "epoch" in kind.__struct_fields__)  # type: ignore[attr-defined]
BOUND = tuple(kind for kind in KINDS if "incarnation" in kind.__struct_fields__)  # type: ignore[attr-defined]


def sample(kind: type, **fields: Any) -> Any:
    """A request of ``kind``."""
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    common = {name: value for name, value in _COMMON.items() if name in names}
    return kind(**common | _OWN[kind] | fields)
