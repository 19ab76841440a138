"""What could not be judged is INCOMPLETE, with its range and reason, and never an orphan: lag, failures, silence, resets."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.audit import AuditFinished, AuditReport, AuditRequested, Verdict
from qim.core.audit.reads import CoverageOf, OpeningOf, describe
from qim.core.contract.entities import CommitAuditFact, CommitState, encode_receipt
from qim.core.machine import Ms
from qim.core.ports.completion import (
    Failed,
    FailReason,
    Fenced,
    StoreReset,
    StoreRole,
    Unknown,
)
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.log import Topic
from qim.core.ports.store_mailbox import MailboxesRead, MailboxRows
from tests.core.audit.toy import SILENCE, A, B, Toy, users_in
from tests.core.newer_format import NEWER

Trouble = Callable[[Any], Any]


def failed(request: Any) -> Any:
    return Failed(op=request.op, why=FailReason.UNREACHABLE)


def unknown(request: Any) -> Any:
    return Unknown(op=request.op)


def fenced(request: Any) -> Any:
    return Fenced(op=request.op, epoch=1)


def silent(request: Any) -> Any:
    return SILENCE


def is_a(request: Any, name: str) -> bool:
    kind, _, topic = name.partition(" ")
    named = type(request).__name__ == kind
    return named and (not topic or getattr(request, "topic", None) == Topic(topic))


def incomplete(report: AuditReport) -> tuple[str, ...]:
    assert report.orphans == ()
    assert report.verdict is Verdict.INCOMPLETE
    return report.incomplete


def ranges(report: AuditReport) -> list[tuple[int, int, int]]:
    return [(one.partition, one.low, one.high) for one in report.covered]


@pytest.fixture
def toy() -> Toy:
    made = Toy()
    made.group(1, (A, B, *users_in(2, 3)))
    for number in range(4):
        made.send(version=number % 2)
    return made


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


# ------------------------------------------------------------ what nobody can read


def test_a_version_the_store_lacks(toy: Toy) -> None:
    toy.versions.clear()
    reasons = incomplete(toy.audit())
    why = "version 1 of its group is not in the store"
    assert f"outbox 0 offsets 1..1: {why}" in reasons
    assert f"outbox 0 offsets 3..3: {why}" in reasons
    assert f"dispatch 0 offsets 1..1: {why}" in reasons


def test_a_newer_format_in_the_outbox_ends_its_partition(toy: Toy) -> None:
    """It may be a barrier: what stands behind it can't be judged."""
    toy.outbox().append(NEWER)
    sent = toy.send()
    report = toy.audit()
    reasons = incomplete(report)
    assert reasons == ("outbox 0 offsets 4..5: a newer format than this auditor's",)
    assert ranges(report) == [(0, 0, 4)]
    assert sent.offset == 5


def test_a_newer_format_at_the_very_start(toy: Toy) -> None:
    toy.outbox().spoil(0, NEWER)
    report = toy.audit()
    reasons = incomplete(report)
    assert "outbox 0 offsets 0..3: a newer format than this auditor's" in reasons
    assert (
        "dispatch 0 offsets 0..0: outbox 0 offset 0 has a newer format than this auditor's"
        in reasons
    )
    assert ranges(report) == []


def test_a_newer_format_in_a_dispatch_log(toy: Toy) -> None:
    toy.dispatch(0).spoil(2, NEWER)
    reasons = incomplete(toy.audit())
    assert reasons == (
        "outbox 0 offsets 2..2: a dispatch of a newer format in shard 0",
        "dispatch 0 offsets 2..2: a newer format than this auditor's",
    )


def test_a_mailbox_entry_nobody_can_read(toy: Toy) -> None:
    rows = toy.boxes[0].rows["t", A]
    rows[1] = (rows[1][0], b"\xc1")
    reasons = incomplete(toy.audit())
    assert any(f"mailbox of user {A} in shard 0: the entry behind" in one for one in reasons)
    assert f"outbox 0 offsets 0..3: mailbox of user {A} in shard 0 is not readable" in reasons


def test_a_log_that_loses_its_records_during_the_run(toy: Toy) -> None:
    """The walk can't read them, and their dispatches and facts have lost what they name: a loss, not a delay."""

    def shrink(request: Any) -> None:
        if is_a(request, "Fetch outbox"):
            toy.outbox().values.clear()

    toy.trouble = shrink
    report = toy.audit()
    assert report.verdict is Verdict.ORPHANS
    assert report.incomplete == ("outbox 0 offsets 0..3: not readable",)
    kinds = [one.kind.value for one in report.orphans]
    assert kinds == ["dispatch_without_record"] * 10 + ["fact_without_record"] * 4


def test_a_log_that_gives_nothing_where_something_stands(toy: Toy) -> None:
    def nothing(request: Any) -> Any:
        if is_a(request, "Fetch dispatch"):
            return replace(toy.answer(request), records=())
        return None

    toy.trouble = nothing
    reasons = incomplete(toy.audit())
    why = "dispatch 0 is not readable where its receipt points"
    assert f"outbox 0 offsets 0..3: {why}" not in reasons, "the last shard's reason is told"
    assert "dispatch 0 offsets 0..3: not readable" in reasons


def test_a_log_with_a_hole_is_read_up_to_it(toy: Toy) -> None:
    def hole(request: Any) -> Any:
        if is_a(request, "Fetch outbox") and request.offset == 0 and request.limit > 1:
            reply = toy.answer(request)
            return replace(reply, records=(*reply.records[:1], *reply.records[2:]))
        return None

    toy.trouble = hole
    report = toy.audit()
    assert ranges(report) == [(0, 0, 4)], "the next window begins where the hole was"


def test_a_suspect_whose_dispatch_log_cannot_be_read_is_no_orphan(toy: Toy) -> None:
    """It may have been trimmed with its first dispatch: nobody can tell."""
    sent = toy.send()
    repeated = toy.append_dispatch(0, sent.dispatches[0])
    toy.passed(0, repeated)
    toy.trim(0, sent.place(0))
    places = tuple(
        replace(at, offset=repeated) if at.shard == 0 else at for at in sent.receipt.shards
    )
    toy.sources[0].receipts[sent.offset] = encode_receipt(replace(sent.receipt, shards=places))
    toy.boxes[0].progress.clear()

    def unreadable(request: Any) -> Any:
        walk = is_a(request, "Fetch dispatch") and request.partition == 0 and request.offset == 0
        return failed(request) if walk else None

    toy.trouble = unreadable
    reasons = incomplete(toy.audit(lookup_gap_max=0))
    why = "whether it was trimmed in mailbox shard 0 can't be read"
    assert f"outbox 0 offsets {sent.offset}..{sent.offset}: {why}" in reasons


def test_suspects_of_other_shards_are_judged_all_the_same(toy: Toy) -> None:
    sent = toy.send()
    for shard, user in ((0, A), (1, B)):
        toy.boxes[shard].rows["t", user].pop()
    walking = False

    def unreadable(request: Any) -> Any:
        nonlocal walking
        walking = walking or (is_a(request, "Fetch dispatch") and request.limit > sent.offset)
        return (
            failed(request) if is_a(request, "Fetch dispatch") and request.partition == 0 else None
        )

    toy.trouble = unreadable
    report = toy.audit()
    assert [(one.shard, one.offset) for one in report.orphans] == [(1, sent.offset)]


def test_a_source_that_cannot_be_read(toy: Toy) -> None:
    mailboxes_read = False

    def trouble(request: Any) -> Any:
        nonlocal mailboxes_read
        mailboxes_read = mailboxes_read or is_a(request, "ReadMailboxes")
        return failed(request) if mailboxes_read and is_a(request, "Fetch outbox") else None

    toy.trouble = trouble
    reasons = incomplete(toy.audit())
    assert "dispatch 1 offsets 2..2: outbox 0 offset 2 is not readable" in reasons


def test_a_dispatch_log_with_a_hole_is_read_up_to_it(toy: Toy) -> None:
    def hole(request: Any) -> Any:
        if is_a(request, "Fetch dispatch") and request.offset == 0 and request.limit > 1:
            reply = toy.answer(request)
            return replace(reply, records=(*reply.records[:1], *reply.records[2:]))
        return None

    toy.trouble = hole
    report = toy.audit()
    assert report.orphans == ()
    assert report.dispatches == 10, "the next window begins where the hole was"


def test_short_fetches_are_repeated_for_the_rest(toy: Toy) -> None:
    toy.fetch_limit = 1
    report = toy.audit()
    assert (report.verdict, report.dispatches) == (Verdict.CLEAN, 10)


def test_a_fact_whose_offset_cannot_be_read(toy: Toy) -> None:
    facts = toy.sources[0].facts
    facts_begun = False

    def trouble(request: Any) -> Any:
        nonlocal facts_begun
        facts_begun = facts_begun or is_a(request, "ReadFacts")
        return failed(request) if facts_begun and is_a(request, "Fetch outbox") else None

    toy.trouble = trouble
    reasons = incomplete(toy.audit())
    assert "outbox 0 offsets 0..3: not readable where a fact points" in reasons
    assert facts == {}, "judged by the outbox walk all the same"


def test_an_outbox_that_retention_overtook_is_left_out(toy: Toy) -> None:
    def retain(request: Any) -> None:
        if is_a(request, "ReadSource"):
            toy.outbox().start = 2

    toy.trouble = retain
    assert incomplete(toy.audit()) == ("outbox 0 offsets 0..3: not readable",)


def test_a_fact_that_retention_overtook_is_no_evidence(toy: Toy) -> None:
    def trouble(request: Any) -> None:
        if is_a(request, "ReadFacts"):
            toy.outbox().start = 4

    toy.trouble = trouble
    assert toy.audit().verdict is Verdict.CLEAN


def test_a_fact_behind_a_newer_format_is_said_once(toy: Toy) -> None:
    toy.outbox().append(NEWER)
    fact = CommitAuditFact(
        message_id=b"n" * 16,
        conversation_id=b"c" * 16,
        conversation_seq=1,
        state=CommitState.COMMITTED,
        rebuilt=False,
        outbox_offset=4,
    )
    toy.sources[0].facts[fact.message_id] = fact
    toy.sources[0].checkpoint = 5
    assert incomplete(toy.audit()) == ("outbox 0 offsets 4..4: a newer format than this auditor's",)


# ------------------------------------------------------------ another incarnation


def reset(request: Any) -> Any:
    return StoreReset(op=request.op, store=StoreRole.MAILBOX)


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


def test_a_page_of_receipts_that_says_more_but_holds_none_is_not_believed(toy: Toy) -> None:
    def empty(request: Any) -> Any:
        if is_a(request, "ReadSource") and request.high:
            return replace(toy.answer(request), receipts=(), dead_letters=(), more=True)
        return None

    toy.trouble = empty
    assert incomplete(toy.audit()) == ("outbox 0 offsets 0..3: its receipts are not readable",)


def test_a_mailbox_page_may_be_the_last_although_it_is_full(toy: Toy) -> None:
    def trouble(request: Any) -> Any:
        if is_a(request, "ReadMailboxes"):
            (read,) = request.reads
            rows = toy.answer(request).results[0]
            return MailboxesRead(
                op=request.op,
                results=(
                    MailboxRows(rows.watermark, rows.trim, rows.entries[: read.limit], rows.more),
                ),
            )
        return None

    toy.trouble = trouble
    assert toy.audit(mailbox_page_max=1).verdict is Verdict.CLEAN


def test_what_retention_took_before_fanout_had_passed_is_named() -> None:
    """Found by the simulator: the log begins above the checkpoint, so nothing was left to judge and all looked CLEAN."""
    toy = Toy()
    log = toy.outbox(0)
    log.base = log.start = 20
    toy.sources[0].checkpoint = 12
    (why,) = incomplete(toy.audit())
    assert why == "outbox 0 offsets 12..19: retention took them before fanout had passed"
