"""The internal listener: bounded numbers of strangers and peers, and the handshake of each before its first byte counts."""

import asyncio
from typing import cast

from qim.adapters.rpc.incoming import Incoming
from qim.adapters.rpc.wiring import Wiring


class Listener:
    """Accepts, greets, and knows who is there."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._server: asyncio.Server | None = None
        self._strangers: set[Incoming] = set()
        self._welcome: dict[int, Incoming] = {}
        self._doors: set[Door] = set()
        self._next = 0

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Bind; host and port as bound. Raises OSError."""
        self._server = await self._wiring.loop.create_server(
            lambda: Door(self, self._wiring), host, port, backlog=256
        )
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    @property
    def accepted(self) -> int:
        """Peers that were welcomed and are still there."""
        return len(self._welcome)

    @property
    def strangers(self) -> int:
        """Accepted streams that have not said hello yet."""
        return len(self._strangers) + len(self._doors)

    def incoming(self, peer: str) -> Incoming:
        """The protocol of a new stream."""
        self._next += 1
        return Incoming(self._next, peer, self, self._wiring)

    def room(self, peer: str) -> bool:
        """May one more stream stay?"""
        limits = self._wiring.limits
        if self.strangers < limits.strangers_max and len(self._welcome) < limits.accepted_max:
            return True
        self._wiring.reporting.count("rpc_refused", 1, "too_many")
        self._wiring.reporting.log("warning", "refused", {"peer": peer, "code": "too_many"})
        return False

    def entered(self, stream: Incoming) -> None:
        """A stream whose HELLO is awaited."""
        self._strangers.add(stream)

    def welcomed(self, stream: Incoming) -> None:
        """It said who it is."""
        self._strangers.discard(stream)
        self._welcome[stream.number] = stream
        if not stream.source.startswith("@"):
            assert stream.role is not None
            self._wiring.learned(stream.source, stream.role)

    def closed(self, stream: Incoming) -> None:
        """It is gone."""
        self._strangers.discard(stream)
        self._welcome.pop(stream.number, None)

    def at(self, source: str) -> Incoming | None:
        """The stream of a peer without an address."""
        number = source[1:]
        stream = self._welcome.get(int(number)) if number.isascii() and number.isdigit() else None
        return stream if stream is not None and stream.source == source else None

    def knocked(self, door: "Door") -> None:
        """A handshake began."""
        self._doors.add(door)

    def left(self, door: "Door") -> None:
        """A handshake ended."""
        self._doors.discard(door)

    def stop_accepting(self) -> None:
        """Close the listening socket; what is open goes on."""
        if self._server is not None:
            self._server.close()

    def abort_all(self) -> None:
        """Cut everything that is open."""
        for door in list(self._doors):
            door.abort()
        for stream in [*self._strangers, *self._welcome.values()]:
            stream.abort()


class Door(asyncio.Protocol):
    """A stream just accepted: a plain one is greeted at once, any other after its handshake."""

    def __init__(self, listener: Listener, wiring: Wiring) -> None:
        self._listener = listener
        self._wiring = wiring
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        peer = f"{name[0]}:{name[1]}" if name else "?"
        if not self._listener.room(peer):
            self._transport.abort()
            return
        stream = self._listener.incoming(peer)
        self._listener.entered(stream)
        self._transport.set_protocol(stream)
        stream.begin(self._transport)

    def abort(self) -> None:
        """Give up the handshake."""
        if self._transport is not None:
            self._transport.abort()
