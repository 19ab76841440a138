"""What the auditor is asked, what it reads and what it reports (pipeline.md §8)."""

from enum import StrEnum

from msgspec import Struct

from qim.core.ports.completion import Completion
from qim.core.ports.local import (
    DrainRequested,
    FreshEpochWanted,
    LeaseGone,
    LeaseHeld,
    Started,
)
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds
from qim.core.ports.observe import Observation
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.store_audit import (
    AdvanceCoverage,
    CoverageAdvanced,
    CoverageOpened,
    OpenCoverage,
)
from qim.core.ports.store_mailbox import (
    MailboxesRead,
    ProgressRead,
    ReadMailboxes,
    ReadProgress,
    ReadShardState,
    ShardStateRead,
)
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from qim.core.ports.store_source import FactsRead, ReadFacts, ReadSource, SourceRead


class AuditConfig(Struct, frozen=True, kw_only=True):
    """Bounds of one run. ``advance_coverage`` False leaves the facts alone (a second look at the same data).

    ``judged_recipients_max``: recipients looked at before other machines of the process get their turn.
    ``attempts_max``: of a read, and of looks at consumers that are behind. ``resets_max``: how often a run begins anew
    because the store became another incarnation under it.
    """

    shard_count: int
    outbox_partition_count: int
    window_records_max: int = 128
    judged_recipients_max: int = 2_000
    fetch_bytes_max: int = 1024 * 1024
    lookup_gap_max: int = 128
    reads_inflight_max: int = 32
    mailbox_page_max: int = 500
    mailbox_cache_entries_max: int = 1_000_000
    version_members_max: int = 200_000
    orphans_max: int = 1_000
    attempts_max: int = 5
    resets_max: int = 3
    retry_ms: int = 200
    read_timeout_ms: int = 10_000
    advance_coverage: bool = True


class AuditRequested(Struct, frozen=True, kw_only=True, gc=False):
    """Run an audit now; ``ticket`` comes back in AuditFinished."""

    ticket: int


class OrphanKind(StrEnum):
    """What is wrong with one message (pipeline.md §8)."""

    RECORD_WITHOUT_DISPATCH = "record_without_dispatch"
    DISPATCH_WITHOUT_RECORD = "dispatch_without_record"
    WRONG_SHARD_SET = "wrong_shard_set"
    WRONG_DIGEST = "wrong_digest"
    RECEIPT_MISSING = "receipt_missing"
    NOT_MATERIALISED = "not_materialised"
    DEAD_LETTERED = "dead_lettered"
    FACT_WITHOUT_RECORD = "fact_without_record"


class Orphan(Struct, frozen=True, kw_only=True, gc=False, order=True):
    """One finding. ``partition`` and ``offset`` are of the outbox, ``shard`` -1 or the mailbox shard concerned.

    Where the dispatch itself is wrong (its detail begins with "dispatch at"), ``offset`` is of that shard's dispatch log
    and ``partition`` the outbox partition it names, -1 if none.
    """

    kind: OrphanKind
    partition: int
    offset: int
    shard: int
    message_id: bytes
    detail: str


class Verdict(StrEnum):
    """CLEAN: everything in the covered ranges is whole. INCOMPLETE: no orphan found, but not all could be judged."""

    CLEAN = "CLEAN"
    ORPHANS = "ORPHANS"
    INCOMPLETE = "INCOMPLETE"


class CoveredRange(Struct, frozen=True, kw_only=True, gc=False):
    """Offsets [low, high) of one outbox partition that were judged whole or orphaned; ``records`` effective ones."""

    partition: int
    low: int
    high: int
    records: int


class AuditReport(Struct, frozen=True, kw_only=True):
    """``in_flight``: message_ids still pending, neither covered nor orphan. ``incomplete``: each range left out, and why."""

    verdict: Verdict
    covered: tuple[CoveredRange, ...]
    orphans: tuple[Orphan, ...]
    orphans_total: int
    in_flight: tuple[bytes, ...]
    incomplete: tuple[str, ...]
    records: int
    dispatches: int


class AuditFinished(Struct, frozen=True, kw_only=True):
    """The report of the run asked for."""

    ticket: int
    report: AuditReport


AuditEvent = (
    Started
    | LeaseHeld
    | LeaseGone
    | AuditRequested
    | EndsRead
    | Fetched
    | OutOfRange
    | SourceRead
    | FactsRead
    | VersionsRead
    | ShardStateRead
    | MailboxesRead
    | ProgressRead
    | CoverageOpened
    | CoverageAdvanced
    | LeaseRead
    | Completion
    | DrainRequested
)
AuditEffect = (
    ReadEnds
    | Fetch
    | ReadSource
    | ReadFacts
    | ReadVersions
    | ReadShardState
    | ReadMailboxes
    | ReadProgress
    | OpenCoverage
    | AdvanceCoverage
    | FreshEpochWanted
    | ReadLease
    | AuditFinished
    | Observation
)
