"""Auditor: proves from logs, receipts, facts and mailboxes that no message is an orphan (pipeline.md §8).

Its evidence is independent of the processes it judges: it reads the logs and the stores and asks no service. The cut is
logical, the end offsets at the start of the run; what has not been processed up to there is INCOMPLETE, never an orphan.
It does NOT repair anything; it deletes facts behind its CoverageCursor and nothing else, under its lease (tenure.py).

    IDLE --AuditRequested--> CUTS --> OUTBOX --> DISPATCH --> FACTS --AuditFinished--> IDLE
    any but IDLE --the store is another incarnation--> CUTS, a bounded number of times, then AuditFinished (INCOMPLETE)

Each stage queues its reads and goes on when all are answered or given up; what was given up is in the report. Stages keep
plain records of what they know (cuts.py, outbox_walk.py, dispatch_walk.py, fact_walk.py) and share evidence.py.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from qim.core.audit.cuts import Cuts
from qim.core.audit.dispatch_walk import DispatchWalk
from qim.core.audit.evidence import Evidence
from qim.core.audit.fact_walk import FactWalk
from qim.core.audit.outbox_walk import OutboxWalk
from qim.core.audit.reads import CoverageOf, OpeningOf, Purpose, Reads, describe
from qim.core.audit.run import AuditRun
from qim.core.audit.tenure import COVERAGE, Tenure
from qim.core.audit.vocabulary import (
    AuditConfig,
    AuditEffect,
    AuditEvent,
    AuditFinished,
    AuditRequested,
    Verdict,
)
from qim.core.contract.invariants import Invariant
from qim.core.machine import Choose, Ms
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, Unknown
from qim.core.ports.local import DrainRequested, LeaseGone, LeaseHeld, Started
from qim.core.ports.observe import Count, Gauge, Violation

RUNS_WAITING_MAX = 16
ADVANCES_MAX = 4
"""Of a walk in one step: the auditor shares its loop with machines whose messages wait."""


class AuditStage(IntEnum):
    """Where the run stands."""

    IDLE = 0
    CUTS = 1
    OUTBOX = 2
    DISPATCH = 3
    FACTS = 4


class Auditor:
    """One run at a time; further requests wait, bounded."""

    def __init__(self, config: AuditConfig, *, choose: Choose) -> None:
        self._config = config
        self._reads = Reads(
            inflight_max=config.reads_inflight_max,
            attempts_max=config.attempts_max,
            retry_ms=config.retry_ms,
            timeout_ms=config.read_timeout_ms,
        )
        self._tenure = Tenure(choose)
        self._tickets: list[int] = []
        self._evidence: Evidence | None = None
        self._walk: Cuts | OutboxWalk | DispatchWalk | FactWalk | None = None
        self._resets = 0
        self._due: Ms | None = None
        self.stage = AuditStage.IDLE

    def idle(self) -> bool:
        """No run under way or waiting."""
        return self._evidence is None and not self._tickets

    def serving(self) -> int:
        """1 while it may move CoverageCursors; audits run without that too."""
        return int(self._tenure.epoch > 0)

    def gauges(self, now: Ms) -> list[Gauge]:
        """Beside the lease, that it is used."""
        return [Gauge(name="shards_serving", value=self.serving(), label=COVERAGE.role)]

    def deadline(self) -> Ms | None:
        """Read time-outs, retries, the pause between looks at progress; at once where a step left work to do."""
        return self._due if self._due is not None else self._reads.deadline()

    def check(self) -> None:
        """Own invariants."""
        assert (self._evidence is None) == (self.stage is AuditStage.IDLE)
        assert (self._walk is None) == (self.stage is AuditStage.IDLE)
        assert len(self._tickets) <= RUNS_WAITING_MAX
        assert self._evidence is not None or self._reads.settled
        self._reads.check()

    def step(self, now: Ms, events: Sequence[AuditEvent]) -> list[AuditEffect]:
        """See the diagram above."""
        effects: list[AuditEffect] = []
        for event in events:
            self._take(now, event, effects)
        for op in self._reads.overdue(now):
            self._failed(op, now, effects)
        self._advance(now, effects)
        effects.extend(self._reads.send(now))
        return effects

    # ------------------------------------------------------------ events

    def _take(self, now: Ms, event: AuditEvent, effects: list[AuditEffect]) -> None:
        match event:
            case Failed() | Unknown():
                self._failed(event.op, now, effects, gone=_says_lease_lost(event))
            case Fenced():
                self._on_fenced(event, now, effects)
            case StoreReset():
                # Of many reads in flight the first such answer begins anew; the others are of a run that is gone.
                expected = self._reads.sent if event.op is None else self._reads.answered(event.op)
                if expected:
                    self._store_reset(now, effects)
            case AuditRequested():
                self._requested(event.ticket, effects)
            case LeaseHeld() | LeaseGone():
                self._on_lease(event)
            case Started() | DrainRequested():
                pass
            case _:
                self._answered(now, event, effects)

    def _requested(self, ticket: int, effects: list[AuditEffect]) -> None:
        if len(self._tickets) < RUNS_WAITING_MAX:
            self._tickets.append(ticket)
            return
        refused = AuditRun(ticket, self._config)
        refused.left_out("this run", f"{RUNS_WAITING_MAX} others wait already")
        effects.append(AuditFinished(ticket=ticket, report=refused.report()))

    def _answered(self, now: Ms, event: Any, effects: list[AuditEffect]) -> None:
        purpose = self._reads.answered(event.op)
        if purpose is None:
            return
        assert self._evidence is not None and self._walk is not None
        if not self._evidence.take(purpose, event):
            self._walk.take(purpose, event)
        if self._evidence.run.reset:
            self._store_reset(now, effects)

    def _on_lease(self, event: LeaseHeld | LeaseGone) -> None:
        if event.resource != COVERAGE:
            return
        self._epoch_ended()
        self._tenure.epoch = event.epoch if isinstance(event, LeaseHeld) else 0

    def _on_fenced(self, event: Fenced, now: Ms, effects: list[AuditEffect]) -> None:
        """A higher epoch stands: somebody else covers, or the registry must be raised above it (pipeline.md §0)."""
        if not isinstance(self._reads.purpose(event.op), CoverageOf | OpeningOf):
            self._failed(event.op, now, effects)
            return
        self._epoch_ended()
        self._want_fresh_epoch(event.epoch, effects)

    def _epoch_ended(self) -> None:
        """The run goes on looking, and moves no cursor any more: nothing in flight may be asked again (ports/local.py)."""
        if self._evidence is not None and self._holds(self._evidence.run):
            self._evidence.run.fenced = True
            self._reads.abandon(OpeningOf, CoverageOf)

    def _holds(self, run: AuditRun) -> bool:
        """Whether the run opened the cursors under the epoch that stands."""
        return run.epoch == self._tenure.epoch > 0

    def _want_fresh_epoch(self, above: int, effects: list[AuditEffect]) -> None:
        if self._evidence is not None and self._holds(self._evidence.run):
            effects.append(self._tenure.renewal(above))

    def _failed(self, op: int, now: Ms, effects: list[AuditEffect], *, gone: bool = False) -> None:
        """``gone``: the driver knew that the lease had ended, and asking again would be in vain."""
        if gone:
            if self._reads.purpose(op) is not None:
                self._epoch_ended()
            return
        given_up = self._reads.failed(op, now)
        if given_up is not None:
            self._given_up(given_up, effects)

    def _given_up(self, purpose: Purpose, effects: list[AuditEffect]) -> None:
        """Whoever asked sees that nothing came; a CoverageCursor that stays behind loses no evidence.

        But what was asked may be applied yet, when a later run has found orphans: not under an epoch that still counts.
        """
        if isinstance(purpose, CoverageOf | OpeningOf):
            self._reads.abandon(OpeningOf, CoverageOf)
            self._want_fresh_epoch(0, effects)
            return
        assert self._evidence is not None
        self._evidence.run.left_out(describe(purpose), "no answer")

    def _store_reset(self, now: Ms, effects: list[AuditEffect]) -> None:
        """Evidence of two incarnations proves nothing together: the run begins anew (pipeline.md §0)."""
        if self._evidence is None:
            return
        run = self._evidence.run
        self._want_fresh_epoch(0, effects)
        self._reads.forget()
        self._resets += 1
        if self._resets <= self._config.resets_max:
            self._begin(run.ticket, now + self._config.retry_ms)
            return
        interrupted = AuditRun(run.ticket, self._config)
        why = f"it became another incarnation {self._resets} times during the run"
        interrupted.left_out("the store", why)
        self._finish(interrupted, effects)

    # ------------------------------------------------------------ stages

    def _advance(self, now: Ms, effects: list[AuditEffect]) -> None:
        """Go on while nothing is awaited, a bounded way a step."""
        self._due = None
        for _ in range(ADVANCES_MAX):
            if not self._reads.settled:
                return
            if self._evidence is None or self._walk is None:
                if not self._tickets:
                    return
                self._resets = 0
                self._begin(self._tickets.pop(0), now)
            elif not self._walk.advance(now):
                self._next_stage(self._evidence, effects)
        if self._reads.settled and not self.idle():
            self._due = now

    def _begin(self, ticket: int, at: Ms) -> None:
        run = AuditRun(ticket, self._config)
        self._evidence = Evidence(run, self._config, self._reads, self._tenure)
        self.stage = AuditStage.CUTS
        self._walk = Cuts(run, self._config, self._reads, self._tenure, begin_at=at)

    def _next_stage(self, evidence: Evidence, effects: list[AuditEffect]) -> None:
        match self.stage:
            case AuditStage.CUTS:
                self._walk = OutboxWalk(evidence)
            case AuditStage.OUTBOX:
                self._walk = DispatchWalk(evidence)
            case AuditStage.DISPATCH:
                self._walk = FactWalk(evidence)
            case _:
                assert self.stage is AuditStage.FACTS, self.stage
                self._finish(evidence.run, effects)
                return
        self.stage = AuditStage(self.stage + 1)

    def _finish(self, run: AuditRun, effects: list[AuditEffect]) -> None:
        report = run.report()
        effects.append(AuditFinished(ticket=run.ticket, report=report))
        effects.append(Count(name="audit_runs", label=report.verdict.value))
        effects.append(Gauge(name="audit_orphans", value=report.orphans_total))
        if run.fenced:
            effects.append(Count(name="audit_fenced"))
        if report.verdict is Verdict.ORPHANS:
            first = report.orphans[0]
            detail = f"{report.orphans_total} orphans, first: {first.kind.value} {first.detail}"
            effects.append(Violation(check=Invariant.ORPHAN_DISPATCH.value, detail=detail))
        self._evidence = None
        self._walk = None
        self.stage = AuditStage.IDLE


def _says_lease_lost(event: Failed | Unknown) -> bool:
    return isinstance(event, Failed) and event.why is FailReason.LEASE_LOST
