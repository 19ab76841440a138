"""Auditor: proves from logs, receipts, facts and mailboxes that no message is an orphan (pipeline.md §8).

Its evidence is independent of the processes it judges: it reads the logs and the stores and asks no service. The cut is
logical, the end offsets at the start of the run; what has not been processed up to there is INCOMPLETE, never an orphan.
It does NOT repair anything; it deletes facts behind its CoverageCursor and nothing else.

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
from qim.core.audit.reads import CoverageOf, Purpose, Reads, describe
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
from qim.core.machine import Choose, Ms
from qim.core.ports.completion import Failed, Fenced, StoreReset, Unknown
from qim.core.ports.local import DrainRequested, Started
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
        self._choose = choose
        self._reads = Reads(
            inflight_max=config.reads_inflight_max,
            attempts_max=config.attempts_max,
            retry_ms=config.retry_ms,
            timeout_ms=config.read_timeout_ms,
        )
        self._tickets: list[int] = []
        self._evidence: Evidence | None = None
        self._walk: Cuts | OutboxWalk | DispatchWalk | FactWalk | None = None
        self._resets = 0
        self._due: Ms | None = None
        self.stage = AuditStage.IDLE

    def idle(self) -> bool:
        """No run under way or waiting."""
        return self._evidence is None and not self._tickets

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
            self._failed(op, now)
        self._advance(now, effects)
        effects.extend(self._reads.send(now))
        return effects

    # ------------------------------------------------------------ events

    def _take(self, now: Ms, event: AuditEvent, effects: list[AuditEffect]) -> None:
        match event:
            case Failed() | Unknown() | Fenced():
                self._failed(event.op, now)
            case StoreReset():
                # Of many reads in flight the first such answer begins anew; the others are of a run that is gone.
                expected = self._reads.sent if event.op is None else self._reads.answered(event.op)
                if expected:
                    self._store_reset(now, effects)
            case AuditRequested():
                self._requested(event.ticket, effects)
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

    def _failed(self, op: int, now: Ms) -> None:
        given_up = self._reads.failed(op, now)
        if given_up is not None:
            self._given_up(given_up)

    def _given_up(self, purpose: Purpose) -> None:
        """Whoever asked sees that nothing came; a CoverageCursor that stays behind loses no evidence."""
        if not isinstance(purpose, CoverageOf):
            assert self._evidence is not None
            self._evidence.run.left_out(describe(purpose), "no answer")

    def _store_reset(self, now: Ms, effects: list[AuditEffect]) -> None:
        """Evidence of two incarnations proves nothing together: the run begins anew (pipeline.md §0)."""
        if self._evidence is None:
            return
        run = self._evidence.run
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
        self._evidence = Evidence(AuditRun(ticket, self._config), self._config, self._reads)
        self.stage = AuditStage.CUTS
        self._walk = Cuts(self._evidence.run, self._config, self._reads, at)

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
        if report.verdict is Verdict.ORPHANS:
            first = report.orphans[0]
            detail = f"{report.orphans_total} orphans, first: {first.kind.value} {first.detail}"
            effects.append(Violation(check=Invariant.ORPHAN_DISPATCH.value, detail=detail))
        self._evidence = None
        self._walk = None
        self.stage = AuditStage.IDLE
