"""``RpcNetwork``: the network port between processes (ports/network.py): one listener, one dialled connection a peer.

Messages to a peer travel on the connection we dial, its messages on the one it dials; so an answer goes to the address
its asker named in HELLO, and order holds within a connection. Everything is lossy and bounded, and every loss counted.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from qim.adapters.loopback import is_loopback, is_wildcard
from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.rpc.frames import frame
from qim.adapters.rpc.incoming import Caller, dialable
from qim.adapters.rpc.listener import Listener
from qim.adapters.rpc.outgoing import Outgoing, State
from qim.adapters.rpc.roles import ProcessRole, addressee
from qim.adapters.rpc.wiring import RpcLimits, RpcSecurity, Wiring
from qim.adapters.start_refused import StartRefused
from qim.adapters.wall_clock import wall_ms
from qim.core.contract.rpc import Message, encode_message
from qim.core.ports.network import Received, Send

PEERS_SWEPT_FROM: Final = 64


class RpcNetwork:
    """One a process; from its event loop only. ``send`` is a route of the runtime."""

    def __init__(
        self,
        listen: tuple[str, int] | None,
        role: ProcessRole,
        on_received: Callable[[Received], None],
        *,
        security: RpcSecurity | None = None,
        advertise: str = "",
        reporting: Reporting = SILENT,
        limits: RpcLimits | None = None,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        """``listen``: host and port (0: any); None: an operator's tool, answered on the connections it dials.

        ``advertise``: host:port as others reach it, where it isn't as bound. ``security`` None: plaintext, for loopback.
        """
        self._listen = listen
        self._advertise = advertise
        self._on_received = on_received
        self._wall = wall
        self._wiring = Wiring(role, limits or RpcLimits(), security, reporting, self._received)
        self._listener = Listener(self._wiring)
        self._peers: dict[str, Outgoing] = {}
        self._closed = False

    async def start(self) -> str:
        """Listen; our address, as `Received.source` has it elsewhere. Raises StartRefused, OSError (address taken)."""
        if self._listen is None:
            if self._wiring.security is None:
                raise _plaintext("an operator's tool", "mTLS, on loopback too")
            return ""
        host, port = self._listen
        self._check(host, port)
        bound_host, bound_port = await self._listener.listen(host, port)
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        self._wiring.address = self._advertise or f"{shown}:{bound_port}"
        return self._wiring.address

    def _check(self, host: str, port: int) -> None:
        if self._wiring.security is None and not is_loopback(host):
            raise _plaintext(f"the internal listener {host}:{port}", "mTLS, or a loopback address")
        if is_wildcard(host) and not self._advertise:
            raise _unreachable(f"{host or '*'}, which is every address", port)
        if self._advertise and not dialable(self._advertise):
            raise _unreachable(repr(self._advertise), port)

    @property
    def address(self) -> str:
        """Ours; empty before ``start``."""
        return self._wiring.address

    def send(self, effect: Send, _: Any = None) -> None:
        """Route of Send: never blocks, never raises, owes nothing."""
        address, message = effect.address, effect.message
        if address == self._wiring.address:
            self._wiring.loop.call_soon(self._received, address, message)
            return
        kind = type(message).__name__
        data = encode_message(message)
        if len(data) > self._wiring.limits.frame_bytes_max:
            self._wiring.dropped("too_long", kind)
            self._wiring.reporting.log(
                "error", "message too long", {"type": kind, "bytes": len(data), "peer": address}
            )
            return
        peer = self._peers.get(address)
        if peer is None or peer.resting:
            if address.startswith("@"):
                self._answer(address, frame(data), kind)
                return
            peer = self._new_peer(address, message)
            if peer is None:
                self._wiring.dropped("peers", kind)
                return
        peer.offer(frame(data), kind)

    def _answer(self, source: str, framed: bytes, kind: str) -> None:
        stream = self._listener.at(source)
        if stream is None:
            self._wiring.dropped("closed", kind)
        else:
            stream.answer(framed, kind)

    def _new_peer(self, address: str, message: Message) -> Outgoing | None:
        if self._closed or not dialable(address):
            return None
        # A peer at rest is made anew: another process, of another role, may be at that address by now.
        peers = self._peers
        peers.pop(address, None)
        if len(peers) >= PEERS_SWEPT_FROM:
            for known in [name for name, peer in peers.items() if peer.resting]:
                del peers[known]
        if len(peers) >= self._wiring.limits.peers_max:
            return None
        # Who asked is known from its HELLO; a question says by its type whom it is for.
        role = addressee(type(message)) or self._wiring.roles.get(address) or ProcessRole.GATEWAY
        peers[address] = peer = Outgoing(address, role, self._wiring)
        return peer

    def _received(self, source: str, message: Message) -> None:
        self._on_received(Received(source=source, wall=self._wall(), message=message))

    def caller(self, source: str) -> Caller | None:
        """Who is at the other end of a connection without an address; None: gone, or a peer that is dialled."""
        stream = self._listener.at(source)
        return None if stream is None else stream.caller

    def stop_accepting(self) -> None:
        """No new peers; what is open goes on (the beginning of a drain)."""
        self._listener.stop_accepting()

    async def close(self) -> None:
        """Say what still waits, but not for ever, and end. Again: nothing."""
        if self._closed:
            return
        self._closed = True
        self._listener.stop_accepting()
        ending = [ended for peer in self._peers.values() if (ended := peer.close()) is not None]
        if ending:
            await asyncio.wait(ending, timeout=self._wiring.limits.close_seconds_max)
        for peer in self._peers.values():
            peer.abort()
        self._listener.abort_all()
        await asyncio.sleep(0)

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """Depth and capacity of every queue, sizes of every table, totals: (name, label, value)."""
        wiring, limits = self._wiring, self._wiring.limits
        yield "rpc_peers", "", len(self._peers)
        yield "rpc_peers_max", "", limits.peers_max
        yield "rpc_peers_open", "", sum(p.state is State.OPEN for p in self._peers.values())
        yield "rpc_accepted", "", self._listener.accepted
        yield "rpc_accepted_max", "", limits.accepted_max
        yield "rpc_strangers", "", self._listener.strangers
        yield "rpc_strangers_max", "", limits.strangers_max
        yield "rpc_queue_messages_max", "", limits.queue_messages_max
        yield "rpc_queue_bytes_max", "", limits.queue_bytes_max
        for address, peer in list(self._peers.items()):
            if not peer.resting:
                label = f"{peer.role} {address}"
                yield "rpc_queue_messages", label, peer.queued
                yield "rpc_queue_bytes", label, peer.queued_bytes
        yield "rpc_messages_received", "", wiring.messages_in
        yield "rpc_messages_sent", "", wiring.messages_out
        yield "rpc_bytes_received", "", wiring.bytes_in
        yield "rpc_bytes_sent", "", wiring.bytes_out
        yield "rpc_read_gap_max_seconds", "", wiring.read_gap.take_max()


def _plaintext(what: str, expected: str) -> StartRefused:
    return StartRefused(
        "internal_plaintext",
        what,
        got="without QIM_INTERNAL_TLS_CERT, _KEY, _CLIENT_CA and _SERVER_CA",
        expected=expected,
        command="qim certs dev --out certs",
    )


def _unreachable(got: str, port: int) -> StartRefused:
    return StartRefused(
        "internal_address_unknown",
        "the address other processes dial (QIM_INTERNAL_ADVERTISE)",
        got=got,
        expected="host:port, or a listener on one address",
        command=f"export QIM_INTERNAL_ADVERTISE=$(hostname -f):{port}",
    )
