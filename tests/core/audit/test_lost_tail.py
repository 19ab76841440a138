"""An outbox that lost its tail, before the run or during it: what stood there is missed, and what came in its place isn't vouched for."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.audit import OrphanKind, Verdict
from tests.core.audit.toy import Toy
from tests.core.audit.troubles import failed, is_a, ranges


def kinds(toy: Toy, **limits: Any) -> list[tuple[OrphanKind, int]]:
    return [(one.kind, one.offset) for one in toy.audit(**limits).orphans]


def test_a_committed_message_that_nobody_dispatched(toy: Toy) -> None:
    """Nobody has read it, so nobody else misses it: the fact is all that is left."""
    sent = toy.send()
    toy.outbox().values.pop()
    source = toy.sources[0]
    del source.receipts[sent.offset]
    source.checkpoint = sent.offset
    for shard in sent.dispatches:
        toy.dispatch(shard).values.pop()
    assert kinds(toy) == [(OrphanKind.FACT_WITHOUT_RECORD, sent.offset)]


def test_a_message_that_was_delivered_and_whose_fact_an_audit_took(toy: Toy) -> None:
    """Its dispatches name what no longer stands there."""
    sent = toy.send()
    assert toy.audit().verdict is Verdict.CLEAN
    assert sent.record.message_id not in toy.sources[0].facts
    toy.outbox().values.pop()
    places = [sent.place(shard) for shard in sorted(sent.dispatches)]
    assert kinds(toy) == [(OrphanKind.DISPATCH_WITHOUT_RECORD, place) for place in places]


def test_what_came_during_the_run_is_there(toy: Toy) -> None:
    """Dispatches and facts name it, and the log has it by now."""

    def goes_on(request: Any) -> None:
        if is_a(request, "ReadFacts") or is_a(request, "ReadShardState"):
            toy.send()

    toy.trouble = goes_on
    assert toy.audit(window_records_max=2).verdict is Verdict.CLEAN


@pytest.mark.parametrize("asked", ["ReadEnds", "Fetch outbox"])
def test_an_end_that_is_not_told_makes_no_orphan(toy: Toy, asked: str) -> None:
    """Nor is a partition left out in silence whose end nobody told."""
    facts = False

    def silent_from_then_on(request: Any) -> Any:
        nonlocal facts
        facts = facts or is_a(request, "ReadFacts")
        if is_a(request, "ReadFacts") and request.shard == 0:
            toy.send()
        return failed(request) if facts and is_a(request, asked) else None

    toy.trouble = silent_from_then_on
    report = toy.audit()
    assert (report.verdict, report.orphans) == (Verdict.INCOMPLETE, ())
    assert "end of outbox 0: no answer" in report.incomplete


@pytest.fixture
def idle(toy: Toy) -> Toy:
    """Behind four messages two barriers, of owners that came and went: nothing tells of their loss but who read them."""
    toy.barrier(2)
    toy.barrier(3)
    return toy


def regrown(toy: Toy) -> bytes:
    """The two are gone; another owner's barrier and a message stand there, committed, and fanout has been there already."""
    del toy.outbox().values[4:]
    toy.barrier(4, fanned_out=False)
    record = toy.record()
    offset = toy.publish(record, epoch=4)
    any_fact = next(iter(toy.sources[0].facts.values()))
    fact = replace(any_fact, message_id=record.message_id, outbox_offset=offset)
    toy.sources[0].facts[fact.message_id] = fact
    return fact.message_id


@pytest.mark.parametrize("at", ["Fetch dispatch", "ReadFacts"])
def test_a_log_that_grew_again_during_the_run_is_not_vouched_for(idle: Toy, at: str) -> None:
    """The message there was walked by nobody, and its fact stays for the run that does."""
    came: list[bytes] = []

    def cut(request: Any) -> None:
        if is_a(request, at) and not came:
            came.append(regrown(idle))

    idle.trouble = cut
    report = idle.audit()
    assert (report.verdict, report.orphans) == (Verdict.INCOMPLETE, ())
    assert report.incomplete == ("outbox 0 offsets 0..5: the log lost its tail during the run",)
    assert ranges(report) == []
    source = idle.sources[0]
    assert came[0] in source.facts
    assert source.covered_to == 0
    idle.trouble = lambda _: None
    assert kinds(idle) == [(OrphanKind.RECEIPT_MISSING, 5)]


def test_a_log_that_lost_its_tail_during_the_run_and_did_not_grow(idle: Toy) -> None:
    def cut(request: Any) -> None:
        if is_a(request, "ReadFacts"):
            del idle.outbox().values[5:]

    idle.trouble = cut
    report = idle.audit(window_records_max=2)
    assert report.verdict is Verdict.INCOMPLETE
    assert ranges(report) == []
