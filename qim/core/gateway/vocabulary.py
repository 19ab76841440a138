"""What a ConnectionNode hears and orders (pipeline.md §6): sockets, services, registry, presence. Limits are its config."""

from msgspec import Struct

from qim.core.contract.params import DEFAULT, Parameters
from qim.core.ports.completion import Completion
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Observation
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.sockets import (
    Accepted,
    Backlog,
    BytesReceived,
    CloseSocket,
    PauseReading,
    ResumeReading,
    SocketClosed,
    Write,
)
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    PresenceEntered,
    PresenceLeft,
    PresenceRefreshed,
    RefreshPresence,
)


class GatewayConfig(Struct, frozen=True, kw_only=True):
    """token_secrets: any of them verifies (rotation). Rates are per connection and refill evenly."""

    token_secrets: tuple[bytes, ...]
    parameters: Parameters = DEFAULT
    connections_max: int = 20_000
    auth_attempts_max: int = 3
    connection_requests_max: int = 512
    """Requests of one connection in flight; one more is RATE_LIMITED."""
    connection_pause_at: int = 256
    """From here its socket is not read until half of them are answered, so TCP itself pushes back."""
    requests_max: int = 65_536
    request_timeout_ms: int = 5_000
    owners_max: int = 131_072
    owner_ttl_ms: int = 30_000
    owner_waiters_max: int = 4_096
    owner_retry_after_ms: int = 250
    admission_per_second: int = 2_000
    admission_burst: int = 4_000
    watermark_users_max: int = 512
    badge_wait_ms: int = 250
    """AUTH_OK waits so long for the badge, and says 0 then: the session list tells it anyway."""
    refresh_batch_max: int = 256
    refresh_pause_ms: int = 1_000
    """Between two rounds of presence refreshes that a StoreReset asks for: a store that nobody has opened yet answers
    StoreReset to each of them."""
    drain_timeout_ms: int = 5_000


GatewayEvent = (
    BytesReceived
    | Received
    | Accepted
    | SocketClosed
    | Backlog
    | LeaseRead
    | PresenceEntered
    | PresenceRefreshed
    | PresenceLeft
    | Completion
    | Started
    | DrainRequested
)
GatewayEffect = (
    Write
    | Send
    | CloseSocket
    | PauseReading
    | ResumeReading
    | ReadLease
    | EnterPresence
    | RefreshPresence
    | LeavePresence
    | Observation
)
