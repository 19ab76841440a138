"""Retention of one embedded topic: what is old AND needed by nobody goes, a bounded piece at a time.

A broker forgets by age alone. Here that would be a trap: a server that stood still for longer than the retention would,
at its next start, forget what its own consumers have not read yet. So the assembly also says from which offset on a
partition is still needed, and a partition of which nothing is known keeps everything.
"""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Final

from qim.adapters.embedded.log_file import TRIM_RECORDS_MAX
from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.core.ports.log import Topic

LOOK_SECONDS: Final = 60.0
"""Between two rounds over all partitions; a partition with more to forget is asked again at once."""

NeededFrom = Callable[[int, Callable[[int | None], None]], None]
"""``needed_from(partition, answer)``: answers the first offset somebody needs, None where that can't be said now."""


class LogRetention:
    """Started once; everything on the event loop. ``count(name, value)`` takes what it did, for the metrics.

    waiting --LOOK_SECONDS--> partition 0 --asked, trimmed--> partition 1 --> … --> waiting
    """

    def __init__(
        self,
        log: SqliteLog,
        loop: AbstractEventLoop,
        *,
        topic: Topic,
        retention_ms: int,
        wall_ms: Callable[[], int],
        needed_from: NeededFrom,
        count: Callable[[str, int], None],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._log = log
        self._loop = loop
        self._topic = topic
        self._retention_ms = retention_ms
        self._wall_ms = wall_ms
        self._needed_from = needed_from
        self._count = count
        self._look_seconds = look_seconds
        self._timer: TimerHandle | None = None
        self._stopped = False

    def start(self) -> None:
        """The first round begins now."""
        self._look(0)

    def stop(self) -> None:
        """No further job; one in flight ends by itself."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, number: int) -> None:
        if self._stopped:
            return
        if number < self._log.partition_count(self._topic):
            self._needed_from(number, lambda needed: self._needed(number, needed))
            return
        self._timer = self._loop.call_later(self._look_seconds, self._look, 0)

    def _needed(self, number: int, keep_from: int | None) -> None:
        if self._stopped:
            return
        if keep_from is None:
            self._look(number + 1)
            return
        before = self._log.start_of(self._topic, number)

        def done(result: object) -> None:
            self._trimmed(number, before, result)

        self._log.trim_older(
            self._topic,
            number,
            older_than=self._wall_ms() - self._retention_ms,
            keep_from=keep_from,
            done=done,
        )

    def _trimmed(self, number: int, before: int, result: object) -> None:
        if not isinstance(result, int):
            self._count("log_retention_failed", 1)
            self._look(number + 1)
            return
        if result > before:
            self._count("log_records_expired", result - before)
        full = result - before >= TRIM_RECORDS_MAX
        self._look(number if full else number + 1)
