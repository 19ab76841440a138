"""FanoutCoordinator: one GroupDispatch a target shard for every effective outbox record (pipeline.md §2).

It owns outbox partitions by lease. OpenSource raises the fence and answers the checkpoint in one script; only then it
fetches. Dispatches of one source partition to one shard keep source order; when all dispatches of a prefix are durable,
ONE fenced script writes their receipts and moves the checkpoint. It reads versions, never today's members, and holds no
bodies beyond its window; it does NOT decide who sees a message twice: a repeated dispatch is claimed away downstream.

A record of a partition (the partition's own states stand in partition.py):

    fetched --barrier, ineffective, undecodable--> sent
    fetched --version known--> dispatched --every shard durable--> sent --CommitSource, in order--> gone
       |--NotYet: the whole partition waits, with alarm
       |--newer format: the whole partition halts
"""

from collections.abc import Sequence
from typing import Final, assert_never

from msgspec.structs import replace

from qim.core.contract.entities import ReceiptShard
from qim.core.contract.invariants import Stage as MessageStage
from qim.core.fanout import opening
from qim.core.fanout.admitting import admit
from qim.core.fanout.committing import commit_source, committed
from qim.core.fanout.dispatching import dispatches
from qim.core.fanout.orders import Orders, What
from qim.core.fanout.outlet import Outlets
from qim.core.fanout.partition import Outgoing, Partition, SourceItem, Stage
from qim.core.fanout.vocabulary import (
    APPEND_REFUSED,
    POSITION_MISMATCH,
    VERSION_UNKNOWN,
    FanoutCompletion,
    FanoutConfig,
    FanoutEffect,
    FanoutEvent,
)
from qim.core.machine import Choose, Ms, kinds
from qim.core.opener import Opener
from qim.core.ports.completion import Failed, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.log import Appended, AppendRefused, EndsRead, Fetched, OutOfRange
from qim.core.ports.observe import Count, Gauge, StageReached, Violation, queue
from qim.core.ports.registry import LeaseRead, Resource, Role
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from qim.core.ports.store_source import SourceCommitted, SourceOpened
from qim.core.position import record_digest, why_strange
from qim.core.timers import Timers, back_off, earliest
from qim.core.version_shelf import VersionShelf

_ANSWERS: Final = kinds(FanoutCompletion) - {StoreReset}
"""What always answers an op."""


class FanoutCoordinator:
    """The machine: LeaseHeld --> a Partition (states in partition.py) --> a checkpoint that never runs ahead."""

    def __init__(self, config: FanoutConfig, *, choose: Choose) -> None:
        self._config = config
        self._opener = Opener(choose, Role.FANOUT)
        self._orders = Orders()
        self._partitions: dict[int, Partition] = {}
        self._outlets = Outlets(config, self._orders)
        self._timers = Timers()
        self._draining = False
        self._touched: dict[int, None] = {}
        """Partitions for which something happened in this step: the others have nothing new to order."""
        self._shelf = VersionShelf(
            shard_count=config.shard_count,
            names_max=config.version_names_max,
            members_max=config.version_members_max,
            retry_first_ms=config.retry_first_ms,
            retry_most_ms=config.retry_most_ms,
        )

    # ------------------------------------------------------------ the shape

    def step(self, now: Ms, events: Sequence[FanoutEvent]) -> list[FanoutEffect]:
        """Take facts, then order what they make possible: commits, fetches, appends, reads of versions."""
        self._touched.clear()
        for event in events:
            self._take(now, event)
        for number, what in self._timers.due(now):
            self._resume(number, What[what])
        for number in self._touched:
            if number in self._partitions:
                self._pump(now, self._partitions[number])
        self._outlets.append()
        self._read_versions(now)
        return self._orders.taken()

    def deadline(self) -> Ms | None:
        """The earliest retry."""
        return earliest(self._timers.next(), self._shelf.deadline())

    def idle(self) -> bool:
        """No record is half dispatched, no checkpoint or append in flight (a parked Fetch doesn't count)."""
        windows = any(p.window_records() for p in self._partitions.values())
        return not windows and self._outlets.idle()

    def serving(self) -> int:
        """How many partitions are open and dispatch."""
        return sum(partition.stage is Stage.RUNNING for partition in self._partitions.values())

    def gauges(self, now: Ms) -> list[Gauge]:
        """Bounded structures and the lag of each partition, by a driver that is asked for them."""
        config, partitions = self._config, self._partitions.values()
        out = [
            *queue(
                "fanout.window",
                sum(p.window_records() for p in partitions),
                config.window_records_max * len(partitions),
            ),
            *queue(
                "fanout.window_bytes",
                sum(p.window_bytes for p in partitions),
                config.window_bytes_max * len(partitions),
            ),
            Gauge(name="fanout_outlet_records", value=self._outlets.count()),
            Gauge(name="fanout_versions_wanted", value=self._shelf.waiting()),
            Gauge(name="shards_serving", value=self.serving(), label="fanout"),
        ]
        for p in partitions:
            if p.stage is Stage.RUNNING:
                lag = max(0, p.end - p.checkpoint)
                out.append(Gauge(name="fanout_lag_records", value=lag, label=str(p.number)))
                out.append(Gauge(name="fanout_halted", value=p.halted, label=str(p.number)))
        return out

    def check(self) -> None:
        """Windows are dense and bounded, every missing place is on its way, the shelf's books balance."""
        on_way = self._outlets.count_by_partition()
        for partition in self._partitions.values():
            if partition.number in self._touched:
                partition.check()
            assert partition.window_records() <= self._config.window_records_max
            missing = sum([item.missing for item in partition.sent])
            assert missing == on_way.get(partition.number, 0), "a dispatch is nowhere"
        self._shelf.check()

    # ------------------------------------------------------------ events

    def _take(self, now: Ms, event: FanoutEvent) -> None:
        if type(event) in _ANSWERS:
            self._on_completion(now, event)  # type: ignore[arg-type]
            return
        match event:
            case LeaseHeld():
                self._on_lease_held(event)
            case LeaseGone():
                if event.resource.role is Role.FANOUT:
                    self._forget(event.resource.number)
            case DrainRequested():
                self._draining = True
            case Started():
                pass
            case StoreReset(op=None):
                if event.store is StoreRole.MESSAGE:
                    self._on_store_reset()
            case _:
                self._on_completion(now, event)

    def _on_completion(self, now: Ms, event: FanoutCompletion) -> None:
        assert event.op is not None
        pending = self._orders.pending.pop(event.op)
        partition = pending.partition
        if pending.what is What.APPEND:
            self._on_append_answer(now, pending.shard, event)
        elif pending.what is What.VERSIONS:
            self._on_versions_answer(now, event)
        elif partition is not None and partition.live:
            self._touched[partition.number] = None
            self._on_partition_answer(now, partition, pending.what, event)

    def _on_partition_answer(
        self, now: Ms, partition: Partition, what: What, event: FanoutCompletion
    ) -> None:
        mismatch: str | None = None
        match event:
            case Fetched() | OutOfRange():
                mismatch = self._on_fetch_answer(now, partition, event)
            case SourceCommitted():
                committed(partition)
            case SourceOpened():
                opening.on_source_opened(self._orders, partition, event)
            case EndsRead():
                mismatch = opening.on_ends_read(self._orders, partition, event)
            case LeaseRead():
                opening.on_barrier_read(partition, event)
            case Failed() | Unknown():
                self._put_off(now, partition, what)
                return
            case Fenced():
                self._want_fresh_epoch(partition, event.epoch)
                return
            case StoreReset():
                self._shelf.clear()
                self._want_fresh_epoch(partition, 0)
                return
            case Appended() | AppendRefused() | VersionsRead():
                raise AssertionError(f"{type(event).__name__} answers no op of a partition")
            case _:
                assert_never(event)
        partition.attempts.pop(what, None)
        if mismatch is not None:
            self._stop(partition, POSITION_MISMATCH, mismatch)

    # ------------------------------------------------------------ leases

    def _on_lease_held(self, event: LeaseHeld) -> None:
        if event.resource.role is not Role.FANOUT:
            return
        number = event.resource.number
        self._forget(number)
        partition = self._partitions[number] = Partition(number, event.epoch)
        opening.open_source(self._orders, partition, self._opener)

    def _forget(self, number: int) -> None:
        partition = self._partitions.pop(number, None)
        if partition is not None:
            self._retire(partition)

    def _retire(self, partition: Partition) -> None:
        partition.retire()
        self._shelf.forget(partition.number)
        for what in (What.OPEN, What.ENDS, What.BARRIER, What.FETCH, What.COMMIT):
            self._timers.clear((partition.number, what.name))
        self._outlets.drop_retired()

    def _on_store_reset(self) -> None:
        """The adapter noticed another incarnation by itself: nothing learnt in the old one justifies a request."""
        self._shelf.clear()
        for number in list(self._partitions):
            self._want_fresh_epoch(self._partitions[number], 0)

    def _want_fresh_epoch(self, partition: Partition, above: int) -> None:
        """What this epoch learnt is void; a new object begins with the next LeaseHeld (pipeline.md §0)."""
        if partition.stage is Stage.AWAITING_EPOCH:
            return
        self._retire(partition)
        partition.stage = Stage.AWAITING_EPOCH
        resource = Resource(role=Role.FANOUT, number=partition.number)
        self._orders.give(FreshEpochWanted(resource=resource, above=above))

    def _stop(self, partition: Partition, check: str, detail: str) -> None:
        """There is no automatic reset: the partition stands until somebody looked at it (pipeline.md §7)."""
        self._retire(partition)
        partition.stage = Stage.STOPPED
        self._orders.give(Violation(check=check, detail=f"outbox/{partition.number}: {detail}"))

    # ------------------------------------------------------------ fetching

    def _on_fetch_answer(
        self, now: Ms, partition: Partition, event: Fetched | OutOfRange
    ) -> str | None:
        partition.fetching = False
        if partition.stage is Stage.CHECKING:
            return opening.on_predecessor(self._orders, partition, event)
        strange = why_strange(partition.topic_id, partition.next_offset, event)
        if strange is not None or isinstance(event, OutOfRange):
            return strange
        partition.heard_start(now, event.start, self._config.receipts_grace_ms)
        partition.end = event.end
        for stored in event.records:
            item = admit(self._orders, partition, stored)
            if item is None:
                break
            self._want_version(now, partition, item)
        if partition.undispatched and event.records:
            partition.before = record_digest(partition.undispatched[-1].stored)
        return None

    # ------------------------------------------------------------ versions

    def _want_version(self, now: Ms, partition: Partition, item: SourceItem) -> None:
        if item.named is not None and self._shelf.find(item.named) is None:
            number, offset = partition.number, item.stored.offset
            self._shelf.want(now, item.named, writer_shard=number, waiter=number, offset=offset)

    def _read_versions(self, now: Ms) -> None:
        names = self._shelf.next_names(now)
        if names:
            self._orders.give(ReadVersions(op=self._orders.op(What.VERSIONS), names=names))

    def _on_versions_answer(self, now: Ms, event: FanoutCompletion) -> None:
        if not isinstance(event, VersionsRead):
            self._shelf.failed(now)
            return
        shelf = self._shelf.answered(now, event)
        self._touched.update(dict.fromkeys(self._partitions))
        if shelf.not_yet:
            count = Count(name="version_not_yet", value=shelf.not_yet, label="fanout")
            self._orders.give(count)
        for conversation_id, version, digest in shelf.unknown:
            name = f"{conversation_id.hex()} V{version} {digest.hex()}"
            self._orders.give(Violation(check=VERSION_UNKNOWN, detail=f"fanout waits for {name}"))

    # ------------------------------------------------------------ dispatching

    def _pump(self, now: Ms, partition: Partition) -> None:
        if partition.stage is not Stage.RUNNING:
            return
        while partition.undispatched and self._dispatch(now, partition):
            partition.sent.append(partition.undispatched.popleft())
        if partition.commit is None:
            prefix = partition.committable(self._config.commit_records_max)
            if prefix:
                commit_source(self._orders, partition, prefix)
        if not self._draining and not self._timers.has((partition.number, What.FETCH.name)):
            opening.fetch_if_room(self._orders, self._config, partition)

    def _dispatch(self, now: Ms, partition: Partition) -> bool:
        """Queue the head record's dispatches; False where its version is awaited, and all behind it wait too."""
        item = partition.undispatched[0]
        if item.outboxed is None:
            return True
        audience = None
        if item.named is not None:
            audience = self._shelf.find(item.named)
            if audience is None:
                self._want_version(now, partition, item)
                return False
        for out in dispatches(self._config, partition, item, audience):
            self._outlets.queue(out)
        return True

    def _on_append_answer(self, now: Ms, shard: int, event: FanoutCompletion) -> None:
        batch = self._outlets.settle(shard)
        if isinstance(event, Appended):
            self._outlets.stored(shard)
            for out, offset in zip(batch, event.offsets, strict=True):
                if out.partition.live:
                    self._on_durable(out, offset)
            return
        if isinstance(event, AppendRefused) and batch[event.index].partition.live:
            refused = batch[event.index]
            detail = f"shard {shard}, source {refused.item.stored.offset}: {event.why}"
            self._stop(refused.partition, APPEND_REFUSED, detail)
        attempts = self._outlets.repeat(shard, batch)
        self._timers.set((shard, What.APPEND.name), now + self._delay(attempts))

    def _on_durable(self, out: Outgoing, offset: int) -> None:
        item = out.item
        self._touched[out.partition.number] = None
        assert item.places is not None and item.places[out.place] is None
        item.places[out.place] = ReceiptShard(shard=out.shard, offset=offset, digest=out.digest)
        item.missing -= 1
        if not item.missing:
            sent_at = item.outboxed.record.sent_at if item.outboxed is not None else 0
            stage = StageReached(
                trace_id=out.trace_id, stage=MessageStage.DISPATCHED, sent_at=sent_at
            )
            self._orders.give(stage)

    # ------------------------------------------------------------ waiting

    def _delay(self, attempts: int) -> Ms:
        return back_off(attempts, self._config.retry_first_ms, self._config.retry_most_ms)

    def _put_off(self, now: Ms, partition: Partition, what: What) -> None:
        if what is What.FETCH:
            partition.fetching = False
        attempts = partition.attempts[what] = partition.attempts.get(what, 0) + 1
        self._timers.set((partition.number, what.name), now + self._delay(attempts))

    def _resume(self, number: int, what: What) -> None:
        """A retry's time has come. A fetch while running, and nothing else, is ordered again by the pump itself."""
        if what is What.APPEND:
            self._outlets.resume(number)
            return
        partition = self._partitions[number]
        self._touched[number] = None
        if what is What.OPEN:
            opening.open_source(self._orders, partition, self._opener)
        elif what is What.ENDS or partition.stage is Stage.CHECKING:
            partition.stage = Stage.READING_ENDS
            opening.read_ends(self._orders, partition)
        elif what is What.BARRIER:
            opening.read_barrier(self._orders, partition)
        elif what is What.COMMIT:
            assert partition.commit is not None
            op = self._orders.op(What.COMMIT, partition)
            partition.commit = replace(partition.commit, op=op)
            self._orders.give(partition.commit)
