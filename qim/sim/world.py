"""The driver of a simulated world: one event heap, no real time, machines stepped in batches.

An entry is (tiebreak, target, payload) in the bucket of its millisecond; a bucket is sorted by tiebreaks once, when its
time comes, and what has the same one stays in the order in which it was given. First all targets of a millisecond take what arrives, then every machine that took something is stepped
once with its whole inbox, as the production runtime does. Nothing lands in the millisecond in which it was ordered,
except facts between machines of one process.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final

import msgspec
from xxhash import xxh3_128

from qim.sim.choice import Dice

Target = Callable[[Any], None]

DIGEST_EVERY: Final = 256
CHECKPOINT_EVERY: Final = 16
"""Hashed blocks between two checkpoints of the rolling digest."""
PASSES_MAX: Final = 64
"""Rounds of same-process facts in one millisecond; more is a loop between two machines."""

_TIEBREAK: Final = itemgetter(0)


class Trace:
    """The rolling digest: small tuples, encoded and hashed once every ``DIGEST_EVERY`` of them."""

    __slots__ = ("_encode", "_hash", "blocks", "checkpoints", "entries")

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.blocks = 0
        self.checkpoints: list[tuple[int, str]] = []
        self._hash = xxh3_128()
        self._encode = msgspec.msgpack.Encoder().encode

    def flush(self, now: int) -> None:
        """Hash what waits; ``now`` names the checkpoint."""
        self._hash.update(self._encode(self.entries))
        self.entries.clear()
        self.blocks += 1
        if self.blocks % CHECKPOINT_EVERY == 0:
            self.checkpoints.append((now, self._hash.hexdigest()))

    def digest(self, now: int) -> str:
        """32 hex digits over everything so far."""
        self.flush(now)
        return self._hash.hexdigest()


class World:
    """The heap, the clock of truth, and what is counted. Services and nodes hang themselves into it."""

    def __init__(self, seed: int) -> None:
        self.now = 0
        self.dice = Dice(seed)
        self.trace = Trace()
        self.ready: list[Any] = []
        self.steps = 0
        self.events = 0
        self.stopped = False
        self._times: list[int] = []
        self._buckets: dict[int, list[tuple[int, Target, Any]]] = {}

    def at(self, time: int, tiebreak: int, target: Target, payload: Any) -> None:
        """``target(payload)`` at world time ``time`` (at the earliest in the next millisecond)."""
        if time <= self.now:
            time = self.now + 1
        bucket = self._buckets.get(time)
        if bucket is None:
            self._buckets[time] = [(tiebreak, target, payload)]
            heappush(self._times, time)
        else:
            bucket.append((tiebreak, target, payload))

    def run(self, until: int) -> None:
        """Let time pass up to and with ``until`` ms, or until somebody sets ``stopped``."""
        times, buckets = self._times, self._buckets
        while times and times[0] <= until and not self.stopped:
            self.now = heappop(times)
            bucket = buckets.pop(self.now)
            if len(bucket) > 1:
                bucket.sort(key=_TIEBREAK)
            for _, target, payload in bucket:
                target(payload)
            if self.ready:
                self._step_ready()
        if not self.stopped:
            self.now = until

    def _step_ready(self) -> None:
        passes = 0
        while self.ready:
            ready, self.ready = self.ready, []
            for host in ready:
                host.run()
            passes += 1
            assert passes < PASSES_MAX, "machines of one process keep waking each other"
        if len(self.trace.entries) >= DIGEST_EVERY:
            self.trace.flush(self.now)
