"""What MailboxNode is told, what it orders, and its limits (pipeline.md §3)."""

from msgspec import Struct

from qim.core.contract.params import DAY_MS
from qim.core.machine import Ms
from qim.core.ports.archive import ArchiveBodiesRead, ReadArchiveBodies
from qim.core.ports.completion import Completion
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Observation
from qim.core.ports.store_history import OverlaysRead, ReadOverlays
from qim.core.ports.store_mailbox import (
    AppendEntries,
    ClaimDispatches,
    Claimed,
    DispatchesFinished,
    EntriesAppended,
    FinishDispatches,
    FloorRaised,
    MailboxesRead,
    MailboxOpened,
    MailboxTrimmed,
    OpenMailbox,
    PresenceRead,
    RaiseFloor,
    ReadMailboxes,
    ReadPresence,
    TrimMailbox,
    Trimmed,
)
from qim.core.ports.store_reads import BodiesRead, ReadBodies, ReadVersions, VersionsRead
from qim.core.ports.store_session import DeliveredNoted, NoteDelivered
from qim.core.retention import RetentionPolicy


class MailboxConfig(Struct, frozen=True, kw_only=True):
    """Limits of one MailboxNode. Windows and fetches are each shard's own, the rest the machine's.

    ``secret`` signs cursors and is the same on every node. ``shard_epoch`` is that of a shard without stored state.
    """

    shard_count: int
    outbox_partition_count: int
    secret: bytes
    shard_epoch: int = 1
    fetch_records_max: int = 512
    fetch_bytes_max: int = 1024 * 1024
    fetch_wait_ms: Ms = 1_000
    window_records_max: int = 2_048
    window_bytes_max: int = 8 * 1024 * 1024
    claims_max: int = 512
    rows_max: int = 1_000
    finish_items_max: int = 512
    finish_queue_max: int = 8_192
    floor_ms: Ms = 1_000
    floor_claims_max: int = 1_000
    trim_ms: Ms = 60_000
    trim_keys_max: int = 1_000
    mailbox_retention_ms: Ms = 30 * DAY_MS
    mailbox_day_ms: Ms = DAY_MS
    read_back_ms: Ms = 7 * DAY_MS
    retention: RetentionPolicy = RetentionPolicy()
    version_names_max: int = 64
    version_members_max: int = 200_000
    page_default: int = 100
    page_max: int = 500
    batch_bytes_max: int = 256 * 1024
    pulls_inflight_max: int = 512
    reads_max: int = 64
    bodies_max: int = 32
    overlay_names_max: int = 1_500
    archived: bool = False
    """Bodies the hot store trimmed are in an archive (message_store_backend tiered)."""
    body_cache_bytes_max: int = 32 * 1024 * 1024
    delivered_ms: Ms = 1_000
    delivered_items_max: int = 512
    delivered_known_max: int = 4_096
    push_users_max: int = 4_096
    presence_users_max: int = 256
    retry_first_ms: Ms = 50
    retry_most_ms: Ms = 2_000
    retry_after_ms: Ms = 200


ShardReply = (
    EntriesAppended
    | Claimed
    | Fetched
    | DispatchesFinished
    | MailboxOpened
    | EndsRead
    | FloorRaised
    | MailboxTrimmed
    | OutOfRange
)
MailboxCompletion = (
    ShardReply
    | MailboxesRead
    | OverlaysRead
    | BodiesRead
    | ArchiveBodiesRead
    | PresenceRead
    | DeliveredNoted
    | VersionsRead
    | Trimmed
    | Completion
)
MailboxEvent = Started | LeaseHeld | LeaseGone | DrainRequested | Received | MailboxCompletion
ShardRequest = (
    OpenMailbox
    | ClaimDispatches
    | AppendEntries
    | FinishDispatches
    | RaiseFloor
    | TrimMailbox
    | Fetch
    | ReadEnds
)
MailboxEffect = (
    ShardRequest
    | ReadMailboxes
    | ReadPresence
    | NoteDelivered
    | ReadOverlays
    | ReadBodies
    | ReadArchiveBodies
    | ReadVersions
    | Send
    | FreshEpochWanted
    | Observation
)

VERSION_UNKNOWN = "version_unknown"
"""Violation: ``applied`` has passed a record and the version it names is still absent (pipeline.md §2)."""
POSITION_MISMATCH = "position_mismatch"
"""Violation: a stored position is not in this log; the shard stops (pipeline.md §7)."""
BODY_MISMATCH = "body_mismatch"
"""Violation: the bytes found under a body's name are another message's."""
