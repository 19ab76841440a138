"""How long sockets go unread while the event loop is busy: what waits then hides in kernel buffers, where no queue is seen.

The gap is from a read to the turn after it, so an idle process measures nothing and is never woken to measure. Durations
are not taken from ``loop.time()``: uvloop's stands still during a turn.
"""

import asyncio
from collections.abc import Callable
from time import monotonic


class ReadGap:
    """``read()`` at every read: the first of a turn begins a gap, the next turn of the loop ends it."""

    __slots__ = ("_began", "_label", "_loop", "_observe", "_running", "seconds_max")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        observe: Callable[[str, float, str], None],
        label: str,
    ) -> None:
        self._loop = loop
        self._observe = observe
        self._label = label
        self._running = False
        self._began = 0.0
        self.seconds_max = 0.0
        """The longest since it was last taken (``take_max``)."""

    def read(self) -> None:
        """A socket gave bytes."""
        if not self._running:
            self._running = True
            self._began = monotonic()
            self._loop.call_soon(self._turned)

    def take_max(self) -> float:
        """The longest gap since the last call, in seconds; for a gauge that a scrape reads."""
        found, self.seconds_max = self.seconds_max, 0.0
        return found

    def _turned(self) -> None:
        self._running = False
        gap = monotonic() - self._began
        self.seconds_max = max(self.seconds_max, gap)
        self._observe("read_gap_seconds", gap, self._label)
