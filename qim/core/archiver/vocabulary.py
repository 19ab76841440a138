"""What HistoryArchiver is told, what it orders, and its limits (pipeline.md §5)."""

from typing import Final

from msgspec import Struct

from qim.core.contract.params import DEFAULT
from qim.core.machine import Ms
from qim.core.ports.archive import (
    ArchivedConversationsRead,
    ArchiveExpired,
    ArchiveWritten,
    ExpireArchive,
    ReadArchivedConversations,
    WriteArchive,
)
from qim.core.ports.completion import Completion
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds
from qim.core.ports.observe import Observation
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.store_history import ArchiveCommitted, ArchiveOpened, CommitArchive, OpenArchive
from qim.core.retention import RetentionPolicy

BATCH_ROWS_MOST: Final = 4_096
"""The widest batch a configuration may ask for (contract.md, archiver batch)."""


class ArchiverConfig(Struct, frozen=True, kw_only=True):
    """Limits of one HistoryArchiver. Windows, fetches and batches are each partition's own.

    ``clock_apart_max_ms``: no row is expired while wall clock and the log's newest append time differ by more.
    """

    retention: RetentionPolicy = RetentionPolicy()
    batch_rows_max: int = DEFAULT.archiver_batch_max
    batch_bytes_max: int = 2 * 1024 * 1024
    fetch_records_max: int = 512
    fetch_bytes_max: int = 1024 * 1024
    fetch_wait_ms: Ms = 1_000
    window_records_max: int = 2_048
    window_bytes_max: int = 8 * 1024 * 1024
    expire_every_ms: Ms = 60_000
    expire_rows_max: int = 1_000
    clock_apart_max_ms: Ms = 24 * 3_600_000
    retry_first_ms: Ms = 50
    retry_most_ms: Ms = 2_000


ArchiverCompletion = (
    Fetched
    | ArchiveWritten
    | ArchiveCommitted
    | ArchiveOpened
    | ArchivedConversationsRead
    | ArchiveExpired
    | EndsRead
    | LeaseRead
    | OutOfRange
    | Completion
)
ArchiverEvent = Started | LeaseHeld | LeaseGone | DrainRequested | ArchiverCompletion
ArchiverEffect = (
    OpenArchive
    | CommitArchive
    | WriteArchive
    | ReadArchivedConversations
    | ExpireArchive
    | Fetch
    | ReadEnds
    | ReadLease
    | FreshEpochWanted
    | Observation
)

POSITION_MISMATCH: Final = "position_mismatch"
"""Violation: a stored position is not in this log; the partition stops (pipeline.md §7)."""
ARCHIVE_HOLE: Final = "archive_hole"
"""Violation: the log no longer holds what the archive still lacks; the partition stops rather than claim to be whole."""
SEQ_REUSED: Final = "conversation_seq_reused"
"""Violation: one conversation_seq holds two messages (pipeline.md §5); both rows stand."""
