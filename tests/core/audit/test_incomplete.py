"""What could not be judged is INCOMPLETE, with its range and reason, and never an orphan: reads that fail, consumers that are behind."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.audit import AuditRequested, Verdict
from tests.core.audit.toy import A, Toy, users_in
from tests.core.audit.troubles import (
    Trouble,
    failed,
    fenced,
    incomplete,
    is_a,
    ranges,
    silent,
    unknown,
)

# ------------------------------------------------------------ reads that fail

EVERY_READ = {
    "ReadEnds outbox": "ends of outbox 0: no answer",
    "ReadEnds dispatch": "ends of dispatch 0: no answer",
    "ReadLease": "barriers of writer shard 0: no answer",
    "ReadShardState": "state of mailbox shard 0: no answer",
    "Fetch outbox": "outbox 0 from offset 0: no answer",
    "Fetch dispatch": "dispatch 0 offsets 0..3: no answer",
    "ReadVersions": "1 membership versions: no answer",
    "ReadSource": "receipts of outbox 0 from offset 0: no answer",
    "ReadMailboxes": f"mailbox of user {A} in shard 0: no answer",
    "ReadProgress": "progress of mailbox shard 0: no answer",
    "ReadFacts": "facts of writer shard 0: no answer",
}


@pytest.mark.parametrize("how", [failed, unknown, fenced, silent])
@pytest.mark.parametrize("name", sorted(EVERY_READ))
def test_a_read_that_is_never_answered_leaves_its_range_out(
    toy: Toy, name: str, how: Trouble
) -> None:
    toy.trouble = lambda request: how(request) if is_a(request, name) else None
    reasons = incomplete(toy.audit())
    assert EVERY_READ[name] in reasons


@pytest.mark.parametrize("how", [failed, unknown, fenced, silent])
def test_a_read_that_is_answered_at_the_last_try_leaves_nothing_out(toy: Toy, how: Trouble) -> None:
    asked: dict[Any, int] = {}

    def trouble(request: Any) -> Any:
        key = replace(request, op=0)
        asked[key] = asked.get(key, 0) + 1
        return how(request) if asked[key] < 3 else None

    toy.trouble = trouble
    report = toy.audit(attempts_max=3)
    assert (report.verdict, report.incomplete) == (Verdict.CLEAN, ())
    assert ranges(report) == [(0, 0, 4)]


def test_a_coverage_cursor_that_stays_behind_is_no_reason(toy: Toy) -> None:
    toy.trouble = lambda request: failed(request) if is_a(request, "AdvanceCoverage") else None
    assert toy.audit().verdict is Verdict.CLEAN


def test_an_answer_that_comes_after_its_time_out_is_dropped(toy: Toy) -> None:
    auditor = toy.auditor(attempts_max=2)
    (first, *others) = auditor.step(0, [AuditRequested(ticket=1)])
    late = auditor.step(20_000, [toy.answer(other) for other in others])
    assert late == [], "the repetition waits for its pause"
    assert auditor.deadline() == 20_200
    again = auditor.step(20_200, [toy.answer(first)])
    assert [replace(one, op=0) for one in again] == [replace(first, op=0)]
    assert again[0].op != first.op


# ------------------------------------------------------------ consumers that are behind


def test_fanout_that_has_not_passed_the_cut(toy: Toy) -> None:
    whole = len(toy.outbox().values)
    for _ in range(3):
        toy.publish(toy.record())
    report = toy.audit()
    assert incomplete(report) == (f"outbox 0 offsets {whole}..6: fanout has not passed it",)
    assert ranges(report) == [(0, 0, whole)]


def test_fanout_that_never_began() -> None:
    toy = Toy()
    toy.publish(toy.record())
    toy.outbox().append(b"\x01\x07garbage")
    assert incomplete(toy.audit()) == ("outbox 0 offsets 0..1: fanout has not passed it",)


def test_a_mailbox_shard_that_lags_or_has_no_state(toy: Toy) -> None:
    last = toy.send()
    toy.passed(1, last.place(1) - 1)
    report = toy.audit()
    why = "mailbox shard 1 has not passed its dispatch"
    assert incomplete(report) == (f"outbox 0 offsets {last.offset}..{last.offset}: {why}",)
    toy.boxes[1].watermark = -1
    report = toy.audit()
    assert incomplete(report) == (f"outbox 0 offsets 0..{last.offset}: {why}",)
    assert ranges(report) == []


def test_the_range_behind_a_hole_is_covered_but_the_cursor_stops(toy: Toy) -> None:
    first = toy.send()
    toy.passed(0, first.place(0))
    toy.passed(1, first.place(1))
    hole = toy.send((users_in(3, 2)[0], users_in(3, 2)[1]))
    toy.boxes[3].watermark = -1
    toy.send()
    report = toy.audit()
    incomplete(report)
    assert ranges(report) == [(0, 0, hole.offset), (0, hole.offset + 1, hole.offset + 2)]
    assert toy.sources[0].covered_to == hole.offset
    left = [fact.outbox_offset for fact in toy.sources[0].facts.values()]
    assert left == [hole.offset, hole.offset + 1]


def test_a_slow_consumer_is_looked_at_again_a_bounded_number_of_times(toy: Toy) -> None:
    toy.passed(0, 0)
    toy.audit(attempts_max=3)
    looks = [one for one in toy.asked if is_a(one, "ReadShardState") and one.shard == 0]
    assert len(looks) == 3 + 3, "once for the cut, once for the window"
    assert toy.now == 2 * 200 + 2 * 200, "with a pause before each repeated look"
