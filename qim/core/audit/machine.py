"""Auditor: proves from logs, receipts, facts and mailboxes that no message is an orphan (pipeline.md §8).

Its evidence is independent of the processes it judges: it reads the logs and the stores and asks no service. The cut is
logical, the end offsets at the start of the run; what has not been processed up to there is INCOMPLETE, never an orphan.
It does NOT repair anything; it deletes facts behind its CoverageCursor and nothing else.

    IDLE --AuditRequested--> ENDS --> BARRIERS --> PROGRESS --> OUTBOX (window by window, partition by partition)
      --> DISPATCH (windows) --> FACTS (pages) --> COVERAGE --AuditFinished--> IDLE
    PROGRESS --a checkpoint or watermark is behind, attempts left--> PROGRESS

Each stage queues its reads; the next begins when all are answered or given up (then their range is INCOMPLETE).
"""

from collections.abc import Callable, Sequence
from enum import IntEnum

from qim.core.audit.log_lookup import LogLookup
from qim.core.audit.mailboxes import Mailboxes
from qim.core.audit.outbox_walk import OutboxWindow
from qim.core.audit.reads import Reads
from qim.core.audit.reverse_walks import DispatchWindow, FactWindow
from qim.core.audit.run import AuditRun
from qim.core.audit.vocabulary import (
    AuditConfig,
    AuditEffect,
    AuditEvent,
    AuditFinished,
    AuditRequested,
    Verdict,
)
from qim.core.contract.invariants import Invariant
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.machine import Choose, Ms
from qim.core.ports.completion import Failed, Fenced, StoreReset, Unknown
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.log import EndsRead, ReadEnds, Topic
from qim.core.ports.observe import Count, Gauge, Violation
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.ports.store_message import AdvanceCoverage, ReadSource, SourceRead

RUNS_WAITING_MAX = 16


class AuditStage(IntEnum):
    """Where the run stands."""

    IDLE = 0
    ENDS = 1
    BARRIERS = 2
    PROGRESS = 3
    OUTBOX = 4
    DISPATCH = 5
    FACTS = 6
    COVERAGE = 7


class Auditor:
    """One run at a time; further requests wait, bounded."""

    def __init__(self, config: AuditConfig, *, choose: Choose) -> None:
        self._config = config
        self._choose = choose
        self._reads = Reads(
            inflight_max=config.reads_inflight_max,
            attempts_max=config.attempts_max,
            retry_ms=config.retry_ms,
            timeout_ms=config.read_timeout_ms,
        )
        self._tickets: list[int] = []
        self._run: AuditRun | None = None
        self.stage = AuditStage.IDLE
        self._steps: list[Callable[[], None]] = []
        self._progress_attempts = 0
        self._wait_until: Ms | None = None

    def idle(self) -> bool:
        """No run under way or waiting."""
        return self._run is None and not self._tickets

    def deadline(self) -> Ms | None:
        """Read time-outs, retries, and the pause between looks at progress."""
        times = [at for at in (self._reads.deadline(), self._wait_until) if at is not None]
        return min(times, default=None)

    def check(self) -> None:
        """Own invariants."""
        assert (self._run is None) == (self.stage is AuditStage.IDLE)
        assert len(self._tickets) <= RUNS_WAITING_MAX

    def step(self, now: Ms, events: Sequence[AuditEvent]) -> list[AuditEffect]:
        """See the diagram above."""
        effects: list[AuditEffect] = []
        for event in events:
            match event:
                case Failed() | Unknown() | Fenced():
                    self._reads.failed(event.op, now)
                case StoreReset():
                    if event.op is not None:
                        self._reads.failed(event.op, now)
                case AuditRequested():
                    if len(self._tickets) < RUNS_WAITING_MAX:
                        self._tickets.append(event.ticket)
                case Started() | DrainRequested():
                    pass
                case _:
                    self._reads.answered(event)
        if self._wait_until is not None and now >= self._wait_until:
            self._wait_until = None
        self._advance(now, effects)
        effects.extend(self._reads.send(now))
        return effects

    def _advance(self, now: Ms, effects: list[AuditEffect]) -> None:
        """Go on while nothing is awaited; a bounded number of stages a step follows from bounded windows."""
        while self._reads.settled and self._wait_until is None:
            if self._run is None:
                if not self._tickets:
                    return
                self._begin(self._tickets.pop(0))
            elif self._steps:
                self._steps.pop(0)()
            elif not self._next_stage(self._run, now, effects):
                return

    def _begin(self, ticket: int) -> None:
        config = self._config
        self._reads.forget()
        self._run = AuditRun(ticket, config)
        self._lookup = LogLookup(self._reads, config)
        self._mailboxes = Mailboxes(self._reads, config)
        self._progress_attempts = 0
        self.stage = AuditStage.ENDS
        run = self._run
        for number in range(config.outbox_partition_count):
            self._ask_ends(run, Topic.OUTBOX, number)
        for number in range(config.shard_count):
            self._ask_ends(run, Topic.DISPATCH, number)

    def _next_stage(self, run: AuditRun, now: Ms, effects: list[AuditEffect]) -> bool:
        """True when reads or steps were queued or the stage moved on."""
        match self.stage:
            case AuditStage.ENDS:
                self.stage = AuditStage.BARRIERS
                self._ask_barriers(run)
            case AuditStage.BARRIERS:
                self.stage = AuditStage.PROGRESS
                self._ask_progress(run)
            case AuditStage.PROGRESS:
                self._after_progress(run, now)
            case AuditStage.OUTBOX:
                self._next_outbox_window(run)
            case AuditStage.DISPATCH:
                self._next_dispatch_window(run)
            case AuditStage.FACTS:
                self._next_fact_page(run)
            case AuditStage.COVERAGE:
                self._finish(run, effects)
            case AuditStage.IDLE:
                return False
        return True

    def _ask_ends(self, run: AuditRun, topic: Topic, number: int) -> None:
        cut = run.partitions[number] if topic is Topic.OUTBOX else run.shards[number]

        def done(reply: EndsRead) -> None:
            cut.start, cut.end = reply.start, reply.end

        self._reads.ask(
            ReadEnds(op=0, topic=topic, partition=number), done, f"ends of {topic.value} {number}"
        )

    def _ask_barriers(self, run: AuditRun) -> None:
        """A filter that begins at the log's start takes the greatest registered barrier below it (pipeline.md §1.7)."""
        for number, cut in enumerate(run.partitions):
            cut.judged_to = cut.start

            def done(reply: LeaseRead, number: int = number) -> None:
                if reply.barrier_offset >= 0:
                    run.partitions[number].initial_epoch = reply.barrier_epoch

            request = ReadLease(
                op=0,
                resource=Resource(role=Role.WRITER, number=number),
                barriers_below=cut.start,
            )
            self._reads.ask(request, done, f"barriers of writer shard {number}")

    def _ask_progress(self, run: AuditRun) -> None:
        for number in range(len(run.partitions)):

            def source(reply: SourceRead, number: int = number) -> None:
                run.partitions[number].checkpoint = reply.checkpoint

            self._reads.ask(
                ReadSource(op=0, partition=number, low=0, high=0, limit=1),
                source,
                f"checkpoint of outbox {number}",
            )
        for number in range(len(run.shards)):

            def state(reply: ShardStateRead, number: int = number) -> None:
                shard = run.shards[number]
                shard.incarnation, shard.trim = reply.incarnation, reply.trim
                shard.min_watermark = reply.min_watermark if reply.base >= 0 else -1

            self._reads.ask(
                ReadShardState(op=0, shard=number), state, f"state of mailbox shard {number}"
            )

    def _after_progress(self, run: AuditRun, now: Ms) -> None:
        """Wait a bounded while for the consumers to pass the cut; behind after that, the walk says which range."""
        behind = any(
            cut.checkpoint < cut.end and cut.end > cut.start for cut in run.partitions
        ) or any(
            shard.end > shard.start
            and (
                shard.min_watermark < 0 or split_mailbox_seq(shard.min_watermark)[1] < shard.end - 1
            )
            for shard in run.shards
        )
        if behind and self._progress_attempts < self._config.attempts_max:
            self._progress_attempts += 1
            self._wait_until = now + self._config.retry_ms
            self._steps.append(lambda: self._ask_progress(run))
            return
        self.stage = AuditStage.OUTBOX

    def _next_outbox_window(self, run: AuditRun) -> None:
        self._lookup.clear()
        for number, cut in enumerate(run.partitions):
            if not cut.stopped and cut.judged_to < cut.end:
                window = OutboxWindow(
                    run,
                    self._config,
                    self._reads,
                    self._lookup,
                    self._mailboxes,
                    number,
                    cut.judged_to,
                )
                self._steps.extend(
                    [
                        window.begin,
                        window.ask_receipts,
                        window.ask_dispatches,
                        window.ask_mailboxes,
                        window.judge,
                    ]
                )
                return
        self.stage = AuditStage.DISPATCH
        self._dispatch_at = [shard.start for shard in run.shards]

    def _next_dispatch_window(self, run: AuditRun) -> None:
        self._lookup.clear()
        for number, shard in enumerate(run.shards):
            if self._dispatch_at[number] < shard.end:
                window = DispatchWindow(
                    run, self._config, self._reads, self._lookup, number, self._dispatch_at[number]
                )

                def passed(window: DispatchWindow = window, number: int = number) -> None:
                    self._dispatch_at[number] = window.high

                self._steps.extend([window.begin, window.ask_records, window.judge, passed])
                return
        self.stage = AuditStage.FACTS
        self._facts_at: list[bytes | None] = [b""] * len(run.partitions)

    def _next_fact_page(self, run: AuditRun) -> None:
        self._lookup.clear()
        for number, after in enumerate(self._facts_at):
            if after is not None:
                window = FactWindow(run, self._config, self._reads, self._lookup, number, after)

                def passed(window: FactWindow = window, number: int = number) -> None:
                    self._facts_at[number] = window.last if window.more else None

                self._steps.extend([window.begin, window.ask_records, window.judge, passed])
                return
        self.stage = AuditStage.COVERAGE
        for why in self._reads.given_up:
            run.left_out(f"{why}: no answer")
        if self._config.advance_coverage and not run.orphans_total:
            self._ask_coverage(run)

    def _ask_coverage(self, run: AuditRun) -> None:
        """Facts behind the CoverageCursor are judged by the outbox walk from now on, so they may go."""
        for number, cut in enumerate(run.partitions):
            facts = cut.covered_facts
            for first in range(0, len(facts), self._config.window_records_max):
                request = AdvanceCoverage(
                    op=0,
                    partition=number,
                    incarnation=b"",
                    covered_to=cut.judged_to,
                    drop_facts=tuple(facts[first : first + self._config.window_records_max]),
                )
                self._reads.ask(request, lambda _: None, f"coverage of outbox {number}")

    def _finish(self, run: AuditRun, effects: list[AuditEffect]) -> None:
        report = run.report()
        effects.append(AuditFinished(ticket=run.ticket, report=report))
        effects.append(Count(name="audit_runs", label=report.verdict.value))
        effects.append(Gauge(name="audit_orphans", value=report.orphans_total))
        if report.verdict is Verdict.ORPHANS:
            first = report.orphans[0]
            detail = f"{report.orphans_total} orphans, first: {first.kind.value} {first.detail}"
            effects.append(Violation(check=Invariant.ORPHAN_DISPATCH.value, detail=detail))
        self._run = None
        self.stage = AuditStage.IDLE
