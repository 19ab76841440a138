"""Durations by fixed buckets: one bisection and two additions each, so that the hot path can afford them.

Bounds go 1-2-5 a decade from 10 µs to 100 s and are the same for every histogram, so that any two can be added up.
"""

from bisect import bisect_left
from typing import Final

BOUNDS_SECONDS: Final[tuple[float, ...]] = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
)  # fmt: skip
INFINITE: Final = "+Inf"


class Histogram:
    """``add`` belongs to the event loop; ``buckets`` may be read from any thread."""

    __slots__ = ("_counts", "total_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        """One more; less than nothing (two clocks) counts as nothing."""
        if seconds < 0.0:
            seconds = 0.0
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total_seconds += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """(upper bound, how many at or below it), as Prometheus has them; the last is all of them."""
        told: list[tuple[str, int]] = []
        running = 0
        names = (*map(str, BOUNDS_SECONDS), INFINITE)
        for name, count in zip(names, list(self._counts), strict=True):
            running += count
            told.append((name, running))
        return told

    def count(self) -> int:
        """How many."""
        return sum(self._counts)

    def quantile(self, part: float) -> float:
        """The upper bound of the bucket in which this part of all lies; 0 where there is none, inf above the last."""
        wanted = part * self.count()
        running = 0
        for bound, count in zip((*BOUNDS_SECONDS, float("inf")), self._counts, strict=True):
            running += count
            if running and running >= wanted:
                return bound
        return 0.0
