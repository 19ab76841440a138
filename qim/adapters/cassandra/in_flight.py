"""Statements under way: the driver's threads answer, the event loop hears; never more than a bound.

The driver calls back on threads of its own. Each answer goes into a queue that one call of the loop empties: a wake-up for
every answer would cost more than the answers. Its threads are also what ends a statement in time: should they be gone,
nothing would be answered for ever, so a driver that is silent with statements under way ends the process.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from qim.adapters import breakage

SILENT_LOOKS_MAX: Final = 2
"""One may be a process that was paused, whose driver has had no time yet either."""
Statement = tuple[Any, Sequence[object]]
"""(prepared statement, its values)."""
Rows = Sequence[tuple[Any, ...]]


class DriverSilent(Exception):
    """Statements are under way, and the driver neither answers them nor lets them run out of time."""


class _Group:
    """Statements asked for together: one result each, told when all have theirs."""

    __slots__ = ("done", "left", "results")

    def __init__(self, count: int, done: "asyncio.Future[list[Rows | BaseException]]") -> None:
        self.results: list[Rows | BaseException] = [()] * count
        self.left = count
        self.done = done

    def take(self, at: int, result: Rows | BaseException) -> None:
        self.results[at] = result
        self.left -= 1
        if self.left == 0 and not self.done.done():
            self.done.set_result(self.results)


class InFlight:
    """``run`` one statement, or ``gather`` many; on the event loop only."""

    def __init__(
        self,
        session: Any,
        loop: asyncio.AbstractEventLoop,
        *,
        profile: object,
        bound: int,
        silent_s: float,
    ) -> None:
        """``silent_s``: well above the time the driver gives a statement."""
        self._session = session
        self._loop = loop
        self._profile = profile
        self._queue: deque[tuple[Statement, _Group, int]] = deque()
        self._answered: deque[tuple[_Group, int, Rows | BaseException]] = deque()
        self._waking = False
        self._silent_s = silent_s
        self._looking = False
        self._heard = False
        self._silent_looks = 0
        self.bound = bound
        self.count = 0
        """Sent and not answered (metric)."""

    @property
    def queued(self) -> int:
        """Not sent yet (metric)."""
        return len(self._queue)

    async def run(self, statement: Statement) -> Rows:
        """The rows of one statement. Raises what the driver raised."""
        (result,) = await self.gather((statement,))
        if isinstance(result, BaseException):
            raise result
        return result

    async def gather(self, statements: Sequence[Statement]) -> list[Rows | BaseException]:
        """One result a statement, its rows or the exception, when every one of them has one."""
        if not statements:
            return []
        group = _Group(len(statements), self._loop.create_future())
        self._queue.extend([(statement, group, at) for at, statement in enumerate(statements)])
        self._pump()
        return await group.done

    def _pump(self) -> None:
        while self._queue and self.count < self.bound:
            (prepared, values), group, at = self._queue.popleft()
            if group.done.done():
                continue  # nobody waits for it any more: it need not be sent
            self.count += 1
            if not self._looking:
                self._look_later()
            try:
                sent = self._session.execute_async(
                    prepared, values, execution_profile=self._profile
                )
            except Exception as error:
                self._hear(error, group, at)
                continue
            sent.add_callbacks(
                callback=self._hear,
                callback_args=(group, at),
                errback=self._hear,
                errback_args=(group, at),
            )

    def _hear(self, result: Rows | BaseException | None, group: _Group, at: int) -> None:
        """On any thread."""
        self._answered.append((group, at, () if result is None else result))
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                return  # the loop is closed: nobody is left to be answered

    def _deliver(self) -> None:
        # Lowered first: an answer that comes while the queue is emptied wakes the loop once more than needed, never once less.
        self._waking = False
        self._heard = True
        while self._answered:
            group, at, result = self._answered.popleft()
            self.count -= 1
            group.take(at, result)
        self._pump()

    def _look_later(self) -> None:
        self._looking = True
        self._heard = False
        self._loop.call_later(self._silent_s, self._look)

    def _look(self) -> None:
        self._looking = False
        if not self.count:
            self._silent_looks = 0
            return
        self._silent_looks = 0 if self._heard else self._silent_looks + 1
        if self._silent_looks < SILENT_LOOKS_MAX:
            self._look_later()
            return
        seconds = self._silent_s * SILENT_LOOKS_MAX
        error = DriverSilent(f"{self.count} statements, no answer for {seconds:g} s")
        breakage.tell(self._loop, "the archive's driver", error)
