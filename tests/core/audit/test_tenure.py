"""Who moves CoverageCursors: the holder of the lease, under the store's fence; whoever else audits only looks (§§0, 8)."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.audit import AuditFinished, Auditor, AuditRequested, Verdict
from qim.core.audit.tenure import COVERAGE
from qim.core.contract.entities import CommitState
from qim.core.contract.logvalue import barrier_value
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseGone
from qim.core.ports.observe import Count
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_audit import AdvanceCoverage, OpenCoverage
from tests.core.audit.toy import A, B, Toy

FENCED = Count(name="audit_fenced")
GONE = LeaseGone(resource=COVERAGE)


@pytest.fixture
def toy() -> Toy:
    made = Toy()
    made.group(1, (A, B))
    for _ in range(3):
        made.send(version=1)
    return made


def asked(toy: Toy, kind: type) -> list[Any]:
    return [one for one in toy.asked if isinstance(one, kind)]


def kept(toy: Toy) -> bool:
    """No fact is gone, no cursor has moved."""
    return all(source.covered_to == 0 for source in toy.sources) and len(toy.sources[0].facts) == 3


def lose_all_but_the_fact(toy: Toy) -> None:
    """Of the last message: another record stands where its own did, and nobody dispatched it there."""
    toy.outbox(0).spoil(2, barrier_value(1))
    toy.sources[0].receipts.pop(2)
    for shard in (0, 1):
        toy.dispatch(shard).values.pop()
        toy.passed(shard, 1)


class Zombie:
    """An auditor stepped by hand: it stops before its first order of a kind, and what it orders then is held back."""

    def __init__(self, toy: Toy, before: type) -> None:
        self.toy = toy
        self.machine: Auditor = toy.auditor()
        events: list[Any] = [toy.held(), AuditRequested(ticket=1)]
        while True:
            self.held = self.machine.step(toy.now, events)
            self.machine.check()
            if any(isinstance(one, before) for one in self.held):
                return
            events = toy.events(self.machine, self.held)

    def wakes(self, *told: Any) -> list[Any]:
        """What it held goes out now, with what it is told meanwhile; everything it says to its end."""
        said: list[Any] = []
        effects, events = self.held, list(told)
        while not self.machine.idle():
            events += self.toy.events(self.machine, effects)
            effects = self.machine.step(self.toy.now, events)
            self.machine.check()
            said += effects
            events = []
        return said


def verdicts(said: list[Any]) -> list[Verdict]:
    return [one.report.verdict for one in said if isinstance(one, AuditFinished)]


def test_the_fence_of_every_partition_stands_before_a_fact_is_read(toy: Toy) -> None:
    assert toy.audit().verdict is Verdict.CLEAN
    names = [type(one).__name__ for one in toy.asked]
    last_opening = max(at for at, name in enumerate(names) if name == "OpenCoverage")
    assert last_opening < names.index("ReadFacts") < names.index("AdvanceCoverage")
    assert [one.partition for one in asked(toy, OpenCoverage)] == [0, 1]
    assert [source.fence for source in toy.sources] == [1, 1]
    assert toy.sources[0].covered_to == 3


def test_every_try_to_open_brings_another_key(toy: Toy) -> None:
    def trouble(request: Any) -> Any:
        tries = asked(toy, OpenCoverage)
        return (
            Unknown(op=request.op) if isinstance(request, OpenCoverage) and len(tries) < 5 else None
        )

    toy.trouble = trouble
    assert toy.audit().verdict is Verdict.CLEAN
    tries = asked(toy, OpenCoverage)
    assert len(tries) > len(toy.sources)
    assert len({one.fresh_key for one in tries}) == len(tries), "the same entropy each time"
    assert len({one.opener for one in tries}) == 1 and len(tries[0].opener) == 16


def test_without_a_lease_it_looks_and_moves_nothing(toy: Toy) -> None:
    toy.leasing = False
    auditor = toy.auditor()
    assert toy.audit(auditor).verdict is Verdict.CLEAN
    assert auditor.serving() == 0
    assert not asked(toy, OpenCoverage) + asked(toy, AdvanceCoverage)
    assert kept(toy)
    assert FENCED not in toy.seen


def test_a_lease_of_another_kind_is_nobodys_business(toy: Toy) -> None:
    auditor = toy.auditor()
    other = Resource(role=Role.WRITER, number=0)
    assert auditor.step(0, [replace(toy.held(), resource=other)]) == []
    assert auditor.serving() == 0
    auditor.step(0, [toy.held()])
    auditor.step(0, [LeaseGone(resource=other)])
    assert auditor.serving() == 1
    assert [(one.name, one.value, one.label) for one in auditor.gauges(0)] == [
        ("shards_serving", 1, "auditor")
    ]


def test_a_zombie_that_had_ordered_an_advance_is_fenced_and_says_so(toy: Toy) -> None:
    """What it would have dropped is all its successor has to tell an orphan by."""
    zombie = Zombie(toy, AdvanceCoverage)
    lose_all_but_the_fact(toy)
    assert toy.audit().verdict is Verdict.ORPHANS
    assert kept(toy)
    said = zombie.wakes()
    assert kept(toy)
    assert verdicts(said) == [Verdict.CLEAN]
    assert FENCED in said
    wanted = [one for one in said if isinstance(one, FreshEpochWanted)]
    assert wanted == [FreshEpochWanted(resource=COVERAGE, above=2)]
    assert toy.audit().verdict is Verdict.ORPHANS, "it stays in every report"


def test_a_zombie_that_hears_of_its_lease_first_orders_nothing_more(toy: Toy) -> None:
    zombie = Zombie(toy, OpenCoverage)
    said = zombie.wakes(GONE)
    assert verdicts(said) == [Verdict.CLEAN]
    assert said.count(FENCED) == 1
    assert not asked(toy, AdvanceCoverage)
    assert kept(toy)


def test_a_zombie_whose_opening_comes_late_is_fenced(toy: Toy) -> None:
    zombie = Zombie(toy, OpenCoverage)
    toy.audit()
    facts = dict(toy.sources[0].facts)
    said = zombie.wakes()
    assert FENCED in said
    assert [one.epoch for one in asked(toy, AdvanceCoverage)] == [2] * len(
        asked(toy, AdvanceCoverage)
    )
    assert toy.sources[0].facts == facts


def test_an_epoch_granted_in_the_middle_of_a_run_is_for_the_next_one(toy: Toy) -> None:
    """The run's fence is of the old one."""
    zombie = Zombie(toy, AdvanceCoverage)
    zombie.held = []
    said = zombie.wakes(GONE, toy.held(), *[Unknown(op=1)])
    assert verdicts(said) == [Verdict.CLEAN]
    assert FENCED in said
    assert kept(toy)
    assert zombie.machine.serving() == 1
    toy.audit(zombie.machine)
    assert toy.sources[0].covered_to == 3


def test_what_the_driver_keeps_back_is_not_asked_again(toy: Toy) -> None:
    def trouble(request: Any) -> Any:
        if isinstance(request, AdvanceCoverage):
            return Failed(op=request.op, why=FailReason.LEASE_LOST)
        return None

    toy.trouble = trouble
    auditor = toy.auditor()
    assert toy.audit(auditor).verdict is Verdict.CLEAN
    assert [one.partition for one in asked(toy, AdvanceCoverage)] == [0]
    assert FENCED in toy.seen
    assert kept(toy)


def test_what_the_driver_kept_back_of_an_older_epoch_ends_no_newer_one(toy: Toy) -> None:
    zombie = Zombie(toy, OpenCoverage)
    (late,) = [one for one in zombie.held if isinstance(one, OpenCoverage) and one.partition == 0]
    zombie.held = [one for one in zombie.held if not isinstance(one, OpenCoverage)]
    kept_back = Failed(op=late.op, why=FailReason.LEASE_LOST)
    said = zombie.wakes(GONE, toy.held(), kept_back)
    assert verdicts(said) == [Verdict.CLEAN]
    assert zombie.machine.serving() == 1


@pytest.mark.parametrize("kind", [OpenCoverage, AdvanceCoverage])
def test_what_may_still_be_applied_belongs_to_an_epoch_that_is_over(toy: Toy, kind: type) -> None:
    """It could land after a later run has found an orphan, and take its evidence."""
    toy.trouble = lambda request: Unknown(op=request.op) if isinstance(request, kind) else None
    auditor = toy.auditor(attempts_max=2)
    assert toy.audit(auditor).verdict is Verdict.CLEAN
    assert kept(toy)
    assert FENCED not in toy.seen, "nobody took its lease"
    toy.trouble = lambda request: None
    toy.now += 1
    auditor.step(toy.now, [toy.held()])
    toy.audit(auditor)
    assert toy.sources[0].covered_to == 3
    assert toy.sources[0].fence == toy.epoch > 1


def test_another_incarnation_wants_a_fresh_epoch_and_a_fresh_fence(toy: Toy) -> None:
    resets = 0

    def trouble(request: Any) -> Any:
        nonlocal resets
        if isinstance(request, AdvanceCoverage) and not resets:
            resets += 1
            for source in toy.sources:
                source.incarnation, source.fence = b"run/other", 0
            return StoreReset(op=request.op, store=StoreRole.MESSAGE)
        return None

    toy.trouble = trouble
    auditor = toy.auditor()
    assert toy.audit(auditor).verdict is Verdict.CLEAN
    assert [one.epoch for one in asked(toy, OpenCoverage)] == [1, 1, 2, 2]
    assert toy.sources[0].covered_to == 3
    assert FENCED not in toy.seen


def test_refused_facts_go_with_the_coverage(toy: Toy) -> None:
    facts = toy.sources[0].facts
    first = next(iter(facts))
    facts[first] = replace(facts[first], state=CommitState.REFUSED, outbox_offset=-1)
    toy.audit()
    assert first not in facts
