"""What the parts of a ConnectionNode share within a step: time, connections, orders, pending ops."""

from typing import Final

from msgspec import Struct

from qim.core.gateway.connection import Connection, Entering
from qim.core.gateway.vocabulary import GatewayConfig, GatewayEffect
from qim.core.machine import Ms
from qim.core.ports.observe import Count
from qim.core.ports.registry import Resource
from qim.core.ports.store_mailbox import PresenceHold
from qim.core.wallclock import WallClock


class OwnerLookup(Struct, frozen=True, kw_only=True):
    """A ReadLease on its way."""

    resource: Resource


class PresenceEntering(Struct, frozen=True, kw_only=True):
    """An EnterPresence on its way for this AUTH of this connection."""

    connection: Connection
    entering: Entering


class PresenceRefreshing(Struct, frozen=True, kw_only=True):
    """A RefreshPresence on its way."""

    holds: tuple[PresenceHold, ...]


class PresenceLeaving(Struct, frozen=True, kw_only=True):
    """A LeavePresence on its way; nothing depends on its answer."""


PendingOp = OwnerLookup | PresenceEntering | PresenceRefreshing | PresenceLeaving

REFRESHES_INFLIGHT_MAX: Final = 4


class NodeContext:
    """One a machine. ``pending`` is bounded: at most one lookup a resource, one entering and one leaving a connection."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.parameters = config.parameters
        self.now: Ms = 0
        self.address = ""
        self.draining_until: Ms | None = None
        self.connections: dict[int, Connection] = {}
        self.pending: dict[int, PendingOp] = {}
        self.effects: list[GatewayEffect] = []
        self.clock = WallClock()
        self._op = 0

    def wall(self) -> Ms:
        """This node's wall clock now."""
        return self.clock.read(self.now)

    def expect(self, pending: PendingOp) -> int:
        """The op number under which a completion will find ``pending``."""
        self._op += 1
        self.pending[self._op] = pending
        return self._op

    def order(self, effect: GatewayEffect) -> None:
        """Add an effect to this step."""
        self.effects.append(effect)

    def count(self, name: str, label: str = "", value: int = 1) -> None:
        """Observe: counter ``gateway_<name>``."""
        self.effects.append(Count(name=f"gateway_{name}", value=value, label=label))
