"""A TCP proxy between two parts of the system: it cuts, refuses, delays, or holds one direction while the other flows.

    passing ──hold(direction)──► holding ──passes()──► passing
       │  ──delay(ms)──► passing, later
       └──cut()──► every stream reset, new ones refused ──passes()──► passing

What is held is not lost: it stands in the proxy and in the buffers of the sender, which fill; bounded by TCP itself;
it goes on when the hold ends, as after a pause of the network.
"""

import asyncio
import contextlib
import socket
import struct
from enum import StrEnum
from typing import Final

CHUNK_BYTES: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)


class Direction(StrEnum):
    """Seen from the one who dialled."""

    THERE = "there"
    BACK = "back"


class Proxy:
    """One listener in front of one address; use ``start`` and ``close``, on one event loop."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        """Taken from the first moment on; who dials before ``start`` waits."""
        self._server: asyncio.Server | None = None
        self._streams: set[_Stream] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._refusing = False
        self.delay_ms = 0
        self.flowing = {Direction.THERE: asyncio.Event(), Direction.BACK: asyncio.Event()}
        self.accepted = 0
        self.resets = 0
        for event in self.flowing.values():
            event.set()

    async def start(self) -> None:
        """Begin to carry."""
        self._server = await asyncio.start_server(self._accept, sock=self._listener)

    @property
    def listening(self) -> bool:
        """``start`` was called."""
        return self._server is not None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset every stream, and each new one at once, until ``passes``."""
        self._refusing = True
        for stream in list(self._streams):
            stream.reset()

    def reset_streams(self) -> None:
        """Reset what is open; new ones are welcome."""
        for stream in list(self._streams):
            stream.reset()

    def hold(self, *directions: Direction) -> None:
        """Nothing more is carried in these directions; connections stay open."""
        for direction in directions or tuple(Direction):
            self.flowing[direction].clear()

    def passes(self) -> None:
        """As if nothing had been: what was held goes on."""
        self._refusing = False
        self.delay_ms = 0
        for event in self.flowing.values():
            event.set()

    async def close(self) -> None:
        """Listener and streams."""
        self.cut()
        self.passes()
        if self._server is None:
            self._listener.close()
        else:
            self._server.close()
            await self._server.wait_closed()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            _abort(writer)
            return
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _abort(writer)
            return
        stream = _Stream(self, reader, writer, far_reader, far_writer)
        self._streams.add(stream)
        try:
            await stream.carry()
        finally:
            self._streams.discard(stream)


class _Stream:
    """One connection through the proxy."""

    def __init__(
        self,
        proxy: Proxy,
        near_reader: asyncio.StreamReader,
        near_writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._ways = (
            (Direction.THERE, near_reader, far_writer),
            (Direction.BACK, far_reader, near_writer),
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def carry(self) -> None:
        """Until either side ends."""
        self._tasks = [asyncio.create_task(self._carry(*way)) for way in self._ways]
        await asyncio.wait(self._tasks)
        for _, _, writer in self._ways:
            writer.close()

    def reset(self) -> None:
        """RST both ways, whatever was on its way is gone."""
        self._proxy.resets += 1
        for task in self._tasks:
            task.cancel()
        for _, _, writer in self._ways:
            _abort(writer)

    async def _carry(
        self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy = self._proxy
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(CHUNK_BYTES):
                if proxy.delay_ms:
                    await asyncio.sleep(proxy.delay_ms / 1000)
                # Bounded by the reader's own limit: it stops reading, and TCP pushes back on the sender.
                await proxy.flowing[direction].wait()
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()


def _abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
