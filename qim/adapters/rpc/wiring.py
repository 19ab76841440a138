"""What every connection of one process shares: limits, who we are, and where observations go."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

import msgspec

from qim.adapters.reporting import Reporting
from qim.adapters.rpc.roles import ProcessRole
from qim.adapters.tcp.read_gap import ReadGap
from qim.core.contract.rpc import Message


class RpcLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Bounds of the internal network; tests shorten them."""

    frame_bytes_max: int = 8 << 20
    queue_messages_max: int = 20_000
    """Waiting for one peer; what comes beyond is dropped and counted."""
    queue_bytes_max: int = 32 << 20
    queue_seconds_max: float = 3.0
    """A message that waited longer for a connection is dropped: who asked has given up, or asks again."""
    write_bytes_max: int = 256 << 10
    """Frames joined for one write."""
    peers_max: int = 1024
    accepted_max: int = 2048
    strangers_max: int = 128
    """Accepted connections that have not said hello, handshakes included."""
    dial_seconds_max: float = 3.0
    """Connect, handshake and WELCOME together."""
    hello_seconds_max: float = 5.0
    backoff_seconds_min: float = 0.05
    backoff_seconds_max: float = 1.0
    ping_seconds: float = 5.0
    silent_seconds_max: float = 15.0
    """A peer not heard of for so long is half-open or stopped: the connection is cut."""
    idle_seconds_max: float = 60.0
    """A dialled connection that carried no message for so long is closed."""
    close_seconds_max: float = 2.0


class RpcSecurity(Protocol):
    """mTLS of this process (qim/adapters/tls): contexts are asked for at every handshake, so that a reload takes hold."""

    def server_context(self) -> ssl.SSLContext: ...

    def client_context(self) -> ssl.SSLContext: ...

    def server_name(self, role: ProcessRole) -> str: ...

    def roles_of(self, certificate: bytes) -> frozenset[ProcessRole]: ...


class Wiring:
    """One a process."""

    def __init__(
        self,
        role: ProcessRole,
        limits: RpcLimits,
        security: RpcSecurity | None,
        reporting: Reporting,
        received: Callable[[str, Message], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.role = role
        self.limits = limits
        self.security = security
        self.reporting = reporting
        self.received = received
        self.read_gap = ReadGap(self.loop, reporting.observe, "rpc")
        self.address = ""
        """Ours, as others dial it; known once the listener is bound."""
        self.roles: dict[str, ProcessRole] = {}
        """What peers are that said hello to us, by their address."""
        self.messages_in = 0
        self.messages_out = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def dropped(self, why: str, kind: str, count: int = 1) -> None:
        """Messages that will not be sent: full, stale, closed, too_long."""
        self.reporting.count("rpc_messages_dropped", count, f"{why} {kind}")

    def learned(self, address: str, role: ProcessRole) -> None:
        """A peer said hello; the oldest are forgotten."""
        self.roles.pop(address, None)
        self.roles[address] = role
        if len(self.roles) > self.limits.peers_max:
            del self.roles[next(iter(self.roles))]
