"""The bytes of one connection: calls out in one write a turn of the loop, replies back in order.

Replies carry no name, so the n-th reply belongs to the n-th call and to nothing else. Hence the three rules here: a call
whose caller went away keeps its place until its reply has been read; a reply too many or bytes that are no reply end the
connection; and once a reply is overdue the connection is closed, since nothing tells a late one from the next one.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import hiredis

from qim.adapters.redis.outcomes import NotConnected, ReplyLost, ServerError

Outcome = Any
"""A reply (bytes, int, None, list) or an exception of outcomes.py, as a value: nobody need look at it."""


class ReplyPipeline(asyncio.Protocol):
    """One connection's life; made anew for the next one. All methods belong to the event loop's thread."""

    def __init__(self, *, call_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._call_timeout_s = call_timeout_s
        self._reader = hiredis.Reader(replyError=ServerError)
        self._transport: asyncio.Transport | None = None
        self._pending: deque[asyncio.Future[Outcome]] = deque()
        self._unwritten: list[bytes] = []
        self._unwritten_calls = 0
        self._unwritten_bytes = 0
        self._flush_due = False
        self._sent = 0
        self._answered = 0
        self._writes: deque[tuple[int, float]] = deque()  # (calls sent up to here, when)
        self._timer: asyncio.TimerHandle | None = None
        self._why_closed = ""
        self.lost: asyncio.Future[str] = self._loop.create_future()

    @property
    def usable(self) -> bool:
        """Whether what is sent now can still go out."""
        return (
            self._transport is not None
            and not self.lost.done()
            and not self._transport.is_closing()
        )

    @property
    def inflight(self) -> int:
        """Calls without their reply, those of departed callers included."""
        return len(self._pending)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the socket has not taken yet, those of this turn of the loop included."""
        written = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return written + self._unwritten_bytes

    def send(self, packed: Sequence[bytes]) -> list[asyncio.Future[Outcome]]:
        """A future for each call, always resolved with a value, never with an exception."""
        assert self.usable
        futures = [self._loop.create_future() for _ in packed]
        self._pending.extend(futures)
        self._unwritten.extend(packed)
        self._unwritten_calls += len(futures)
        self._unwritten_bytes += sum(map(len, packed))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return futures

    def abort(self, why: str) -> None:
        """Close at once; what is under way becomes ReplyLost."""
        self._why_closed = self._why_closed or why
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._flush_due = False
        if self._transport is None or not self.usable:
            return
        data = b"".join(self._unwritten)
        self._unwritten.clear()
        self._sent += self._unwritten_calls
        self._unwritten_calls = 0
        self._unwritten_bytes = 0
        self._forget_answered_writes()
        self._writes.append((self._sent, self._loop.time()))
        self._transport.write(data)
        if self._timer is None:
            self._timer = self._loop.call_later(self._call_timeout_s, self._look_for_overdue)

    def _look_for_overdue(self) -> None:
        self._timer = None
        self._forget_answered_writes()
        if not self._writes:
            return
        due = self._writes[0][1] + self._call_timeout_s
        if due <= self._loop.time():
            self.abort("a reply is overdue")
        else:
            self._timer = self._loop.call_at(due, self._look_for_overdue)

    def _forget_answered_writes(self) -> None:
        while self._writes and self._writes[0][0] <= self._answered:
            self._writes.popleft()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        gets, pending = self._reader.gets, self._pending
        written = len(pending) - self._unwritten_calls
        try:
            self._reader.feed(data)
            while (reply := gets()) is not False:
                if not written:
                    self.abort("a reply to no call")
                    return
                written -= 1
                self._answered += 1
                future = pending.popleft()
                if not future.done():  # its caller may have gone away
                    future.set_result(reply)
        except hiredis.ProtocolError as error:
            self.abort(f"not a reply: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        why = self._why_closed or str(error or "closed by the server")
        if self._timer is not None:
            self._timer.cancel()
        written = len(self._pending) - self._unwritten_calls
        for place, future in enumerate(self._pending):
            if not future.done():
                future.set_result(ReplyLost(why) if place < written else NotConnected(why))
        self._pending.clear()
        self._unwritten.clear()
        self._unwritten_calls = 0
        self._unwritten_bytes = 0
        self._writes.clear()
        if not self.lost.done():
            self.lost.set_result(why)
