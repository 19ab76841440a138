"""What the Writer hears, orders and is bounded by: its event and effect unions, its limits, its requests as data."""

from typing import Final

from msgspec import Struct

from qim.core.contract.params import DEFAULT, MINUTE_MS
from qim.core.ports.archive import (
    ArchivedConversationsRead,
    ArchiveRead,
    ReadArchive,
    ReadArchivedConversations,
)
from qim.core.ports.completion import Completion, Failed, Fenced, StoreReset, Unknown
from qim.core.ports.local import (
    DrainRequested,
    FreshEpochWanted,
    LeaseGone,
    LeaseHeld,
    Started,
)
from qim.core.ports.log import (
    Append,
    Appended,
    AppendRefused,
    EndsRead,
    Fetch,
    Fetched,
    OutOfRange,
    ReadEnds,
)
from qim.core.ports.moderation import AskVerdict, FailPolicy, NotifySent, VerdictGiven
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Observation
from qim.core.ports.registry import BarrierRegistered, LeaseRead, ReadLease, RegisterBarrier
from qim.core.ports.store_history import (
    ConversationsRestored,
    HotTrimmed,
    RestoreConversations,
    TrimHot,
)
from qim.core.ports.store_message import (
    ApplyOutbox,
    CommitsFound,
    HeadsWritten,
    LookupCommits,
    MarkCommitted,
    MarkedCommitted,
    MarkedRefused,
    MarkLost,
    MarkRefused,
    MembershipChange,
    OpenShard,
    OutboxApplied,
    PendingRead,
    ReadPending,
    ReserveAndRecord,
    Reserved,
    ShardOpened,
    WriteHeads,
)
from qim.core.ports.store_reads import HistoryRead, MembershipRead, ReadHistory, ReadMembership
from qim.core.retention import RetentionPolicy

__all__ = [
    "Answer",
    "Completion",
    "Failed",
    "Fenced",
    "Question",
    "StoreReset",
    "Unknown",
    "WriterConfig",
    "WriterEffect",
    "WriterEvent",
]

Question = (
    OpenShard
    | ApplyOutbox
    | ReserveAndRecord
    | MembershipChange
    | LookupCommits
    | MarkCommitted
    | MarkRefused
    | ReadPending
    | ReadMembership
    | ReadHistory
    | WriteHeads
    | TrimHot
    | RestoreConversations
    | ReadArchive
    | ReadArchivedConversations
    | Append
    | Fetch
    | ReadEnds
    | ReadLease
    | RegisterBarrier
    | AskVerdict
)
"""Effects with an op: the driver owes one answer each."""

Answer = (
    Reserved
    | Appended
    | MarkedCommitted
    | CommitsFound
    | MembershipRead
    | HistoryRead
    | HeadsWritten
    | HotTrimmed
    | ConversationsRestored
    | ArchiveRead
    | ArchivedConversationsRead
    | ShardOpened
    | OutboxApplied
    | PendingRead
    | MarkedRefused
    | MarkLost
    | AppendRefused
    | EndsRead
    | Fetched
    | OutOfRange
    | LeaseRead
    | BarrierRegistered
    | VerdictGiven
)
"""Typed results; beside them stand ports/completion.py's four."""

WriterEvent = Received | Answer | Completion | LeaseHeld | LeaseGone | Started | DrainRequested
WriterEffect = Question | Send | NotifySent | FreshEpochWanted | Observation

PARTITION_COUNT: Final = DEFAULT.outbox_partition_count


class WriterConfig(Struct, frozen=True, kw_only=True):
    """Limits with their unit last; contract.md's parameters by their own names.

    ``instance``/``instance_epoch`` go into message_ids until a LeaseHeld of Role.INSTANCE brings others. Where one is to
    come (``instance_leased``) no shard is opened before it: an id made under the epoch of a process's last life may be one
    that life made. A rate of 0 per second means: no limit. Byte limits count bodies and records, not Python objects.
    """

    instance: int = 0
    instance_epoch: int = 1
    instance_leased: bool = False
    outbox_partition_count: int = PARTITION_COUNT
    # contract.md, Parameters
    not_after_max_ms: int = DEFAULT.not_after_ms + DEFAULT.not_after_slack_ms
    clock_ahead_max_ms: int = DEFAULT.clock_ahead_max_ms
    group_members_max: int = DEFAULT.group_members_max
    membership_broadcast_max: int = DEFAULT.membership_broadcast_max
    explicit_recipients_max: int = DEFAULT.explicit_recipients_max
    body_bytes_max: int = DEFAULT.body_bytes_max
    custom_type_bytes_max: int = DEFAULT.custom_type_bytes_max
    batch_bytes_max: int = DEFAULT.batch_bytes_max
    page_default: int = DEFAULT.page_default
    page_max: int = DEFAULT.page_max
    refreeze_attempts_max: int = DEFAULT.refreeze_attempts_max
    group_name_bytes_max: int = 256
    group_meta_bytes_max: int = 4096
    # history: ``tiered`` says that an archive takes over what is trimmed (message_store_backend)
    tiered: bool = False
    hot_window_ms: int = DEFAULT.hot_window_ms
    retention: RetentionPolicy = RetentionPolicy()
    recall_window_ms: int = DEFAULT.recall_window_ms
    unread_window_max: int = DEFAULT.unread_window_max
    # moderation: whether somebody is asked before a send and what holds when nobody can be; who is told afterwards
    before_send: FailPolicy = FailPolicy.OFF
    after_send: bool = False
    asks_inflight_max: int = 64
    # admission: L1 (the gateway's, checked again), L2, L3
    device_rate_per_s: int = 0
    device_burst_max: int = 100
    conversation_rate_per_s: int = 0
    conversation_burst_max: int = 100
    tenant_rate_per_s: int = 0
    tenant_burst_max: int = 1000
    admission_keys_max: int = 65_536
    # batches
    reserve_items_max: int = 256
    reserve_bytes_max: int = 2 * 1024 * 1024
    append_records_max: int = 512
    append_bytes_max: int = 900_000
    record_bytes_max: int = 512 * 1024
    mark_items_max: int = 512
    lookup_keys_max: int = 512
    head_items_max: int = 256
    apply_records_max: int = 256
    apply_args_max: int = 6000
    apply_bytes_max: int = 4 * 1024 * 1024
    fetch_records_max: int = 512
    fetch_bytes_max: int = 4 * 1024 * 1024
    pending_page_max: int = 128
    history_rows_max: int = 64
    history_items_max: int = 64
    history_bytes_max: int = 2 * 1024 * 1024
    summary_rows_first: int = 4
    summary_items_max: int = 1024
    trim_rows_max: int = 256
    restore_page_max: int = 64
    # bounds
    commits_max: int = 16_384
    commit_bytes_max: int = 64 * 1024 * 1024
    unappended_max: int = 2048
    waiting_requests_max: int = 32_768
    waiters_max: int = 16
    queries_max: int = 1024
    reads_inflight_max: int = 4
    membership_loads_max: int = 256
    cached_conversations_max: int = 16_384
    cached_members_max: int = 500_000
    heads_max: int = 8192
    # time
    request_timeout_ms: int = 10_000
    retry_after_ms: int = 500
    retry_delay_ms: int = 20
    retry_delay_max_ms: int = 2000
    unavailable_after_attempts: int = 8
    clock_probe_ms: int = 5000
    trim_every_ms: int = MINUTE_MS
    trim_pause_ms: int = 200
    reserve_settle_ms: int = 10 * MINUTE_MS
