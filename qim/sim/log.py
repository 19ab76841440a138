"""The logs' fake: partitions with leaders, append outcomes nobody can tell apart, fetches that wait, what faults do.

``Unknown`` of an append means appended, not, or LATER: long after every time-out, crash and lease change; that is what the
outbox's barrier and the dispatch log's claims are for. Appends of one partition by one process keep their order.
"""

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from qim.core.contract.entities import MessageKind
from qim.core.contract.hashing import H
from qim.core.contract.logvalue import Outboxed, barrier_value, read_outbox
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.log import (
    Append,
    Appended,
    AppendRefused,
    EndsRead,
    Fetch,
    Fetched,
    LogRecord,
    OutOfRange,
    ReadEnds,
    StoredRecord,
    Topic,
)
from qim.core.ports.registry import Resource, Role
from qim.sim.choice import DETAIL_MASK, DETAIL_SHIFT, TIEBREAK_SHIFT, Way, fault_level
from qim.sim.clock import Curve
from qim.sim.network import Cuts
from qim.sim.node import Host
from qim.sim.partition import Partition
from qim.sim.sites import LOG, LOG_LATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from qim.sim.world import World

    Heard = Callable[[Partition, Host, Append, tuple[StoredRecord, ...]], None]

APPEND_TIMEOUT_MS: Final = 3_000
LATE_MAX_MS: Final = 25_000
RECORD_BYTES_MAX: Final = 1 << 20
_ROLE_OF: Final = {
    Topic.OUTBOX: Role.WRITER,
    Topic.DISPATCH: Role.FANOUT,
    Topic.USER_STATE: Role.SESSION,
}


class Rates(Struct, kw_only=True):
    """Rates of 65,536 for one append (or fetch), while a fault's window is open."""

    reply_lost: int = 0
    not_appended: int = 0
    late: int = 0
    refused: int = 0
    doubled: int = 0
    short: int = 0
    fetch_failed: int = 0
    extra_ms: int = 0


class Log:
    """The topics of one cluster, with a wall clock of its own (LogAppendTime)."""

    name = "log"

    def __init__(
        self, world: "World", wall: Curve, cuts: Cuts, *, base_ms: int, spread_ms: int
    ) -> None:
        self.world = world
        self.wall = wall
        self._invalid: set[bytes] = set()  # looked up, never walked
        self.cuts = cuts
        self.way = Way(base_ms, spread_ms)
        self.partitions: dict[tuple[Topic, int], Partition] = {}
        self.rates = Rates()
        self.rated = False
        self.rated_windows = 0
        self.heard: Heard | None = None
        self.counts: dict[str, int] = {}
        self.appends = 0

    def create(self, topic: Topic, count: int, start: int) -> None:
        """A topic with ``count`` partitions whose first offset is ``start``."""
        for number in range(count):
            topic_id = _identity(topic, 1)
            self.partitions[topic, number] = Partition(topic, number, start, topic_id)

    # ------------------------------------------------------------ routes

    def append(self, host: Host, effect: Append) -> None:
        """Acks=all: Appended, AppendRefused, Failed or Unknown."""
        world = self.world
        traces = effect.traces
        draw = world.dice.draw(LOG[Append], traces[0] if traces else host.identity)
        resource = Resource(role=_ROLE_OF[effect.topic], number=effect.partition)
        # A fanout's dispatches go to shards it doesn't own: only the outbox's appender is its lease holder.
        if effect.topic is Topic.OUTBOX and not host.node.holds(resource, effect.epoch):
            self._count("lease_check_refused")
            world.at(world.now, 0, host.take, Failed(op=effect.op, why=FailReason.LEASE_LOST))
            return
        tiebreak = draw >> TIEBREAK_SHIFT
        arrival = world.now + self.way.there(draw) + host.node.slow_ms
        fate = "appended"
        if self.rated:
            arrival += self.rates.extra_ms
            fate = self._fate(draw, host, effect)
            if fate == "late":
                self._late(host, effect, tiebreak)
                return
        lane = (self.name, effect.topic, effect.partition)
        at, order = host.in_line(lane, arrival, tiebreak)
        world.at(at, order, self._arrive, (host, effect, draw, world.now, fate))

    def fetch(self, host: Host, effect: Fetch) -> None:
        """Records at once if there are any, else when they come, else none after wait_ms."""
        draw = self.world.dice.draw(LOG[Fetch] ^ effect.partition, host.identity)
        arrival = self.world.now + self.way.there(draw) + host.node.slow_ms
        self.world.at(arrival, draw >> TIEBREAK_SHIFT, self._fetch_arrives, (host, effect, draw))

    def read_ends(self, host: Host, effect: ReadEnds) -> None:
        """Topic id, start and end as of the arrival."""
        draw = self.world.dice.draw(LOG[ReadEnds] ^ effect.partition, host.identity)
        arrival = self.world.now + self.way.there(draw) + host.node.slow_ms
        self.world.at(arrival, draw >> TIEBREAK_SHIFT, self._ends_arrive, (host, effect, draw))

    # ------------------------------------------------------------ appends

    def _fate(self, draw: int, host: Host, effect: Append) -> str:
        level, rates = fault_level(draw), self.rates
        refusing = effect.topic is Topic.OUTBOX and host.node.role != "operator"
        for fate, rate in (
            ("late", rates.late),
            ("reply_lost", rates.reply_lost),
            ("not_appended", rates.not_appended),
            ("refused", rates.refused if refusing else 0),
            ("doubled", rates.doubled if effect.topic is Topic.DISPATCH else 0),
        ):
            if level < rate:
                self._count(f"log.{fate}")
                return fate
            level -= rate
        return "appended"

    def _late(self, host: Host, effect: Append, tiebreak: int) -> None:
        world = self.world
        traces = effect.traces
        late = world.dice.draw(LOG_LATE, traces[0] if traces else host.identity)
        self.world.at(world.now + APPEND_TIMEOUT_MS, tiebreak, host.take, Unknown(op=effect.op))
        landing = world.now + APPEND_TIMEOUT_MS + late % LATE_MAX_MS
        world.at(landing, tiebreak, self._land_late, (host, effect))

    def _land_late(self, payload: tuple[Host, Append]) -> None:
        host, effect = payload
        self._count("log.landed_late")
        self._store(self.partitions[effect.topic, effect.partition], host, effect)

    def _arrive(self, payload: tuple[Host, Append, int, int, str]) -> None:
        host, effect, draw, sent, fate = payload
        world = self.world
        partition = self.partitions[effect.topic, effect.partition]
        now = world.now
        give_up = sent + APPEND_TIMEOUT_MS
        if now < partition.stalled_until:
            if partition.stalled_until > give_up and fate != "silent":
                self._count("log.stalled_past_timeout")
                world.at(give_up, 0, host.take, Unknown(op=effect.op))
                fate = "silent"
            payload = (host, effect, draw, sent, fate)
            world.at(partition.stalled_until, draw >> TIEBREAK_SHIFT, self._arrive, payload)
            return
        if fate == "silent":
            self._store(partition, host, effect)
            return
        if now < partition.leaderless_until:
            self._count("log.no_leader")
            why = FailReason.UNREACHABLE
            world.at(now + 1, 0, host.take, Failed(op=effect.op, why=why))
            return
        if fate == "not_appended" or (self.cuts and self.cuts.between(host.node.name, self.name)):
            world.at(give_up, 0, host.take, Unknown(op=effect.op))
            return
        refused = self._refusal(partition, effect, fate)
        if refused is not None:
            world.at(now + self.way.back(draw), 0, host.take, refused)
            return
        stored = self._store(partition, host, effect)
        if fate == "doubled":
            # A retry under a new producer id: the same batch once more, when it pleases.
            late = world.dice.draw(LOG_LATE, effect.traces[0] if effect.traces else host.identity)
            world.at(now + 1 + late % LATE_MAX_MS, 0, self._land_late, (host, effect))
        if fate == "reply_lost" or (self.cuts and self.cuts.between(self.name, host.node.name)):
            world.at(give_up, 0, host.take, Unknown(op=effect.op))
            return
        lane = (self.name, effect.topic, effect.partition, "reply")
        at, order = host.in_line(lane, now + self.way.back(draw), draw >> TIEBREAK_SHIFT)
        answer = Appended(
            op=effect.op,
            offsets=tuple(record.offset for record in stored),
            append_time=stored[0].append_time,
        )
        world.at(at, order, host.take, answer)

    def _refusal(self, partition: Partition, effect: Append, fate: str) -> AppendRefused | None:
        for index, record in enumerate(effect.records):
            if len(record.value) > RECORD_BYTES_MAX:
                return AppendRefused(op=effect.op, index=index, why="record too large")
        if fate != "refused" and not self._invalid:
            return None
        for index, record in enumerate(effect.records):
            # A membership record is checked before it is reserved: a log that refuses one is a stop (pipeline.md §1.5).
            message_id = _message_of(record, partition)
            if message_id and (fate == "refused" or message_id in self._invalid):
                # Refused for what it is, so whenever it comes: an OPEN may bring it again when its mark was lost.
                self._invalid.add(message_id)
                return AppendRefused(op=effect.op, index=index, why="invalid record")
        return None

    def _grow(
        self, partition: Partition, records: tuple[LogRecord, ...]
    ) -> tuple[StoredRecord, ...]:
        world, end = self.world, partition.end
        wall = self.wall.read(world.now)
        stored = tuple(
            StoredRecord(offset=end + i, append_time=wall, key=record.key, value=record.value)
            for i, record in enumerate(records)
        )
        partition.records.extend(stored)
        self.appends += 1
        for record in stored:
            world.trace.entries.append(
                (world.now, partition.topic, partition.number, record.offset, record.value)
            )
        return stored

    def _store(self, partition: Partition, host: Host, effect: Append) -> tuple[StoredRecord, ...]:
        while partition.is_again(effect.records):
            self._grow(partition, (partition.first_again(),))
        stored = self._grow(partition, effect.records)
        if self.heard is not None:
            self.heard(partition, host, effect, stored)
        if partition.waiters:
            waiters, partition.waiters = partition.waiters, []
            for waiting, fetch, draw in waiters:
                self._answer_fetch(partition, waiting, fetch, draw)
        return stored

    # ------------------------------------------------------------ reads

    def _fetch_arrives(self, payload: tuple[Host, Fetch, int]) -> None:
        host, effect, draw = payload
        if host.dead:
            return
        partition = self.partitions[effect.topic, effect.partition]
        if self._unreadable(partition, host, effect, draw):
            return
        if self._outside(partition, host, effect, draw):
            return
        if effect.offset < partition.end or effect.wait_ms <= 0:
            self._answer_fetch(partition, host, effect, draw)
            return
        waiter = (host, effect, draw)
        partition.waiters.append(waiter)
        self.world.at(self.world.now + effect.wait_ms, 0, self._fetch_expires, waiter)

    def _fetch_expires(self, waiter: tuple[Host, Fetch, int]) -> None:
        host, effect, draw = waiter
        partition = self.partitions[effect.topic, effect.partition]
        for index, other in enumerate(partition.waiters):
            if other is waiter:
                del partition.waiters[index]
                self._answer_fetch(partition, host, effect, draw)
                return

    def _outside(self, partition: Partition, host: Host, effect: Fetch, draw: int) -> bool:
        """The asked position is not in this log: its offset, or the record before it."""
        within = partition.start <= effect.offset <= partition.end
        other = within and partition.differs(effect.offset, effect.before)
        if within and not other:
            return False
        self._count("log.other_record" if other else "log.out_of_range")
        answer = OutOfRange(
            op=effect.op,
            topic_id=partition.topic_id,
            start=partition.start,
            end=partition.end,
            other_record=other,
        )
        self.world.at(self.world.now + self.way.back(draw), 0, host.take, answer)
        return True

    def _answer_fetch(self, partition: Partition, host: Host, effect: Fetch, draw: int) -> None:
        if host.dead or self._outside(partition, host, effect, draw):
            return
        limit = effect.limit
        if self.rated and fault_level(draw) < self.rates.short:
            self._count("log.short_fetch")
            limit = 1
        records = partition.slice(effect.offset, limit, effect.bytes_max)
        answer = Fetched(
            op=effect.op,
            topic_id=partition.topic_id,
            start=partition.start,
            end=partition.end,
            records=records,
        )
        self.world.at(
            self.world.now + self.way.back(draw), draw >> TIEBREAK_SHIFT, host.take, answer
        )

    def _ends_arrive(self, payload: tuple[Host, ReadEnds, int]) -> None:
        host, effect, draw = payload
        partition = self.partitions[effect.topic, effect.partition]
        if self._unreadable(partition, host, effect, draw):
            return
        answer = EndsRead(
            op=effect.op, topic_id=partition.topic_id, start=partition.start, end=partition.end
        )
        self.world.at(
            self.world.now + self.way.back(draw), draw >> TIEBREAK_SHIFT, host.take, answer
        )

    def _unreadable(
        self, partition: Partition, host: Host, effect: Fetch | ReadEnds, draw: int
    ) -> bool:
        now = self.world.now
        cut = bool(self.cuts) and (
            self.cuts.between(host.node.name, self.name)
            or self.cuts.between(self.name, host.node.name)
        )
        failing = self.rated and (draw >> DETAIL_SHIFT & DETAIL_MASK) < self.rates.fetch_failed
        if (
            not cut
            and not failing
            and now >= max(partition.leaderless_until, partition.stalled_until)
        ):
            return False
        self._count("log.read_failed")
        why = FailReason.UNREACHABLE
        self.world.at(now + 200, 0, host.take, Failed(op=effect.op, why=why))
        return True

    # ------------------------------------------------------------ what faults do

    def put(self, host: Host, effect: Append) -> tuple[StoredRecord, ...]:
        """An append of somebody who isn't simulated further."""
        return self._store(self.partitions[effect.topic, effect.partition], host, effect)

    def retain(self, partition: Partition, start: int) -> None:
        """Retention moves the start up, to the end at most."""
        if partition.retain(start):
            self._count("log.retention")

    def compact(self, partition: Partition, before: int) -> None:
        """Of the records below ``before`` all go that a later one of them supersedes; a reader sees holes."""
        for _ in range(partition.compact(before)):
            self._count("log.compacted")

    def lose_tail(
        self, partition: Partition, count: int, *, refill: bool, apart: bool = False
    ) -> None:
        """The last records are gone, acknowledged ones too. ``refill``: late copies that mean nothing stand there at once;
        ``apart``: none comes to its very place again, where nobody could tell that it had been away."""
        lost = partition.cut(count)
        if not lost:
            return
        self._count("log.tail_lost")
        if apart:
            partition.was.update(((one.offset, one.value), None) for one in lost)
        if refill:
            first, outbox = (*partition.records[:1], *lost)[0], partition.topic is Topic.OUTBOX
            value = barrier_value(0) if outbox else first.value
            again = LogRecord(key=b"" if outbox else first.key, value=value)
            self._grow(partition, (again,) * (len(lost) + 1))

    def recreate(self, partition: Partition, generation: int) -> None:
        """The topic is another one: new identity, empty, offsets from 0 again."""
        self._count("log.recreated")
        partition.recreate(_identity(partition.topic, generation))

    # ------------------------------------------------------------ inside

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def _identity(topic: Topic, generation: int) -> bytes:
    return H("qim.sim.topic", topic.value, generation)


def _message_of(record: LogRecord, partition: Partition) -> bytes:
    """Its message_id; b"" for a barrier, a control message, and what stands or stood there: that is valid."""
    entry = read_outbox(record.value)
    if isinstance(entry, Outboxed) and entry.record.kind != MessageKind.CONTROL:
        return b"" if entry.record.message_id in partition.lost else entry.record.message_id
    return b""
