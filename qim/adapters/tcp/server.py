"""The gateway's sockets: asyncio protocols that turn chunks into events and carry out writes (ports/sockets.py).

A chunk is handed to the machine as it came; the machine frames it. Protocols rather than streams, since a stream reads
frame by frame at a fortieth of the speed (components.md, Sockets and bytes).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from qim.core.ports.sockets import (
    Accepted,
    Backlog,
    BytesReceived,
    CloseSocket,
    PauseReading,
    ResumeReading,
    SocketClosed,
    SocketEvent,
    Write,
)

CLOSE_FLUSH_SECONDS: Final = 5.0
CLOSE_LINGER_SECONDS: Final = 2.0
BACKLOG_STEP_BYTES: Final = 4 * 1024
"""A small part of the outbound bound (256 frames): with a coarser step many small frames would wait uncounted."""
DRAIN_LOOK_SECONDS: Final = 0.05
"""A transport says only when its buffer is empty: while one isn't, it is looked at this often for what was taken."""

Post = Callable[[SocketEvent], None]


class _Stream(asyncio.Protocol):
    def __init__(self, server: "TcpServer") -> None:
        self._server = server
        self.conn = 0
        self.transport: asyncio.Transport | None = None
        self.reported = 0
        self.ending: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        transport = cast("asyncio.Transport", transport)
        self.transport = transport
        # Any byte the kernel did not take is a backlog the machine must know of.
        transport.set_write_buffer_limits(high=0, low=0)
        self.conn = self._server.opened(self)
        peer = transport.get_extra_info("peername")
        self._server.post(Accepted(conn=self.conn, peer=f"{peer[0]}:{peer[1]}" if peer else "?"))

    def data_received(self, data: bytes) -> None:
        if self.ending is not None:
            return
        self._server.post(BytesReceived(conn=self.conn, wall=self._server.wall(), data=bytes(data)))

    def eof_received(self) -> bool:
        return False  # a half-closed client is gone: nobody pulls through it any more

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self.ending, self._looking):
            if timer is not None:
                timer.cancel()
        self._server.closed(self)

    def end(self) -> None:
        """Say no more, read and throw away until the peer ends too, but not for ever.

        A socket closed with unread bytes answers them by RST, and that would take from the peer the last words it was
        sent: why it is cut (KICKED, ERROR).
        """
        transport = self.transport
        if transport is None or self.ending is not None or transport.is_closing():
            return
        seconds = CLOSE_FLUSH_SECONDS if transport.get_write_buffer_size() else CLOSE_LINGER_SECONDS
        self.ending = asyncio.get_running_loop().call_later(seconds, transport.abort)
        if not transport.is_reading():
            transport.resume_reading()
        transport.write_eof()

    def resume_writing(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self.reported = 0
        self._server.post(Backlog(conn=self.conn, bytes_queued=0))

    def report(self, queued: int) -> None:
        """Tell of a backlog that grew or shrank by a step; 0 is told by resume_writing alone."""
        if queued and abs(queued - self.reported) >= BACKLOG_STEP_BYTES:
            self.reported = queued
            self._server.post(Backlog(conn=self.conn, bytes_queued=queued))
        if self.reported and self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(DRAIN_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looking = None
        if self.transport is not None:
            self.report(self.transport.get_write_buffer_size())


class TcpServer:
    """Listens, numbers streams, and carries out the gateway's socket effects."""

    def __init__(self, post: Post, wall: Callable[[], int], first_conn: int = 1) -> None:
        self.post = post
        self.wall = wall
        self._streams: dict[int, _Stream] = {}
        self._next = first_conn
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> str:
        """Bind; returns host:port as bound. Raises OSError with the address that is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Stream(self), host, port, backlog=1024)
        bound = self._server.sockets[0].getsockname()
        return f"{bound[0]}:{bound[1]}"

    def stop_accepting(self) -> None:
        """Close the listening socket; open streams go on."""
        if self._server is not None:
            self._server.close()

    def abort_all(self) -> None:
        """Cut what is still open at the end of a drain."""
        for stream in list(self._streams.values()):
            if stream.transport is not None:
                stream.transport.abort()

    @property
    def open_streams(self) -> int:
        """Streams not yet closed (metric)."""
        return len(self._streams)

    def opened(self, stream: _Stream) -> int:
        """Number a new stream."""
        conn = self._next
        self._next += 1
        self._streams[conn] = stream
        return conn

    def closed(self, stream: _Stream) -> None:
        """A stream is gone."""
        if self._streams.pop(stream.conn, None) is not None:
            self.post(SocketClosed(conn=stream.conn))

    def write(self, effect: Write, _: Any) -> None:
        """Route of Write."""
        stream = self._streams.get(effect.conn)
        if stream is None or stream.transport is None:
            return
        transport = stream.transport
        transport.write(effect.data)
        stream.report(transport.get_write_buffer_size())

    def close(self, effect: CloseSocket, _: Any) -> None:
        """Route of CloseSocket: what was written goes out first, but not for ever."""
        stream = self._streams.get(effect.conn)
        if stream is not None:
            stream.end()

    def pause(self, effect: PauseReading, _: Any) -> None:
        """Route of PauseReading."""
        stream = self._streams.get(effect.conn)
        if stream is not None and stream.transport is not None and stream.transport.is_reading():
            stream.transport.pause_reading()

    def resume(self, effect: ResumeReading, _: Any) -> None:
        """Route of ResumeReading."""
        stream = self._streams.get(effect.conn)
        if (
            stream is not None
            and stream.transport is not None
            and not stream.transport.is_reading()
        ):
            stream.transport.resume_reading()
