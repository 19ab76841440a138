"""The way into one shard's dispatch log: a queue in source order and at most one Append in flight.

An Unknown append is sent again with the same records before anything later: the copy that lands late is claimed away
downstream (pipeline.md §3.1), but a later record overtaking an unsettled one would break source order.
"""

from collections import deque

from qim.core.fanout.partition import Outgoing


class Outlet:
    """Dispatches on their way to one shard. ``batch`` is in flight or to be sent (again) before the queue."""

    __slots__ = ("attempts", "batch", "in_flight", "put_off", "queue")

    def __init__(self) -> None:
        self.queue: deque[Outgoing] = deque()
        self.batch: tuple[Outgoing, ...] = ()
        self.in_flight = False
        self.put_off = False
        """Waiting for its time to send the batch again."""
        self.attempts = 0

    def next_batch(self, records_max: int, bytes_max: int) -> tuple[Outgoing, ...]:
        """What to append now: the unsettled batch again, else the head of the queue; () while busy or put off."""
        if self.in_flight or self.put_off:
            return ()
        if not self.batch:
            self.batch = self._cut(records_max, bytes_max)
        return self.batch

    def drop_retired(self) -> None:
        """Forget what partitions of the past queued; a batch in flight is judged when it is settled."""
        self.queue = deque(out for out in self.queue if out.partition.live)
        if not self.in_flight:
            self.batch = tuple(out for out in self.batch if out.partition.live)

    def settle(self) -> tuple[Outgoing, ...]:
        """The Append in flight is answered: hand out its batch."""
        batch, self.batch, self.in_flight = self.batch, (), False
        return batch

    def repeat(self, batch: tuple[Outgoing, ...]) -> None:
        """Later, send what still has a living partition again, before anything else."""
        self.batch = tuple(out for out in batch if out.partition.live)
        self.put_off = True

    def idle(self) -> bool:
        """Nothing queued, nothing in flight."""
        return not (self.queue or self.batch or self.in_flight or self.put_off)

    def _cut(self, records_max: int, bytes_max: int) -> tuple[Outgoing, ...]:
        batch: list[Outgoing] = []
        size = 0
        while self.queue and len(batch) < records_max:
            size += len(self.queue[0].record.value)
            if batch and size > bytes_max:
                break
            batch.append(self.queue.popleft())
        return tuple(batch)
