"""One dialled stream to a peer: how it begins, what is said on it, how it ends, and whether anybody is still there.

DIALLED --> GREETED --> WELCOMED --> ENDED     HELLO said; WELCOME of the right role; silent, idle, refused, cut or closed
DIALLED --> ENDED                              a handshake that failed; GREETED --> ENDED: SORRY, or somebody else
"""

import asyncio
from time import monotonic
from typing import Protocol, cast

from qim.adapters.rpc.frames import (
    HELLO_BYTES_MAX,
    RPC_VERSION,
    Control,
    FrameReader,
    HostileBytes,
    clock_frame,
    control_kind,
    hello_frame,
    read_clock,
    read_hello,
    read_message,
    read_sorry,
)
from qim.adapters.rpc.roles import ProcessRole
from qim.adapters.rpc.wiring import Wiring
from qim.adapters.tls.stream import TlsStream

Queued = tuple[float, bytes, str]
"""When it was offered, the frame, the message type."""


class PeerRefused(Exception):
    """The peer said SORRY, or WELCOME as somebody else."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Peer(Protocol):
    """Whose stream it is; told what becomes of it."""

    address: str
    role: ProcessRole

    @property
    def queued(self) -> int: ...

    def attached(self, link: "Link") -> None: ...

    def resumed(self) -> None: ...

    def lost(self, link: "Link", why: str) -> None: ...


class Link(asyncio.Protocol):
    """One dialled stream: HELLO, keepalive, and writes whose time until the kernel took them is measured."""

    def __init__(self, peer: Peer, wiring: Wiring) -> None:
        self.paused = False
        self.write_bytes_max = wiring.limits.write_bytes_max
        self.welcomed: asyncio.Future[None] = wiring.loop.create_future()
        self._peer = peer
        self._wiring = wiring
        self.secured: TlsStream | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self.error: Exception | None = None
        """Why we ended it."""
        self._timer: asyncio.TimerHandle | None = None
        self._last: list[Queued] = []
        self._heard = self._said = self._paused_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = cast("asyncio.Transport", transport)
        # Any byte the kernel didn't take pauses us: what waits then waits in our queue, which is bounded and seen.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._heard = self._said = monotonic()
        self._peer.attached(self)
        self._transport.write(
            hello_frame(Control.HELLO, self._wiring.role.value, self._wiring.address)
        )
        self._timer = self._wiring.loop.call_later(self._wiring.limits.ping_seconds, self._look)

    @property
    def writable(self) -> bool:
        """The kernel took all there was, and the stream is not ending."""
        transport = self._transport
        return not self.paused and transport is not None and not transport.is_closing()

    def write(self, batch: list[Queued]) -> None:
        """Frames, joined."""
        if self._transport is None:
            return
        began = monotonic()
        self._said = began
        self._last = batch
        data = b"".join([framed for _, framed, _ in batch])
        self._transport.write(data)
        self._wiring.bytes_out += len(data)
        self._wiring.messages_out += len(batch)
        if not self.paused:
            took = monotonic() - began
            self._wiring.reporting.observe("rpc_write_seconds", took, self._peer.role)

    def pause_writing(self) -> None:
        self.paused = True
        self._paused_at = monotonic()

    def resume_writing(self) -> None:
        self.paused = False
        took = monotonic() - self._paused_at
        self._wiring.reporting.observe("rpc_write_seconds", took, self._peer.role)
        self._peer.resumed()

    def data_received(self, data: bytes) -> None:
        self._wiring.read_gap.read()
        self._wiring.bytes_in += len(data)
        self._heard = monotonic()
        try:
            for payload in self._reader.feed(data):
                self._understood(payload)
        except HostileBytes as error:
            self._fail(error)

    def _understood(self, payload: bytes) -> None:
        match control_kind(payload):
            case Control.WELCOME if not self.welcomed.done():
                welcome = read_hello(payload)
                if welcome.version != RPC_VERSION:
                    self._fail(PeerRefused("version", f"it speaks version {welcome.version}"))
                elif welcome.role != self._peer.role.value:
                    self._fail(
                        PeerRefused("role", f"it is a {welcome.role}, not a {self._peer.role}")
                    )
                else:
                    self.welcomed.set_result(None)
                    if not self._wiring.address:
                        # We have no listener, so we are answered here.
                        self._reader.limit = self._wiring.limits.frame_bytes_max
            case None if not self._wiring.address and self.welcomed.done():
                self._wiring.messages_in += 1
                self._wiring.received(self._peer.address, read_message(payload))
            case Control.PONG:
                took = max(monotonic() - read_clock(payload) / 1e9, 0.0)
                self._wiring.reporting.observe("rpc_ping_seconds", took, self._peer.role)
            case Control.SORRY:
                sorry = read_sorry(payload)
                self._fail(PeerRefused(sorry.code, f"the peer refuses: {sorry.reason}"))
            case _:
                raise HostileBytes("unexpected", f"a dialled peer said {payload[:2].hex()}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(exc or ConnectionResetError("closed by the peer"))
        if self.paused:
            # How much of the last write was taken nobody can know.
            for _, _, kind in self._last:
                self._wiring.dropped("cut", kind)
        error = self.error or exc
        self._peer.lost(self, "" if error is None else str(error) or type(error).__name__)

    def close(self) -> None:
        """End once what was written is out."""
        self._stop(ConnectionAbortedError("closed here"))
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End now, in the middle of a handshake too."""
        self._stop(ConnectionAbortedError("cut here"))
        stream = self._transport or self.secured
        if stream is not None:
            stream.abort()

    def faulted(self, error: BaseException) -> None:
        """The handshake failed; there was never a stream."""
        self._stop(error)

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._stop(error)
        if self._transport is not None:
            self._transport.abort()
        self._peer.lost(self, str(error))

    def _stop(self, error: BaseException) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
            self.welcomed.exception()  # who dialled may have given up: nobody has to look

    def _look(self) -> None:
        """Every ``ping_seconds``: is the peer still there, and is it still wanted?"""
        limits = self._wiring.limits
        now = monotonic()
        self._timer = self._wiring.loop.call_later(limits.ping_seconds, self._look)
        if now - self._heard > limits.silent_seconds_max:
            self._fail(TimeoutError(f"nothing heard for {limits.silent_seconds_max:g} s"))
        elif not self.welcomed.done() or self._transport is None:
            pass
        elif now - self._said > limits.idle_seconds_max and not self._peer.queued:
            self.close()
            self._peer.lost(
                self, ""
            )  # at once: what is offered from now on must not go into a closing stream
        else:
            self._transport.write(clock_frame(Control.PING, int(now * 1e9)))


async def connect(link: Link, address: str, role: ProcessRole, wiring: Wiring) -> None:
    """A stream to ``address``; its handshake, where there is one, is part of ``link.welcomed``. Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    security = wiring.security

    def protocol() -> asyncio.Protocol:
        if security is None:
            return link
        link.secured = TlsStream(
            security.client_context(),
            link,
            link.faulted,
            server_side=False,
            handshake_seconds=wiring.limits.dial_seconds_max,
            server_name=security.server_name(role),
        )
        return link.secured

    await wiring.loop.create_connection(protocol, host.strip("[]"), int(port))
