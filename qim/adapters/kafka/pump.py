"""One look a turn of the loop at all that waits, however often it is wanted; and another after a pause while something does."""

import asyncio
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Coroutine
from typing import Any

from qim.adapters import breakage


class Pump:
    """``look`` sends what can be sent and says whether something waits for time to pass; ``what`` names it where it breaks."""

    def __init__(
        self, loop: AbstractEventLoop, *, pause_ms: int, what: str, look: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._pause_s = pause_ms / 1000
        self._what = what
        self._look_now = look
        self._wanted = False
        self._closed = False
        self._timer: TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def closed(self) -> bool:
        """Nothing is sent any more."""
        return self._closed

    def soon(self) -> None:
        """What is handed over in one turn of the loop goes into one request."""
        if not self._wanted and not self._closed:
            self._wanted = True
            self._loop.call_soon(self._look)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """A request under way, cut short by ``close``."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """No further look, and nothing under way when this returns."""
        self._closed = True
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._wanted = False
        if self._closed:
            return
        with breakage.telling(self._loop, self._what):
            if self._look_now() and self._timer is None:
                self._timer = self._loop.call_later(self._pause_s, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._look()
