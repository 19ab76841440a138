"""Who waits until when: one FIFO, because every wait is equally long and monotonic time orders them by themselves."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from qim.core.writer.commit import Waiter
from qim.core.writer.orders import Orders

COMPACT_MIN: Final = 1024


class Deadlines:
    """Waiters in order of their deadlines; answered ones leave when they reach the front or when they are too many."""

    def __init__(self, orders: Orders) -> None:
        self._orders: Final = orders
        self._waiters: deque[Waiter] = deque()
        self._compact_at = COMPACT_MIN
        self._full_at = -1

    def waiter(self, address: str, rid: int, number: int) -> Waiter:
        """A new wait that ends request_timeout_ms from now; it counts once it is watched."""
        deadline = self._orders.now + self._orders.config.request_timeout_ms
        return Waiter(address=address, rid=rid, number=number, deadline=deadline)

    def watch(self, waiter: Waiter) -> None:
        """Expire it in time."""
        self._waiters.append(waiter)
        if len(self._waiters) > self._compact_at:
            self._waiters = deque([left for left in self._waiters if not left.answered])
            self._compact_at = max(COMPACT_MIN, 2 * len(self._waiters))

    def length(self) -> int:
        """Waiters held, some of them answered already."""
        return len(self._waiters)

    def full(self) -> bool:
        """waiting_requests_max requests wait."""
        limit = self._orders.config.waiting_requests_max
        if len(self._waiters) < limit:
            return False
        if self._full_at != self._orders.now:
            # Once a millisecond at most: a full house must not make each knock cost a walk through it.
            self._waiters = deque([left for left in self._waiters if not left.answered])
            self._full_at = self._orders.now
        return len(self._waiters) >= limit

    def expired(self) -> Iterator[Waiter]:
        """Those whose time is up and who were not answered; each once."""
        waiters, now = self._waiters, self._orders.now
        while waiters and (waiters[0].answered or waiters[0].deadline <= now):
            waiter = waiters.popleft()
            if not waiter.answered:
                yield waiter

    def next_deadline(self) -> int | None:
        """When ``expired`` has something to give."""
        return self._waiters[0].deadline if self._waiters else None

    def check(self) -> None:
        """Bounded and in order."""
        config = self._orders.config
        assert len(self._waiters) <= config.waiting_requests_max + config.queries_max
        if len(self._waiters) > 1:
            deadlines = [waiter.deadline for waiter in self._waiters]
            assert deadlines == sorted(deadlines)
