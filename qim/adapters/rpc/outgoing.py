"""What goes to one address: a bounded queue, and the connection that empties it.

    IDLE --> DIALLING --> OPEN --> IDLE          a message waits; WELCOME; silent, idle or lost
    DIALLING --> WAITING --> DIALLING            not reached, and something still waits
    OPEN --> WAITING                             lost while something waits

Whatever was handed to a connection is never sent again: a second copy could overtake its answer. A Send owes nothing.
"""

import asyncio
import random
from collections import deque
from enum import StrEnum
from time import monotonic
from typing import cast

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
from qim.adapters.tls.faults import handshake_fault
from qim.adapters.tls.stream import TlsStream


class State(StrEnum):
    """Where the connection to a peer stands."""

    IDLE = "idle"
    DIALLING = "dialling"
    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


Queued = tuple[float, bytes, str]
"""When it was offered, the frame, the message type."""


class PeerRefused(Exception):
    """The peer said SORRY, or WELCOME as somebody else."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Outgoing:
    """One peer: ``offer`` never blocks and never fails; what can't be kept is counted and dropped."""

    def __init__(self, address: str, role: ProcessRole, wiring: Wiring) -> None:
        self.address = address
        self.role = role
        self.state = State.IDLE
        self.queued_bytes = 0
        self.reconnects = 0
        self._wiring = wiring
        self._queue: deque[Queued] = deque()
        self._link: Link | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._backoff = wiring.limits.backoff_seconds_min
        self._failed = 0
        self._opened_at = 0.0
        self._ended: asyncio.Future[None] | None = None

    @property
    def queued(self) -> int:
        """Messages that wait."""
        return len(self._queue)

    def offer(self, framed: bytes, kind: str) -> None:
        """Queue one frame; ``kind`` is its message type, for the counter of drops."""
        limits = self._wiring.limits
        if self.state is State.CLOSED:
            self._wiring.dropped("closed", kind)
            return
        if (
            len(self._queue) >= limits.queue_messages_max
            or self.queued_bytes + len(framed) > limits.queue_bytes_max
        ):
            self._expire()
            self._wiring.dropped("full", kind)
            return
        self._queue.append((monotonic(), framed, kind))
        self.queued_bytes += len(framed)
        if self.state is State.IDLE:
            self._dial()
        elif self.state is State.OPEN and not self._flush_due:
            # Once a turn of the loop: all that a machine says in one step leaves in one write.
            self._flush_due = True
            self._wiring.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        link, queue = self._link, self._queue
        while link is not None and queue and link.writable and self.state is State.OPEN:
            now = monotonic()
            self._wiring.reporting.observe("rpc_queue_wait_seconds", now - queue[0][0], self.role)
            batch = [queue.popleft()]
            size = len(batch[0][1])
            while queue and size + len(queue[0][1]) <= link.write_bytes_max:
                batch.append(queue.popleft())
                size += len(batch[-1][1])
            self.queued_bytes -= size
            link.write(batch)

    # ------------------------------------------------------------ dialling

    def _dial(self) -> None:
        self.state = State.DIALLING
        self._dialling = self._wiring.loop.create_task(self._dialled())

    async def _dialled(self) -> None:
        link = Link(self)
        try:
            try:
                async with asyncio.timeout(self._wiring.limits.dial_seconds_max):
                    await connect(link, self.address, self.role, self._wiring)
                    await link.welcomed
            except TimeoutError as error:
                if error.errno:
                    raise
                seconds = self._wiring.limits.dial_seconds_max
                raise TimeoutError(f"no WELCOME within {seconds:g} s") from None
        except Exception as error:
            # Whatever it was: a peer that stayed DIALLING would never be dialled again.
            link.abort()
            self._not_reached(error)
            return
        except asyncio.CancelledError:
            link.abort()
            raise
        self._dialling = None
        if self._link is link:
            self._opened()
        else:
            self._not_reached(link.error or ConnectionResetError("lost as soon as welcomed"))

    def _opened(self) -> None:
        if self._failed:
            self._tell("info", "reached again", {"attempts": self._failed})
        self._failed = 0
        self._opened_at = monotonic()
        self.state = State.OPEN
        self._expire()
        self._flush()

    def _not_reached(self, error: BaseException) -> None:
        self._dialling = None
        self._link = None
        self._failed += 1
        if isinstance(error, PeerRefused):
            code, why = error.code, str(error)
        elif isinstance(error, HostileBytes):
            code, why = error.code, error.detail
        else:
            code, why = handshake_fault(error)
        self._wiring.reporting.count("rpc_dials_failed", 1, code)
        if self._failed == 1:
            self._tell("warning", "not reached", {"code": code, "why": why})
        self._again()

    def _again(self) -> None:
        """Wait before the next dial, longer each time; nothing is dialled for nobody."""
        self._expire()
        if not self._queue:
            self.state = State.IDLE
            return
        self.state = State.WAITING
        self.reconnects += 1
        self._wiring.reporting.count("rpc_reconnects", 1, self.role)
        delay = self._backoff * (0.5 + random.random() / 2)
        self._backoff = min(self._backoff * 2, self._wiring.limits.backoff_seconds_max)
        self._timer = self._wiring.loop.call_later(delay, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._expire()
        if self._queue:
            self._dial()
        else:
            self.state = State.IDLE

    def _expire(self) -> None:
        """Drop what waited too long."""
        oldest = monotonic() - self._wiring.limits.queue_seconds_max
        while self._queue and self._queue[0][0] < oldest:
            _, framed, kind = self._queue.popleft()
            self.queued_bytes -= len(framed)
            self._wiring.dropped("stale", kind)

    # ------------------------------------------------------------ told by the link

    def attached(self, link: "Link") -> None:
        """The stream is there; WELCOME is awaited."""
        self._link = link

    def resumed(self) -> None:
        """The kernel took everything."""
        if self._queue and not self._flush_due:
            self._flush()

    def lost(self, link: "Link", why: str) -> None:
        """The connection ended, by whomever."""
        if self._link is not link:
            return
        self._link = None
        if self.state is State.CLOSED:
            self._finish()
        elif self.state is State.OPEN:
            if why:
                self._tell("warning", "connection lost", {"why": why})
            limits = self._wiring.limits
            if monotonic() - self._opened_at > limits.backoff_seconds_max:
                # Not on WELCOME: a peer that lets us in and throws us out would be dialled without a pause.
                self._backoff = limits.backoff_seconds_min
            self._again()

    def _tell(self, level: str, event: str, fields: dict[str, object]) -> None:
        told: dict[str, object] = {"peer": self.address, "peer_role": self.role.value}
        self._wiring.reporting.log(level, event, told | fields)

    # ------------------------------------------------------------ the end

    @property
    def resting(self) -> bool:
        """Nothing waits and nothing is open: the peer may be forgotten."""
        return self.state is State.IDLE and not self._queue

    def close(self) -> "asyncio.Future[None] | None":
        """Say what waits where there is a connection, then end; None: ended already."""
        if self._timer is not None:
            self._timer.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
        link = self._link
        if link is not None and self.state is State.OPEN:
            batch = list(self._queue)
            self._queue.clear()
            if batch:
                link.write(batch)
        for _, _, kind in self._queue:
            self._wiring.dropped("closed", kind)
        self._queue.clear()
        self.queued_bytes = 0
        self.state = State.CLOSED
        if link is None:
            return None
        self._ended = self._wiring.loop.create_future()
        link.close()
        return self._ended

    def abort(self) -> None:
        """Cut the connection."""
        if self._link is not None:
            self._link.abort()

    def _finish(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


class Link(asyncio.Protocol):
    """One dialled stream: HELLO, keepalive, and writes whose time until the kernel took them is measured."""

    def __init__(self, peer: Outgoing) -> None:
        wiring = peer._wiring
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
