"""What SessionProjection is told, what it orders, and its limits (pipeline.md §4)."""

from msgspec import Struct

from qim.core.contract.frame_fields import DEVICES_MAX, STATE_VALUE_BYTES_MAX
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
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Observation
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from qim.core.ports.store_session import (
    ApplyStates,
    DeliveredRead,
    DispatchesProjected,
    MarksRead,
    OpenSession,
    ProjectDispatches,
    ReadDelivered,
    ReadMarks,
    ReadSessions,
    ReadStates,
    SessionOpened,
    SessionsRead,
    StatesApplied,
    StatesRead,
)


class SessionConfig(Struct, frozen=True, kw_only=True):
    """Limits of one SessionProjection. Windows, fetches and submissions are each shard's own, the rest the machine's.

    ``settle_ms``: how long after a message its writer may still be about to show it (a summary that lacks it is asked
    again, and never kept).
    """

    shard_count: int
    outbox_partition_count: int
    # the two logs
    fetch_records_max: int = 512
    fetch_bytes_max: int = 1024 * 1024
    fetch_wait_ms: Ms = 1_000
    window_records_max: int = 2_048
    window_bytes_max: int = 8 * 1024 * 1024
    rows_max: int = 1_000
    changes_max: int = 512
    append_records_max: int = 256
    submissions_max: int = 4_096
    version_names_max: int = 64
    version_members_max: int = 200_000
    # questions
    questions_max: int = 8_192
    question_ms: Ms = 4_000
    known_max: int = 65_536
    state_value_bytes_max: int = STATE_VALUE_BYTES_MAX
    page_default: int = DEFAULT.page_default
    page_max: int = DEFAULT.page_max
    page_bytes_max: int = DEFAULT.batch_bytes_max
    read_by_max: int = 200
    devices_max: int = DEVICES_MAX
    # questions to writers
    owners_max: int = 65_536
    owner_ttl_ms: Ms = 30_000
    asks_max: int = 4_096
    ask_items_max: int = 256
    ask_ms: Ms = 1_500
    ask_attempts_max: int = 3
    # snapshots
    unread_window: int = DEFAULT.unread_window_max
    summary_retries_max: int = 5
    summary_retry_ms: Ms = 40
    settle_ms: Ms = 600_000
    snapshot_ms: Ms = 300_000
    snapshots_per_user_max: int = 2
    snapshot_bytes_max: int = 64 * 1024 * 1024
    retry_first_ms: Ms = 50
    retry_most_ms: Ms = 2_000
    retry_after_ms: Ms = 200


ShardReply = (
    SessionOpened
    | EndsRead
    | Fetched
    | OutOfRange
    | DispatchesProjected
    | StatesApplied
    | Appended
    | AppendRefused
)
ReadReply = SessionsRead | StatesRead | MarksRead | DeliveredRead
SessionCompletion = ShardReply | ReadReply | VersionsRead | LeaseRead | Completion
SessionEvent = Started | LeaseHeld | LeaseGone | DrainRequested | Received | SessionCompletion
ShardRequest = OpenSession | ReadEnds | Fetch | ProjectDispatches | ApplyStates | Append
ReadRequest = ReadSessions | ReadStates | ReadMarks | ReadDelivered
SessionEffect = (
    ShardRequest | ReadRequest | ReadVersions | ReadLease | Send | FreshEpochWanted | Observation
)

VERSION_UNKNOWN = "version_unknown"
"""Violation: ``applied`` has passed a record and the version it names is still absent (pipeline.md §2)."""
POSITION_MISMATCH = "position_mismatch"
"""Violation: a stored position is not in its log; the shard stops (pipeline.md §7)."""
STATE_REFUSED = "state_refused"
"""Violation: the log named a user-state record itself as unacceptable: it was validated, so this is our bug."""
