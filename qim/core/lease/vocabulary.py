"""What a LeaseKeeper is told to hold, and its events and effects."""

from typing import Final

from msgspec import Struct

from qim.core.contract.params import DEFAULT
from qim.core.machine import Ms
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.observe import Count, Gauge
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Denied,
    EpochRaised,
    Granted,
    LeaseFreed,
    LeaseTaken,
    Peers,
    RaiseEpoch,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)

WISHES_MAX: Final = 65_536


class LeaseConfig(Struct, frozen=True, kw_only=True):
    """What one process may hold.

    ``roles``: (role, how many resources it has), shared by rendezvous; ``pinned``: wished by this process alone, such as
    its writer instance number. Times in ms; renew_ms < ttl_ms - margin_ms.
    """

    owner: str
    address: str
    roles: tuple[tuple[Role, int], ...] = ()
    pinned: tuple[Resource, ...] = ()
    ttl_ms: Ms = DEFAULT.lease_ttl_ms
    renew_ms: Ms = DEFAULT.lease_renew_ms
    margin_ms: Ms = DEFAULT.lease_margin_ms
    retry_ms: Ms = 500
    acquires_inflight_max: int = 64


LeaseEvent = (
    Started
    | DrainRequested
    | FreshEpochWanted
    | Granted
    | Denied
    | Renewed
    | Released
    | EpochRaised
    | Peers
    | LeaseFreed
    | LeaseTaken
    | Failed
    | Unknown
)
LeaseEffect = (
    Acquire | Renew | Release | RaiseEpoch | Announce | LeaseHeld | LeaseGone | Count | Gauge
)
