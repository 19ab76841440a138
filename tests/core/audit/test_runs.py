"""Runs of an audit: a store of another incarnation begins one anew, others wait for it, and all they keep is bounded."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.audit import AuditFinished, AuditRequested, Verdict
from qim.core.audit.reads import CoverageOf, OpeningOf, describe
from qim.core.contract.entities import CommitState
from qim.core.machine import Ms
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import DrainRequested, Started
from tests.core.audit.toy import A, B, Toy
from tests.core.audit.troubles import failed, incomplete, is_a, ranges, reset

# ------------------------------------------------------------ another incarnation


@pytest.mark.parametrize("name", ["ReadSource", "ReadMailboxes", "ReadProgress", "ReadFacts"])
def test_a_reset_store_begins_the_run_anew(toy: Toy, name: str) -> None:
    resets = 0

    def trouble(request: Any) -> Any:
        nonlocal resets
        if is_a(request, name) and resets < 2:
            resets += 1
            return reset(request)
        return None

    toy.trouble = trouble
    report = toy.audit()
    assert (report.verdict, report.incomplete, report.records) == (Verdict.CLEAN, (), 4)
    assert report.dispatches == 4 * 2 + 2


def test_a_store_that_is_reset_again_and_again_ends_the_run(toy: Toy) -> None:
    toy.trouble = lambda request: reset(request) if is_a(request, "ReadMailboxes") else None
    report = toy.audit(resets_max=2)
    assert incomplete(report) == (
        "the store: it became another incarnation 3 times during the run",
    )
    assert ranges(report) == []


def test_a_shard_seen_in_two_incarnations_begins_the_run_anew(toy: Toy) -> None:
    """The answers look right, but the marker is another: evidence of two stores proves nothing together."""
    toy.passed(0, 0)
    looks = 0

    def trouble(request: Any) -> None:
        nonlocal looks
        if is_a(request, "ReadShardState") and request.shard == 0:
            looks += 1
            if looks == 2:
                toy.boxes[0].incarnation = b"run/2"
                toy.passed(0, 3)

    toy.trouble = trouble
    report = toy.audit()
    assert (report.verdict, report.incomplete) == (Verdict.CLEAN, ())
    assert len([one for one in toy.asked if is_a(one, "ReadEnds")]) == 2 * 6


@pytest.mark.parametrize("look", [2, 3])
def test_a_partition_seen_in_two_incarnations_begins_the_run_anew(toy: Toy, look: int) -> None:
    toy.passed(0, 0)  # so that the cut is looked at twice, and then the receipts
    looks = 0

    def trouble(request: Any) -> None:
        nonlocal looks
        if is_a(request, "ReadSource") and request.partition == 0:
            looks += 1
            if looks == look:
                toy.sources[0].incarnation = b"run/other"
                toy.passed(0, 3)

    toy.trouble = trouble
    report = toy.audit(attempts_max=2)
    assert (report.verdict, report.incomplete) == (Verdict.CLEAN, ())
    assert len([one for one in toy.asked if is_a(one, "ReadEnds")]) == 2 * 6
    assert toy.sources[0].covered_to == 4


def test_without_a_store_nothing_is_covered_and_no_cursor_moves(toy: Toy) -> None:
    toy.trouble = lambda request: failed(request) if is_a(request, "ReadSource") else None
    incomplete(toy.audit())
    assert not [one for one in toy.asked if is_a(one, "AdvanceCoverage")]
    assert len(toy.sources[0].facts) == 4


def to_the_end(toy: Toy, auditor: Any, effects: list[Any]) -> list[AuditFinished]:
    """Answer everything until nothing is left to do."""
    finished: list[AuditFinished] = []
    while not auditor.idle():
        asked = [one for one in effects if hasattr(one, "op")]
        effects = told(auditor, 10_000, *(toy.answer(one) for one in asked))
        finished += [one for one in effects if isinstance(one, AuditFinished)]
    return finished


def told(auditor: Any, now: Ms, *events: Any) -> list[Any]:
    effects: list[Any] = auditor.step(now, list(events))
    auditor.check()
    return effects


def test_a_reset_that_answers_nothing_begins_anew_only_what_was_begun(toy: Toy) -> None:
    auditor = toy.auditor()
    noticed = StoreReset(op=None, store=StoreRole.MESSAGE)
    assert told(auditor, 0, noticed) == []
    assert auditor.idle()
    first = told(auditor, 0, AuditRequested(ticket=1))
    assert told(auditor, 10, noticed, noticed) == []
    assert told(auditor, 20, *(reset(one) for one in first)) == [], "of a run that is gone"
    assert told(auditor, 30, failed(first[0])) == []
    again = told(auditor, 210)
    assert [replace(one, op=0) for one in again] == [replace(one, op=0) for one in first]
    finished = to_the_end(toy, auditor, again)
    assert [(one.ticket, one.report.verdict) for one in finished] == [(1, Verdict.CLEAN)]
    assert told(auditor, 20_000, noticed) == [], "no run, nothing to begin anew"
    assert auditor.idle()


def test_every_purpose_has_words() -> None:
    assert describe(CoverageOf(3)) == "coverage of outbox 3"
    assert describe(OpeningOf(3)) == "opening of the coverage of outbox 3"


# ------------------------------------------------------------ runs


def test_runs_wait_for_one_another_and_too_many_are_told_so(toy: Toy) -> None:
    auditor = toy.auditor()
    assert auditor.idle()
    assert auditor.deadline() is None
    assert told(auditor, 0, Started(address="a", wall=1), DrainRequested()) == []
    effects = told(auditor, 0, *(AuditRequested(ticket=n) for n in range(20)))
    refused = [one for one in effects if isinstance(one, AuditFinished)]
    assert [one.ticket for one in refused] == [16, 17, 18, 19]
    assert {one.report.incomplete for one in refused} == {("this run: 16 others wait already",)}
    finished = to_the_end(toy, auditor, effects[len(refused) :])
    assert [one.ticket for one in finished] == list(range(16))


def test_reads_in_flight_are_bounded(toy: Toy) -> None:
    auditor = toy.auditor(reads_inflight_max=3)
    effects = told(auditor, 0, AuditRequested(ticket=1))
    assert len(effects) == 3
    assert len(told(auditor, 1, toy.answer(effects[0]))) == 1


def test_reasons_are_bounded(toy: Toy) -> None:
    toy.versions.clear()
    toy.group(1, (A, B))
    for version in range(2, 9):
        toy.group(version, (A, B))
        toy.send(version=version)
    toy.versions.clear()
    report = toy.audit(orphans_max=3)
    assert len(incomplete(report)) == 3


def test_in_flight_messages_are_bounded(toy: Toy) -> None:
    facts = toy.sources[0].facts
    for key, fact in list(facts.items()):
        facts[key] = replace(fact, state=CommitState.RECORDED, outbox_offset=-1)
    assert len(toy.audit(orphans_max=2).in_flight) == 2
