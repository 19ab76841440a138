"""What nobody can read is INCOMPLETE, with its range and reason: newer formats, holes, what retention took during the run."""

from typing import Any

from msgspec.structs import replace

from qim.core.audit import Verdict
from qim.core.contract.entities import CommitAuditFact, CommitState, encode_receipt
from qim.core.ports.store_mailbox import MailboxesRead, MailboxRows
from tests.core.audit.toy import A, B, Toy
from tests.core.audit.troubles import failed, hole, incomplete, is_a, ranges
from tests.core.newer_format import NEWER


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
    toy.trouble = hole(toy, "outbox")
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
    toy.trouble = hole(toy, "dispatch")
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
