"""Appends: idempotent, acks=all, one batch of a partition in flight, one request a broker with all that waits for it.

A batch is sent under (producer id, sequence). Until its time is up it is tried again with the same number, over new
connections and leaders, and the broker takes it once. Then it is settled: Failed where no attempt can have been written,
Unknown otherwise, and the partition goes on under another producer id, because the sequence number of a batch whose fate
is open can neither be used again nor skipped. What was answered Unknown is never sent again by us; what of it still lies
in a broker's queue may land later, behind what came after it (pipeline.md §1.5).
"""

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiokafka.protocol.transaction import InitProducerIdRequest

from qim.adapters.kafka.append_job import Answer, AppendJob, Identity, sequence_after
from qim.adapters.kafka.cluster import BrokerGone, Cluster, Lane
from qim.adapters.kafka.outcomes import Outcome, outcome_of, why_failed
from qim.adapters.kafka.pump import Pump
from qim.adapters.kafka.settings import BATCH_OVERHEAD_BYTES, RECORD_BYTES_MAX, KafkaSettings
from qim.adapters.kafka.wire import AskAppend
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import Append, AppendRefused

LOG: Final = logging.getLogger(__name__)
NO_TRANSACTION: Final = None
TOPIC_GONE: Final = FailReason.UNREACHABLE
"""Never INVALID, which blames the records: a writer would refuse them for ever."""


class _Line:
    """One partition: its appends in order, the first one in flight or about to be."""

    __slots__ = ("burnt", "busy", "identity", "jobs", "key", "ready_at", "sequence")

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.jobs: deque[AppendJob] = deque()
        self.identity: Identity | None = None
        self.burnt: Identity | None = None
        """The identity under which the fate of a batch stayed open."""
        self.sequence = 0
        self.busy = False
        self.ready_at = 0.0

    def begin(self, identity: Identity) -> None:
        self.identity = identity
        self.sequence = 0

    def burn(self) -> None:
        self.burnt, self.identity = self.identity, None


class Producer:
    """``append`` takes a request whose topic is known; every answer comes on the loop, none later than delivery_ms
    and one request after it was taken."""

    def __init__(
        self,
        settings: KafkaSettings,
        loop: AbstractEventLoop,
        cluster: Cluster,
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._cluster = cluster
        self._wall_ms = wall_ms
        self._lines: dict[tuple[str, int], _Line] = {}
        self._active: dict[tuple[str, int], _Line] = {}
        self._nodes_busy: set[int] = set()
        self._identity: Identity | None = None
        self._identifying = False
        self._unidentified = False
        self._pump = Pump(
            loop,
            pause_ms=settings.backoff_ms,
            what="the sending of appends",
            look=self._send_ready,
        )
        self._closing: asyncio.Future[None] | None = None
        self._batch_bytes_max: dict[str, int] = {}
        self._topic_ids: dict[str, bytes] = {}
        self.observe: Callable[[str, int], None] = lambda topic, microseconds: None
        """Told of every append that stands: topic name, µs from submit to answer."""
        self.waiting = 0
        self.bytes_waiting = 0
        self.retries = 0
        self.unknowns = 0
        self.identities = 0
        cluster.on_refreshed.append(self._pump.soon)

    async def start(self, batch_bytes_max: Mapping[str, int]) -> None:
        """``batch_bytes_max`` a topic, as its max.message.bytes has it. Raises BrokerGone without a producer id."""
        for name, limit in batch_bytes_max.items():
            self._batch_bytes_max[name] = min(limit, self._settings.batch_bytes_max)
            self._topic_ids[name] = self._cluster.topic_id(name)
        deadline = self._loop.time() + self._settings.delivery_ms / 1000
        while not await self._take_identity():
            if self._loop.time() > deadline:
                raise BrokerGone("no broker gives a producer id", sent=False)

    async def close(self) -> None:
        """What can be settled within close_ms is; then what was never sent is Failed and the rest Unknown."""
        self._closing = self._loop.create_future()
        self._pump.soon()
        if self._active:
            await asyncio.wait([self._closing], timeout=self._settings.close_ms / 1000)
        await self._pump.close()
        for line in [*self._active.values()]:
            while line.jobs:
                self._end(line).failed(FailReason.CANCELLED)

    @property
    def in_flight(self) -> int:
        """Batches on the wire."""
        return sum(line.busy for line in self._active.values())

    def record_bytes_max(self, name: str) -> int:
        """The largest value that fits into a batch of its own; the key may take as much as a message id."""
        fits = self._batch_bytes_max.get(name, RECORD_BYTES_MAX) - BATCH_OVERHEAD_BYTES
        return min(RECORD_BYTES_MAX, fits)

    def append(self, append: Append, name: str, answer: Answer) -> None:
        """See ports/log.py."""
        if self._closing is not None:
            answer(Failed(op=append.op, why=FailReason.CANCELLED))
            return
        if not append.records:
            answer(Failed(op=append.op, why=FailReason.INVALID))
            return
        if not self._same_topic(name):
            answer(Failed(op=append.op, why=TOPIC_GONE))
            return
        limit = self.record_bytes_max(name)
        for index, record in enumerate(append.records):
            if len(record.value) > limit:
                why = f"record of {len(record.value)} bytes, at most {limit}"
                answer(AppendRefused(op=append.op, index=index, why=why))
                return
        now = self._loop.time()
        job = AppendJob(
            append, answer, submitted=now, deadline=now + self._settings.delivery_ms / 1000
        )
        if (
            self.waiting >= self._settings.appends_waiting_max
            or self.bytes_waiting + job.size > self._settings.append_bytes_waiting_max
        ):
            answer(Failed(op=append.op, why=FailReason.OVERLOADED))
            return
        job.cut(self._batch_bytes_max[name])
        key = (name, append.partition)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(key)
        line.jobs.append(job)
        self._active[key] = line
        self.waiting += 1
        self.bytes_waiting += job.size
        self._pump.soon()

    # ---------------------------------------------------------------- sending

    def _send_ready(self) -> bool:
        now = self._loop.time()
        ready: dict[int, list[_Line]] = {}
        stuck = False
        for line in [*self._active.values()]:
            if line.busy:
                continue
            self._expire(line, now)
            if line.jobs and not self._same_topic(line.key[0]):
                self._drop_all(line)
            if not line.jobs:
                continue
            leader = self._cluster.leader(*line.key)
            if leader is None:
                self._cluster.want_refresh()
                stuck = True
            elif line.ready_at > now or not self._identified(line):
                stuck = True
            elif leader.node not in self._nodes_busy:
                ready.setdefault(leader.node, []).append(line)
        for node, lines in ready.items():
            self._nodes_busy.add(node)
            self._pump.begin(self._send(node, self._first(lines)))
        if self._closing is not None and not self._active and not self._closing.done():
            self._closing.set_result(None)
        return stuck

    def _first(self, lines: list[_Line]) -> list[_Line]:
        """As many as fit into a request; the others are next, in the order they came."""
        taken: list[_Line] = []
        size = 0
        for line in lines:
            size += line.jobs[0].size
            if taken and size > self._settings.request_bytes_max:
                break
            taken.append(line)
        for line in taken:
            line.busy = True
            # Behind the others when it has more: nobody waits for ever in a full request.
            self._active[line.key] = self._active.pop(line.key)
        return taken

    async def _send(self, node: int, lines: list[_Line]) -> None:
        """One request, and what its answer says about each of its batches."""
        topics: dict[str, list[tuple[int, bytes]]] = {}
        doubts: list[bool] = []
        wall = self._wall_ms()
        for line in lines:
            assert line.identity is not None
            job = line.jobs[0]
            self.retries += job.attempts > 0
            job.attempts += 1
            # Until its answer is understood; whatever cuts this short leaves it so.
            doubts.append(job.unsure)
            job.unsure = True
            batch = job.bytes_under(line.identity, line.sequence, wall)
            topics.setdefault(line.key[0], []).append((line.key[1], batch))
        request = AskAppend(topics, self._topic_ids, acks_ms=self._settings.acks_ms)
        names = {self._topic_ids[name]: name for name in topics}
        told: dict[tuple[str, int], tuple[Any, ...]] = {}
        sent = True
        try:
            answer = await self._cluster.ask(node, Lane.APPEND, request)
            for topic, parts, *_ in answer.topics:
                told.update({(names.get(topic, topic), part[0]): part for part in parts})
        except BrokerGone as gone:
            sent = gone.sent
        except Exception:
            # An answer that can't be read: its batches may be written. After a pause they are tried again, as any other.
            LOG.exception("an append request to broker %d failed", node)
        finally:
            self._nodes_busy.discard(node)
            for line in lines:
                line.busy = False
            self._pump.soon()
        for line, doubt in zip(lines, doubts, strict=True):
            line.jobs[0].unsure = doubt
            part = told.get(line.key)
            if part is not None:
                self._judge(line, part)
            else:
                self._again(line, unsure=sent)

    def _judge(self, line: _Line, part: tuple[Any, ...]) -> None:
        """``part``: partition, error, base offset, append time, log start, record errors, message."""
        job = line.jobs[0]
        fields: tuple[Any, ...] = (*part, (), None)
        _, code, base, append_time, _, record_errors, message, *_ = fields
        outcome = outcome_of(code)
        match outcome:
            case Outcome.DONE if base < 0:
                self._give_up(line)
            case Outcome.DONE:
                line.sequence = sequence_after(line.sequence, job.records)
                if job.stands(base, append_time if append_time >= 0 else self._wall_ms()):
                    self._end(line).appended()
                    elapsed = self._loop.time() - job.submitted
                    self.observe(line.key[0], int(elapsed * 1_000_000))
            case Outcome.TOO_LARGE:
                if not job.halve():
                    self._end(line).refused(0, message or "larger than the topic takes")
            case Outcome.INVALID if record_errors:
                index, why, *_ = record_errors[0]
                self._end(line).refused(index, why or message or "not taken by the topic")
            case Outcome.INVALID | Outcome.UNAUTHORISED:
                self._end(line).failed(why_failed(outcome))
            case Outcome.NOT_WRITTEN:
                self._cluster.want_refresh()
                self._again(line, unsure=False)
            case Outcome.OUT_OF_SEQUENCE if not job.unsure:
                LOG.warning("%s/%d: sequence lost (error %d)", *line.key, code)
                line.burn()
                self._again(line, unsure=False)
            case Outcome.OUT_OF_SEQUENCE | Outcome.WRITTEN_SOMEWHERE:
                self._give_up(line)
            case Outcome.UNSURE:
                self._cluster.want_refresh()
                self._again(line, unsure=True)

    def _same_topic(self, name: str) -> bool:
        """Another creation of the topic: its offsets mean nothing to who remembers those of the first."""
        return self._cluster.topic_id(name) == self._topic_ids.get(name)

    def _drop_all(self, line: _Line) -> None:
        while line.jobs:
            self._end(line).failed(TOPIC_GONE)

    def _again(self, line: _Line, *, unsure: bool) -> None:
        line.jobs[0].unsure |= unsure
        line.ready_at = self._loop.time() + self._settings.backoff_ms / 1000
        self._expire(line, self._loop.time())

    def _expire(self, line: _Line, now: float) -> None:
        """Settle what has been tried long enough."""
        while line.jobs and line.jobs[0].deadline <= now:
            if line.jobs[0].unsure:
                self._give_up(line)
            else:
                self._end(line).failed(FailReason.UNREACHABLE)

    def _give_up(self, line: _Line) -> None:
        LOG.warning("%s/%d: the fate of an append is open", *line.key)
        line.jobs[0].unsure = True
        self._end(line).unknown()

    def _end(self, line: _Line) -> AppendJob:
        """Its first job leaves the line.

        Under the number of a batch whose fate is open nothing else may go: the broker would take it for that batch,
        and answer with the offset of that one what it never wrote.
        """
        job = line.jobs.popleft()
        if job.unsure and not job.complete:
            self.unknowns += 1
            line.burn()
        self.waiting -= 1
        self.bytes_waiting -= job.size
        if not line.jobs:
            self._active.pop(line.key, None)
        return job

    # ---------------------------------------------------------------- identity

    def _identified(self, line: _Line) -> bool:
        if line.identity is not None:
            return True
        if self._identity is not None and self._identity != line.burnt:
            line.begin(self._identity)
            return True
        if not self._identifying:
            self._identifying = True
            self._pump.begin(self._renew_identity())
        return False

    async def _renew_identity(self) -> None:
        try:
            await self._take_identity()
        finally:
            self._identifying = False
            self._pump.soon()

    async def _take_identity(self) -> bool:
        """Another producer id; False after a failure and the wait of one backoff."""
        try:
            answer = await self._cluster.ask_any(InitProducerIdRequest(NO_TRANSACTION, 0))
        except BrokerGone as gone:
            self._no_identity(str(gone))
        else:
            if answer.error_code == 0:
                self._unidentified = False
                self._identity = Identity(answer.producer_id, answer.producer_epoch)
                self.identities += 1
                return True
            # 14 and 15 are a broker that has only just started.
            if answer.error_code not in (14, 15):
                self._no_identity(f"error {answer.error_code}")
        await asyncio.sleep(self._settings.backoff_ms / 1000)
        return False

    def _no_identity(self, why: str) -> None:
        """Told once an outage."""
        if not self._unidentified:
            self._unidentified = True
            LOG.warning("no producer id: %s", why)
