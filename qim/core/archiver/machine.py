"""HistoryArchiver: every effective outbox record becomes a row of the archive, and only then may a hot row go (pipeline.md §5).

It owns outbox partitions by lease. OpenArchive raises the fence and answers the position; the archive's own position is
asked beside it, the lower one is where the walk starts. Batches are written one at a time a partition; a batch whose answer
is Unknown is written again, since every row is idempotent. It reads nothing of the hot store but its position, judges no
membership, and never skips a record it could not read.

A record of a partition (the partition's own states stand in partition.py):

    fetched --barrier, ineffective, undecodable: no row--> batch
    fetched --effective: a row with its retained_until--> batch
    batch --Unknown, Failed--> the same batch again
    batch --ArchiveWritten--> confirmed --CommitArchive: position and watermark--> gone
       |--newer format: the partition halts before it
"""

from collections.abc import Sequence
from typing import Final, assert_never

from msgspec.structs import replace

from qim.core.archiver import batching, opening
from qim.core.archiver.orders import Orders, What
from qim.core.archiver.partition import Partition, Stage
from qim.core.archiver.vocabulary import (
    BATCH_ROWS_MOST,
    POSITION_MISMATCH,
    SEQ_REUSED,
    ArchiverCompletion,
    ArchiverConfig,
    ArchiverEffect,
    ArchiverEvent,
)
from qim.core.machine import Choose, Ms, kinds
from qim.core.opener import Opener
from qim.core.ports.archive import (
    ArchivedConversationsRead,
    ArchiveExpired,
    ArchiveWritten,
    ExpireArchive,
)
from qim.core.ports.completion import Failed, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.log import EndsRead, Fetched, OutOfRange
from qim.core.ports.observe import Count, Gauge, Violation, queue
from qim.core.ports.registry import LeaseRead, Resource, Role
from qim.core.ports.store_history import ArchiveCommitted, ArchiveOpened
from qim.core.position import record_digest, why_strange
from qim.core.timers import Timers, back_off
from qim.core.wallclock import WallClock

NOBODY: Final = -1
"""Number of the timer that is no partition's: expiry."""
REUSED_NAMED_MAX: Final = 4

_ANSWERS: Final = kinds(ArchiverCompletion) - {StoreReset}
"""What always answers an op."""


class HistoryArchiver:
    """The machine: LeaseHeld --> a Partition (states in partition.py) --> a watermark that never runs ahead."""

    def __init__(self, config: ArchiverConfig, *, choose: Choose) -> None:
        assert 1 <= config.batch_rows_max <= BATCH_ROWS_MOST, config.batch_rows_max
        self._config = config
        self._opener = Opener(choose, Role.ARCHIVER)
        self._orders = Orders()
        self._partitions: dict[int, Partition] = {}
        self._timers = Timers()
        self._clock = WallClock()
        self._newest_append_time: Ms = 0
        self._expiring = False
        self._expire_attempts = 0
        self._draining = False
        self._touched: dict[int, None] = {}
        """Partitions for which something happened in this step: the others have nothing new to order."""

    # ------------------------------------------------------------ the shape

    def step(self, now: Ms, events: Sequence[ArchiverEvent]) -> list[ArchiverEffect]:
        """Take facts, then order what they make possible: batches, commits, fetches, expiry."""
        self._touched.clear()
        for event in events:
            self._take(now, event)
        for number, what in self._timers.due(now):
            self._resume(now, number, What[what])
        for number in self._touched:
            if number in self._partitions:
                self._pump(self._partitions[number])
        return self._orders.taken()

    def deadline(self) -> Ms | None:
        """The earliest retry, or the next expiry."""
        return self._timers.next()

    def idle(self) -> bool:
        """No record is half archived, no position in flight, no expiry (a parked Fetch doesn't count)."""
        return not self._expiring and not any(p.busy() for p in self._partitions.values())

    def serving(self) -> int:
        """How many partitions are open and archive."""
        return sum(partition.stage is Stage.RUNNING for partition in self._partitions.values())

    def gauges(self, now: Ms) -> list[Gauge]:
        """Bounded structures and the lag of each partition, by a driver that is asked for them."""
        config, partitions = self._config, self._partitions.values()
        out = [
            *queue(
                "archiver.window",
                sum(p.window_records() for p in partitions),
                config.window_records_max * len(partitions),
            ),
            *queue(
                "archiver.window_bytes",
                sum(p.window_bytes for p in partitions),
                config.window_bytes_max * len(partitions),
            ),
            Gauge(name="shards_serving", value=self.serving(), label="archiver"),
        ]
        for p in partitions:
            if p.stage is Stage.RUNNING:
                lag = max(0, p.end - p.checkpoint)
                out.append(Gauge(name="archiver_lag_records", value=lag, label=str(p.number)))
                out.append(Gauge(name="archiver_halted", value=p.halted, label=str(p.number)))
        return out

    def check(self) -> None:
        """Windows are dense and bounded; the position never passes what is confirmed."""
        for partition in self._partitions.values():
            if partition.live:
                partition.check()
            assert partition.window_records() <= self._config.window_records_max
            assert len(partition.batch) <= self._config.batch_rows_max

    # ------------------------------------------------------------ events

    def _take(self, now: Ms, event: ArchiverEvent) -> None:
        if type(event) in _ANSWERS:
            self._on_completion(now, event)  # type: ignore[arg-type]
            return
        match event:
            case LeaseHeld():
                self._clock.stamp(now, event.wall)
                self._on_lease_held(event)
            case LeaseGone():
                if event.resource.role is Role.ARCHIVER:
                    self._forget(event.resource.number)
            case DrainRequested():
                self._draining = True
                self._timers.clear((NOBODY, What.EXPIRE.name))
            case Started():
                self._clock.stamp(now, event.wall)
                self._timers.set((NOBODY, What.EXPIRE.name), now + self._config.expire_every_ms)
            case StoreReset(op=None):
                if event.store is StoreRole.MESSAGE:
                    for number in list(self._partitions):
                        self._want_fresh_epoch(self._partitions[number], 0)
            case _:
                self._on_completion(now, event)

    def _on_completion(self, now: Ms, event: ArchiverCompletion) -> None:
        assert event.op is not None
        pending = self._orders.pending.pop(event.op)
        partition = pending.partition
        if partition is None:
            self._on_expiry_answer(now, event)
        elif partition.live:
            self._touched[partition.number] = None
            self._on_partition_answer(now, partition, pending.what, event)

    def _on_partition_answer(
        self, now: Ms, partition: Partition, what: What, event: ArchiverCompletion
    ) -> None:
        stop: opening.Stop = None
        match event:
            case Fetched() | OutOfRange():
                stop = self._on_fetch_answer(partition, event)
            case ArchiveWritten():
                self._on_written(partition, event)
            case ArchiveCommitted():
                batching.committed(partition)
            case ArchiveOpened():
                opening.on_opened(self._orders, partition, event)
            case ArchivedConversationsRead():
                opening.on_archive_position(self._orders, partition, event)
            case EndsRead():
                stop = opening.on_ends_read(self._orders, partition, event)
            case LeaseRead():
                opening.on_barrier_read(partition, event)
            case Failed() | Unknown():
                self._put_off(now, partition, what)
                return
            case Fenced():
                self._want_fresh_epoch(partition, event.epoch)
                return
            case StoreReset():
                self._want_fresh_epoch(partition, 0)
                return
            case ArchiveExpired():
                raise AssertionError("an expiry answers no op of a partition")
            case _:
                assert_never(event)
        partition.attempts.pop(what, None)
        if stop is not None:
            self._stop(partition, *stop)

    # ------------------------------------------------------------ leases

    def _on_lease_held(self, event: LeaseHeld) -> None:
        if event.resource.role is not Role.ARCHIVER:
            return
        number = event.resource.number
        self._forget(number)
        partition = self._partitions[number] = Partition(number, event.epoch)
        opening.open_archive(self._orders, partition, self._opener)

    def _forget(self, number: int) -> None:
        partition = self._partitions.pop(number, None)
        if partition is not None:
            self._retire(partition)

    def _retire(self, partition: Partition) -> None:
        partition.retire()
        self._timers.clear_number(partition.number)

    def _want_fresh_epoch(self, partition: Partition, above: int) -> None:
        """What this epoch learnt is void; a new object begins with the next LeaseHeld (pipeline.md §0)."""
        if partition.stage is Stage.AWAITING_EPOCH:
            return
        self._retire(partition)
        partition.stage = Stage.AWAITING_EPOCH
        resource = Resource(role=Role.ARCHIVER, number=partition.number)
        self._orders.give(FreshEpochWanted(resource=resource, above=above))

    def _stop(self, partition: Partition, check: str, detail: str) -> None:
        """There is no automatic reset: the partition stands until somebody looked at it (pipeline.md §7)."""
        self._retire(partition)
        partition.stage = Stage.STOPPED
        self._orders.give(Violation(check=check, detail=f"outbox/{partition.number}: {detail}"))

    # ------------------------------------------------------------ fetching

    def _on_fetch_answer(self, partition: Partition, event: Fetched | OutOfRange) -> opening.Stop:
        partition.fetching = False
        if partition.stage is Stage.CHECKING:
            return opening.on_predecessor(self._orders, partition, event)
        partition.end = event.end
        why = why_strange(partition.topic_id, partition.next_offset, event)
        if why is not None:
            return POSITION_MISMATCH, why
        assert isinstance(event, Fetched), "an offset out of range is strange"
        for stored in event.records:
            if not batching.admit(self._orders, self._config, partition, stored):
                break
            self._newest_append_time = max(self._newest_append_time, stored.append_time)
        if partition.window and event.records:
            partition.before = record_digest(partition.window[-1].stored)
        return None

    def _fetch_if_room(self, partition: Partition) -> None:
        config = self._config
        room = config.window_records_max - partition.window_records()
        bytes_room = config.window_bytes_max - partition.window_bytes
        if partition.fetching or partition.halted or self._draining:
            return
        if room <= 0 or bytes_room <= 0 or self._timers.has((partition.number, "FETCH")):
            return
        opening.fetch(
            self._orders,
            partition,
            partition.next_offset,
            limit=min(room, config.fetch_records_max),
            bytes_max=min(bytes_room, config.fetch_bytes_max),
            wait_ms=config.fetch_wait_ms,
        )

    # ------------------------------------------------------------ archiving

    def _pump(self, partition: Partition) -> None:
        if partition.stage is not Stage.RUNNING:
            return
        if not partition.batch and partition.window:
            batching.next_batch(self._config, partition)
            batching.write(self._orders, partition)
        if partition.commit is None and partition.confirmed is not None:
            batching.commit(self._orders, partition)
        self._fetch_if_room(partition)

    def _on_written(self, partition: Partition, event: ArchiveWritten) -> None:
        rows = batching.written(self._orders, partition)
        if rows:
            self._orders.give(Count(name="archived_rows", value=rows))
        if event.reused:
            named = [f"{name.hex()} {seq}" for name, seq in event.reused[:REUSED_NAMED_MAX]]
            detail = f"outbox/{partition.number}: {len(event.reused)} places: {', '.join(named)}"
            self._orders.give(Violation(check=SEQ_REUSED, detail=detail))

    # ------------------------------------------------------------ expiry

    def _expire(self, now: Ms) -> None:
        """Not while wall clock and append times differ by more than a day: one of the two is wrong, and gone is gone."""
        wall = self._clock.read(now)
        apart = abs(wall - self._newest_append_time)
        if not self.serving() or apart > self._config.clock_apart_max_ms:
            self._timers.set((NOBODY, What.EXPIRE.name), now + self._config.expire_every_ms)
            return
        self._expiring = True
        self._orders.give(
            ExpireArchive(
                op=self._orders.op(What.EXPIRE),
                before_wall=wall,
                limit=self._config.expire_rows_max,
            )
        )

    def _on_expiry_answer(self, now: Ms, event: ArchiverCompletion) -> None:
        self._expiring = False
        if isinstance(event, ArchiveExpired):
            self._expire_attempts = 0
            if event.removed:
                self._orders.give(Count(name="archive_expired_rows", value=event.removed))
            wait = 0 if event.more else self._config.expire_every_ms
        else:
            self._expire_attempts += 1
            wait = self._delay(self._expire_attempts)
        if not self._draining:
            self._timers.set((NOBODY, What.EXPIRE.name), now + wait)

    # ------------------------------------------------------------ waiting

    def _delay(self, attempts: int) -> Ms:
        return back_off(attempts, self._config.retry_first_ms, self._config.retry_most_ms)

    def _put_off(self, now: Ms, partition: Partition, what: What) -> None:
        if what is What.FETCH:
            partition.fetching = False
        if what is What.WRITE:
            partition.writing = False
        attempts = partition.attempts[what] = partition.attempts.get(what, 0) + 1
        self._timers.set((partition.number, what.name), now + self._delay(attempts))

    def _resume(self, now: Ms, number: int, what: What) -> None:
        """A retry's time has come. A fetch while running, and nothing else, is ordered again by the pump itself."""
        if what is What.EXPIRE:
            self._expire(now)
            return
        partition = self._partitions[number]
        self._touched[number] = None
        if what is What.OPEN:
            opening.open_archive(self._orders, partition, self._opener)
        elif what is What.ASK:
            opening.ask_archive(self._orders, partition)
        elif what is What.ENDS or partition.stage is Stage.CHECKING:
            partition.stage = Stage.READING_ENDS
            opening.read_ends(self._orders, partition)
        elif what is What.BARRIER:
            opening.read_barrier(self._orders, partition)
        elif what is What.WRITE:
            batching.write(self._orders, partition)
        elif what is What.COMMIT:
            assert partition.commit is not None
            op = self._orders.op(What.COMMIT, partition)
            partition.commit = replace(partition.commit, op=op)
            self._orders.give(partition.commit)
