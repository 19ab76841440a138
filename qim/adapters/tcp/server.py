"""The gateway's sockets: asyncio protocols that turn chunks into events and carry out writes (ports/sockets.py).

A chunk is handed to the machine as it came; the machine frames it. Protocols rather than streams, since a stream reads
frame by frame at a fortieth of the speed (components.md, Sockets and bytes).

The last leg of a message is measured here (issue: observability): how long a write took to hand over, how long its
bytes then waited for the kernel, and how long sockets went unread while the loop was busy.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final, Protocol, cast

from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.tcp.read_gap import ReadGap
from qim.adapters.tcp.turned_away import TurnedAway
from qim.adapters.tls.faults import handshake_fault
from qim.adapters.tls.stream import TlsStream
from qim.core.contract.wire import ALPN
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
HANDSHAKE_SECONDS_MAX: Final = 10.0
HANDSHAKES_MAX: Final = 4_096
"""Streams whose handshake is under way; one more is turned away."""

Post = Callable[[SocketEvent], None]


class ServerTls(Protocol):
    """Asked for a context at every accept, so that a reloaded certificate takes hold (qim/adapters/tls)."""

    def server_context(self) -> ssl.SSLContext: ...


class _Stream(asyncio.Protocol):
    def __init__(self, server: "TcpServer") -> None:
        self._server = server
        self.conn = 0
        self.transport: asyncio.Transport | None = None
        self.reported = 0
        self.ending: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._waiting_since: float | None = None
        """When bytes were written that the kernel has not taken since."""

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
        self._server.read_gap.read()
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
        if self._waiting_since is not None:
            waited = monotonic() - self._waiting_since
            self._waiting_since = None
            self._server.observe("conn_write_wait_seconds", waited, "")
        self._server.post(Backlog(conn=self.conn, bytes_queued=0))

    def write(self, data: bytes) -> None:
        """Hand over; what the kernel doesn't take at once is told as a backlog."""
        assert self.transport is not None
        observe = self._server.observe
        began = monotonic()
        self.transport.write(data)
        observe("conn_write_seconds", monotonic() - began, "")
        queued = self.transport.get_write_buffer_size()
        if not queued:
            observe("conn_write_wait_seconds", 0.0, "")
        elif self._waiting_since is None:
            self._waiting_since = began
        self.report(queued)

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

    def __init__(
        self,
        post: Post,
        wall: Callable[[], int],
        first_conn: int = 1,
        *,
        tls: ServerTls | None = None,
        reporting: Reporting = SILENT,
    ) -> None:
        """From the event loop. ``tls`` None: plaintext."""
        self.post = post
        self.wall = wall
        self.loop = asyncio.get_running_loop()
        self.observe = reporting.observe
        self.read_gap = ReadGap(self.loop, reporting.observe, "client")
        self._tls = tls
        self._reporting = reporting
        self._streams: dict[int, _Stream] = {}
        self._shaking: dict[_Stream, TlsStream] = {}
        self._next = first_conn
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> str:
        """Bind; returns host:port as bound. Raises OSError with the address that is taken."""
        self._server = await self.loop.create_server(self._accept, host, port, backlog=1024)
        bound = self._server.sockets[0].getsockname()
        return f"{bound[0]}:{bound[1]}"

    def _accept(self) -> asyncio.Protocol:
        stream = _Stream(self)
        if self._tls is None:
            return stream
        if len(self._shaking) >= HANDSHAKES_MAX:
            self._reporting.count("tls_handshakes_failed", 1, "too_many")
            return TurnedAway()
        self._shaking[stream] = secured = TlsStream(
            self._tls.server_context(),
            stream,
            lambda error: self._faulted(stream, error),
            server_side=True,
            handshake_seconds=HANDSHAKE_SECONDS_MAX,
            alpn=ALPN,
        )
        return secured

    def _faulted(self, stream: _Stream, error: BaseException) -> None:
        secured = self._shaking.pop(stream, None)
        peer = None if secured is None else secured.get_extra_info("peername")
        code, why = handshake_fault(error)
        told: dict[str, object] = {"peer": f"{peer[0]}:{peer[1]}" if peer else "?"}
        self._reporting.count("tls_handshakes_failed", 1, code)
        self._reporting.log("info", "handshake refused", told | {"code": code, "why": why})

    def stop_accepting(self) -> None:
        """Close the listening socket; open streams go on."""
        if self._server is not None:
            self._server.close()

    def abort_all(self) -> None:
        """Cut what is still open at the end of a drain, handshakes too; whoever didn't drain takes nobody new either."""
        self.stop_accepting()
        for secured in list(self._shaking.values()):
            secured.abort()
        for stream in list(self._streams.values()):
            if stream.transport is not None:
                stream.transport.abort()

    @property
    def open_streams(self) -> int:
        """Streams not yet closed (metric)."""
        return len(self._streams)

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """Sizes and bounds: (name, label, value)."""
        yield "tcp_streams_open", "", len(self._streams)
        yield "tls_handshakes_open", "", len(self._shaking)
        yield "tls_handshakes_open_max", "", HANDSHAKES_MAX
        yield "tcp_read_gap_max_seconds", "", self.read_gap.take_max()

    def opened(self, stream: _Stream) -> int:
        """Number a new stream."""
        self._shaking.pop(stream, None)
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
        stream.write(effect.data)

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
