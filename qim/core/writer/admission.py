"""Admission L2 (conversation) and L3 (tenant): token buckets in whole milli-tokens, before any look-up (pipeline.md §1.1)."""

from collections import OrderedDict
from collections.abc import Hashable


class TokenBuckets:
    """One bucket a key, ``rate_per_s`` refilled up to ``burst_max``; the least recently used keys are forgotten, full.

    A rate of 0 admits everything and keeps nothing. It does not remember who was refused.
    """

    def __init__(self, rate_per_s: int, burst_max: int, keys_max: int) -> None:
        self._rate = rate_per_s  # = milli-tokens per ms
        self._full = burst_max * 1000
        self._keys_max = keys_max
        self._buckets: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._changed = False

    def admit(self, key: Hashable, now: int) -> int:
        """0 and a token less, or the ms after which there will be one."""
        if self._rate == 0:
            return 0
        self._changed = True
        level, at = self._buckets.pop(key, (self._full, now))
        level = min(self._full, level + (now - at) * self._rate)
        wait = 0 if level >= 1000 else -(-(1000 - level) // self._rate)
        self._buckets[key] = (level if wait else level - 1000, now)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return wait

    def check(self) -> None:
        """Bounded, and no bucket holds less than nothing or more than a burst; ``admit`` alone changes one."""
        if self._changed:
            self._changed = False
            assert len(self._buckets) <= self._keys_max
            assert all(0 <= level <= self._full for level, _ in self._buckets.values())
