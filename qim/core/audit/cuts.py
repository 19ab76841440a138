"""The logical cut: where every log ended when the run began, and how far its consumers have come (pipeline.md §8).

    ENDS --all answered--> BARRIERS (and openings) --> PROGRESS --all passed the cut, or looked at often enough--> done
                                           |--behind: looked at again after a pause--> PROGRESS

No wall time decides anything: a consumer that stays behind makes its range INCOMPLETE, never an orphan.
"""

from enum import IntEnum
from functools import partial
from typing import Any

from qim.core.audit.reads import (
    BarrierOf,
    CheckpointOf,
    EndsOf,
    OpeningOf,
    Purpose,
    Reads,
    StateOf,
)
from qim.core.audit.run import AuditRun, ShardCut
from qim.core.audit.tenure import Tenure
from qim.core.audit.vocabulary import AuditConfig
from qim.core.machine import Ms
from qim.core.ports.log import ReadEnds, Topic
from qim.core.ports.registry import ReadLease, Resource, Role
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.ports.store_source import ReadSource


class _Phase(IntEnum):
    ENDS = 0
    BARRIERS = 1
    PROGRESS = 2
    LOOKED = 3


class Cuts:
    """The first stage of a run."""

    def __init__(
        self,
        run: AuditRun,
        config: AuditConfig,
        reads: Reads,
        tenure: Tenure,
        *,
        begin_at: Ms,
    ) -> None:
        self._begin_at = begin_at
        self._tenure = tenure
        self._run = run
        self._config = config
        self._reads = reads
        self._phase = _Phase.ENDS
        self._looks = 0

    def advance(self, now: Ms) -> bool:
        """Queue the next reads; False when the cut stands."""
        match self._phase:
            case _Phase.ENDS:
                for topic, count in (
                    (Topic.OUTBOX, len(self._run.partitions)),
                    (Topic.DISPATCH, len(self._run.shards)),
                ):
                    for number in range(count):
                        request = ReadEnds(op=0, topic=topic, partition=number)
                        self._reads.ask_at(self._begin_at, request, EndsOf(topic, number))
                self._phase = _Phase.BARRIERS
            case _Phase.BARRIERS:
                for cut in self._run.partitions:
                    self._ask_barrier(cut.number, cut.start)
                self._open_coverage()
                self._phase = _Phase.PROGRESS
            case _Phase.PROGRESS:
                self._look(now)
                self._phase = _Phase.LOOKED
            case _:
                if not self._behind() or self._looks >= self._config.attempts_max:
                    self._tell_what_retention_took()
                    return False
                self._look(now + self._config.retry_ms)
        return True

    def take(self, purpose: Purpose, reply: Any) -> None:
        """One answer."""
        match purpose:
            case EndsOf(topic=Topic.OUTBOX):
                cut = self._run.partitions[purpose.number]
                cut.start, cut.end, cut.walked_to = reply.start, reply.end, reply.start
            case EndsOf():
                shard = self._run.shards[purpose.number]
                shard.start, shard.end, shard.walked_to = reply.start, reply.end, reply.start
            case BarrierOf():
                # A filter that begins at the log's start takes the greatest registered barrier below it (§1.7).
                found = reply.barrier_offset >= 0
                self._run.partitions[purpose.number].initial_epoch = (
                    reply.barrier_epoch if found else 0
                )
            case OpeningOf():
                cut = self._run.partitions[purpose.number]
                cut.opened = True
                self._run.reset |= not cut.seen_in(reply.incarnation)
            case CheckpointOf():
                cut = self._run.partitions[purpose.number]
                cut.checkpoint = reply.checkpoint
                self._run.reset |= not cut.seen_in(reply.incarnation)
            case _:
                assert isinstance(purpose, StateOf), purpose
                take_state(self._run, purpose, reply)

    def _ask_barrier(self, number: int, below: int) -> None:
        resource = Resource(role=Role.WRITER, number=number)
        request = ReadLease(op=0, resource=resource, barriers_below=below)
        self._reads.ask(request, BarrierOf(number))

    def _open_coverage(self) -> None:
        """Before any fact is read: what an older epoch still drops is gone by then, and reported by nobody as there."""
        if not self._config.advance_coverage or not self._tenure.epoch:
            return
        self._run.epoch = self._tenure.epoch
        for cut in self._run.partitions:
            order = partial(self._tenure.opening, cut.number)
            self._reads.ask_anew(order, OpeningOf(cut.number))

    def _look(self, at: Ms) -> None:
        self._looks += 1
        for cut in self._run.partitions:
            request = ReadSource(op=0, partition=cut.number, low=0, high=0, limit=1)
            self._reads.ask_at(at, request, CheckpointOf(cut.number))
        for number in range(len(self._run.shards)):
            self._reads.ask_at(at, ReadShardState(op=0, shard=number), StateOf(number))

    def _tell_what_retention_took(self) -> None:
        """A log that begins above a checkpoint has lost records nobody dispatched: coverage must not begin in silence."""
        for cut in self._run.partitions:
            if 0 <= cut.checkpoint < cut.start:
                what, why = f"outbox {cut.number}", "retention took them before fanout had passed"
                self._run.left_out(what, why, cut.checkpoint, cut.start)

    def _behind(self) -> bool:
        return any(
            cut.checkpoint < cut.end and cut.end > cut.start for cut in self._run.partitions
        ) or any(shard_is_behind(shard) for shard in self._run.shards)


def shard_is_behind(shard: ShardCut) -> bool:
    """Whether some lane has not passed the last dispatch of the cut."""
    return shard.end > shard.start and not shard.passed(shard.end - 1)


def take_state(run: AuditRun, purpose: StateOf, reply: ShardStateRead) -> None:
    """A mailbox shard's state; another incarnation than before voids what was read."""
    shard = run.shards[purpose.number]
    run.reset |= not shard.seen_in(reply.incarnation)
    shard.trim = max(shard.trim, reply.trim)
    shard.min_watermark = reply.min_watermark if reply.base >= 0 else -1
    shard.settled = dict(reply.settled)
