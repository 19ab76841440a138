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

from qim.adapters.rpc.frames import HostileBytes
from qim.adapters.rpc.link import Link, PeerRefused, Queued, connect
from qim.adapters.rpc.roles import ProcessRole
from qim.adapters.rpc.wiring import Wiring
from qim.adapters.tls.faults import handshake_fault


class State(StrEnum):
    """Where the connection to a peer stands."""

    IDLE = "idle"
    DIALLING = "dialling"
    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


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
        link = Link(self, self._wiring)
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

    def attached(self, link: Link) -> None:
        """The stream is there; WELCOME is awaited."""
        self._link = link

    def resumed(self) -> None:
        """The kernel took everything."""
        if self._queue and not self._flush_due:
            self._flush()

    def lost(self, link: Link, why: str) -> None:
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
