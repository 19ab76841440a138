"""What FanoutCoordinator is told, what it orders, and its limits (pipeline.md §2)."""

from msgspec import Struct

from qim.core.contract.params import DEFAULT
from qim.core.machine import Ms
from qim.core.ports.completion import Completion
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
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
from qim.core.ports.observe import Observation
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from qim.core.ports.store_source import CommitSource, OpenSource, SourceCommitted, SourceOpened


class FanoutConfig(Struct, frozen=True, kw_only=True):
    """Limits of one FanoutCoordinator. Windows and fetches are each partition's own, the rest the machine's."""

    shard_count: int
    fetch_records_max: int = DEFAULT.fanout_batch_max
    fetch_bytes_max: int = 1024 * 1024
    fetch_wait_ms: Ms = 1_000
    window_records_max: int = 2_048
    window_bytes_max: int = 8 * 1024 * 1024
    append_records_max: int = 512
    append_bytes_max: int = 1024 * 1024
    commit_records_max: int = 512
    version_names_max: int = 64
    version_members_max: int = 200_000
    receipts_grace_ms: Ms = 900_000
    """Receipts outlive their records by this much: longer than any audit runs."""
    inline_body_bytes_max: int = DEFAULT.inline_body_bytes_max
    inline_recipients_max: int = DEFAULT.inline_recipients_max
    retry_first_ms: Ms = 50
    retry_most_ms: Ms = 2_000


FanoutCompletion = (
    Appended
    | Fetched
    | SourceCommitted
    | VersionsRead
    | SourceOpened
    | EndsRead
    | LeaseRead
    | OutOfRange
    | AppendRefused
    | Completion
)
FanoutEvent = Started | LeaseHeld | LeaseGone | DrainRequested | FanoutCompletion
FanoutEffect = (
    OpenSource
    | CommitSource
    | ReadVersions
    | Append
    | Fetch
    | ReadEnds
    | ReadLease
    | FreshEpochWanted
    | Observation
)

VERSION_UNKNOWN = "version_unknown"
"""Violation: ``applied`` has passed a record and the version it names is still absent (pipeline.md §2)."""
POSITION_MISMATCH = "position_mismatch"
"""Violation: a stored position is not in this log; the partition stops (pipeline.md §7)."""
APPEND_REFUSED = "append_refused"
"""Violation: the log named a dispatch itself as unacceptable: our bug, the partition waits."""
