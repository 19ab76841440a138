"""The internal listener: bounded numbers of strangers and peers, and the handshake of each before its first byte counts."""

import asyncio

from qim.adapters.rpc.incoming import Incoming
from qim.adapters.rpc.wiring import Wiring
from qim.adapters.tcp.turned_away import TurnedAway
from qim.adapters.tls.faults import handshake_fault
from qim.adapters.tls.stream import TlsStream


class Listener:
    """Accepts, greets, and knows who is there."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._server: asyncio.Server | None = None
        self._strangers: dict[Incoming, TlsStream | None] = {}
        self._welcome: dict[int, Incoming] = {}
        self._next = 0

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind; host and port as bound. Raises OSError."""
        self._server = await self._wiring.loop.create_server(self._accept, host, port, backlog=256)
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    @property
    def accepted(self) -> int:
        """Peers that were welcomed and are still there."""
        return len(self._welcome)

    @property
    def strangers(self) -> int:
        """Accepted streams that have not said hello yet, in their handshakes or behind them."""
        return len(self._strangers)

    def _accept(self) -> asyncio.Protocol:
        """The protocol of a new stream."""
        wiring = self._wiring
        limits = wiring.limits
        if self.strangers >= limits.strangers_max or self.accepted >= limits.accepted_max:
            wiring.reporting.count("rpc_refused", 1, "too_many")
            wiring.reporting.log("warning", "refused", {"code": "too_many"})
            return TurnedAway()
        self._next += 1
        stream = Incoming(self._next, self, wiring)
        if wiring.security is None:
            self._strangers[stream] = None
            return stream

        secured = TlsStream(
            wiring.security.server_context(),
            stream,
            lambda error: self._faulted(stream, error),
            server_side=True,
            handshake_seconds=limits.hello_seconds_max,
        )
        self._strangers[stream] = secured
        return secured

    def _faulted(self, stream: Incoming, error: BaseException) -> None:
        secured = self._strangers.pop(stream, None)
        name = None if secured is None else secured.get_extra_info("peername")
        code, why = handshake_fault(error)
        peer = f"{name[0]}:{name[1]}" if name else "?"
        told: dict[str, object] = {"peer": peer, "code": code, "why": why}
        self._wiring.reporting.count("rpc_refused", 1, code)
        self._wiring.reporting.log("warning", "handshake refused", told)

    def welcomed(self, stream: Incoming) -> None:
        """It said who it is."""
        self._strangers.pop(stream, None)
        self._welcome[stream.number] = stream
        if not stream.source.startswith("@"):
            assert stream.role is not None
            self._wiring.learned(stream.source, stream.role)

    def closed(self, stream: Incoming) -> None:
        """It is gone."""
        self._strangers.pop(stream, None)
        self._welcome.pop(stream.number, None)

    def at(self, source: str) -> Incoming | None:
        """The stream of a peer without an address."""
        number = source[1:]
        stream = self._welcome.get(int(number)) if number.isascii() and number.isdigit() else None
        return stream if stream is not None and stream.source == source else None

    def stop_accepting(self) -> None:
        """Close the listening socket; what is open goes on."""
        if self._server is not None:
            self._server.close()

    def abort_all(self) -> None:
        """Cut everything that is open."""
        for stream, secured in list(self._strangers.items()):
            (stream if secured is None else secured).abort()
        for stream in list(self._welcome.values()):
            stream.abort()
