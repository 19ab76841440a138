"""The way into one shard's dispatch log: a queue in source order and at most one Append in flight.

An Unknown append is sent again with the same records before anything later: the copy that lands late is claimed away
downstream (pipeline.md §3.1), but a later record overtaking an unsettled one would break source order.
"""

from collections import deque

from qim.core.fanout.orders import Orders, What
from qim.core.fanout.partition import Outgoing
from qim.core.fanout.vocabulary import FanoutConfig
from qim.core.ports.log import Append, Topic

TRACES_MAX = 4


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


class Outlets:
    """The outlets in use, by shard; their number is bounded by the shards, their queues by the partitions' windows."""

    __slots__ = ("_config", "_orders", "_outlets")

    def __init__(self, config: FanoutConfig, orders: Orders) -> None:
        self._config = config
        self._orders = orders
        self._outlets: dict[int, Outlet] = {}

    def queue(self, out: Outgoing) -> None:
        """One more dispatch for its shard."""
        self._outlets.setdefault(out.shard, Outlet()).queue.append(out)

    def append(self) -> None:
        """End of a step: one Append for each shard that has something and nothing in flight."""
        config = self._config
        for shard in list(self._outlets):
            outlet = self._outlets[shard]
            batch = outlet.next_batch(config.append_records_max, config.append_bytes_max)
            if batch:
                outlet.in_flight = True
                self._orders.give(
                    Append(
                        op=self._orders.op(What.APPEND, shard=shard),
                        topic=Topic.DISPATCH,
                        partition=shard,
                        epoch=max(out.partition.epoch for out in batch),
                        records=tuple(out.record for out in batch),
                        traces=tuple(out.trace_id for out in batch[:TRACES_MAX]),
                    )
                )
            elif outlet.idle():
                del self._outlets[shard]

    def settle(self, shard: int) -> tuple[Outgoing, ...]:
        """The shard's Append is answered: what was in it."""
        return self._outlets[shard].settle()

    def stored(self, shard: int) -> None:
        """The Append is durable."""
        self._outlets[shard].attempts = 0

    def repeat(self, shard: int, batch: tuple[Outgoing, ...]) -> int:
        """The batch is to be sent again once ``resume`` is called. Answers how often it has failed in a row."""
        outlet = self._outlets[shard]
        outlet.attempts += 1
        outlet.repeat(batch)
        return outlet.attempts

    def resume(self, shard: int) -> None:
        """The time to send a batch again has come."""
        self._outlets[shard].put_off = False

    def drop_retired(self) -> None:
        """Forget what partitions of the past queued."""
        for outlet in self._outlets.values():
            outlet.drop_retired()

    def idle(self) -> bool:
        """Nothing is on its way to any shard."""
        return all(outlet.idle() for outlet in self._outlets.values())

    def count(self) -> int:
        """Dispatches on their way."""
        return sum(len(outlet.queue) + len(outlet.batch) for outlet in self._outlets.values())

    def count_by_partition(self) -> dict[int, int]:
        """Dispatches on their way, of living partitions."""
        on_way: dict[int, int] = {}
        for outlet in self._outlets.values():
            for out in (*outlet.batch, *outlet.queue):
                if out.partition.live:
                    number = out.partition.number
                    on_way[number] = on_way.get(number, 0) + 1
        return on_way
