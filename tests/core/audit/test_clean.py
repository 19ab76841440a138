"""What is whole is CLEAN, however it lies: windows, pages, barriers, trimmed logs and mailboxes, duplicates."""

import pytest
from msgspec.structs import replace

from qim.core.audit import AuditReport, Verdict
from qim.core.contract.entities import NO_SOURCE, CommitState, encode_receipt
from qim.core.contract.ids import dispatch_id
from qim.core.contract.sequences import before_first, mailbox_seq
from qim.core.ports.log import Topic
from qim.core.ports.observe import Count, Gauge
from qim.core.ports.store_mailbox import ReadMailboxes
from tests.core.audit.toy import A, B, Toy, users_in


def clean(report: AuditReport) -> AuditReport:
    assert (report.orphans, report.incomplete) == ((), ())
    assert report.verdict is Verdict.CLEAN
    return report


def ranges(report: AuditReport) -> list[tuple[int, int, int, int]]:
    return [(one.partition, one.low, one.high, one.records) for one in report.covered]


def test_nothing_at_all_is_clean() -> None:
    toy = Toy()
    report = clean(toy.audit())
    assert ranges(report) == []
    assert toy.seen == [
        Count(name="audit_runs", label="CLEAN"),
        Gauge(name="audit_orphans", value=0),
    ]


def test_messages_of_both_kinds_are_covered() -> None:
    toy = Toy()
    toy.group(1, (A, B, *users_in(2, 3)))
    for _ in range(5):
        toy.send()
        toy.send(version=1, partition=1)
    report = clean(toy.audit())
    assert ranges(report) == [(0, 0, 5, 5), (1, 0, 5, 5)]
    assert (report.records, report.dispatches) == (10, 25)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_windows_and_pages_of_every_size_see_the_same(limit: int) -> None:
    toy = Toy()
    toy.group(1, (A, B, *users_in(3, 2)))
    toy.fetch_limit = toy.page_limit = limit
    for number in range(7):
        toy.send(version=number % 2)
        toy.barrier(1)
    report = clean(
        toy.audit(window_records_max=limit, mailbox_page_max=limit, reads_inflight_max=limit)
    )
    assert ranges(report) == [(0, 0, 14, 7)]
    assert report.dispatches == 4 * 2 + 3 * 3


@pytest.mark.parametrize("limit", [1, 2])
def test_short_pages_are_read_to_their_end(limit: int) -> None:
    toy = Toy()
    toy.page_limit = limit
    for _ in range(5):
        sent = toy.send()
        toy.sources[0].dead_letters[sent.offset] = b"redriven since"
    assert ranges(clean(toy.audit())) == [(0, 0, 5, 5)]


@pytest.mark.parametrize("recipients", [0, 1, 5, 10_000])
def test_a_window_is_judged_in_pieces_that_leave_others_their_turn(recipients: int) -> None:
    toy = Toy()
    toy.group(1, (A, B, *users_in(2, 6)))
    for _ in range(9):
        toy.send(version=1)
    auditor = toy.auditor(judged_recipients_max=recipients)
    report = clean(toy.audit(auditor))
    assert ranges(report) == [(0, 0, 9, 9)]
    if recipients < 10_000:
        assert toy.now > 0, "some steps ended with work left, due at once"
    else:
        assert toy.now == 0


def test_explicit_recipients_are_the_audience() -> None:
    """Membership control reaches exactly whom it names, members or not."""
    toy = Toy()
    gone = users_in(2)[0]
    toy.send(recipients=(A, gone), version=7)
    report = clean(toy.audit())
    assert report.dispatches == 2


def test_ineffective_records_and_barriers_need_nothing() -> None:
    toy = Toy()
    toy.barrier(3)
    toy.publish(toy.record(), epoch=2)
    toy.send(epoch=3)
    toy.barrier(5)
    toy.publish(toy.record(), epoch=4)
    toy.barrier(4)  # a zombie's: it raises nothing
    toy.publish(toy.record(), epoch=4)
    toy.send(epoch=5)
    assert ranges(clean(toy.audit())) == [(0, 0, 8, 2)]


def test_a_log_that_begins_late_takes_the_registered_barrier_below_its_start() -> None:
    toy = Toy()
    toy.outbox().base = toy.outbox().start = 100
    toy.barriers[0] = [(7, 40), (9, 300), (3, 60)]
    toy.publish(toy.record(), epoch=6)
    toy.send(epoch=7)
    assert ranges(clean(toy.audit())) == [(0, 100, 102, 1)]


def test_a_fetched_record_below_the_start_is_not_asked_for() -> None:
    """Receipts may name dispatches that retention took; the mailbox still speaks."""
    toy = Toy()
    toy.send()
    toy.send()
    toy.dispatch(0).start = 1
    clean(toy.audit())


def test_retention_that_overtakes_the_run_is_no_loss() -> None:
    toy = Toy()
    toy.send()

    def retain(request: object) -> None:
        if getattr(request, "topic", None) is Topic.DISPATCH and hasattr(request, "limit"):
            toy.dispatch(0).start = 1

    toy.trouble = retain
    report = toy.audit()
    assert report.orphans == ()
    assert report.incomplete == ("dispatch 0 offsets 0..0: not readable",)
    assert ranges(report) == [(0, 0, 1, 1)], "the outbox walk needs no more than the receipt"


def test_below_trim_the_receipt_alone_covers() -> None:
    toy = Toy()
    sent = [toy.send() for _ in range(3)]
    for shard in (0, 1):
        toy.trim(shard, sent[1].place(shard))
    assert ranges(clean(toy.audit())) == [(0, 0, 3, 3)]


def test_trim_that_overtakes_the_reading_is_no_loss() -> None:
    toy = Toy()
    sent = [toy.send() for _ in range(3)]

    def trim(request: object) -> None:
        if hasattr(request, "reads"):
            toy.trim(0, sent[0].place(0))

    toy.trouble = trim
    clean(toy.audit())


def test_trim_up_to_the_watermark_while_reading_is_no_loss() -> None:
    toy = Toy()
    sent = [toy.send() for _ in range(3)]

    def trim(request: object) -> None:
        if hasattr(request, "reads"):
            toy.trim(0, sent[2].place(0))

    toy.trouble = trim
    clean(toy.audit())


def test_a_repeated_dispatch_is_materialised_at_the_first() -> None:
    """A retry after Unknown: the receipt names the second, the mailbox holds the first."""
    toy = Toy()
    sent = toy.send()
    toy.send()
    repeated = toy.append_dispatch(0, sent.dispatches[0])
    toy.passed(0, repeated)
    places = tuple(
        replace(at, offset=repeated) if at.shard == 0 else at for at in sent.receipt.shards
    )
    toy.sources[0].receipts[sent.offset] = encode_receipt(replace(sent.receipt, shards=places))
    report = clean(toy.audit())
    assert report.dispatches == 5


@pytest.mark.parametrize("marks", [True, False])
def test_the_first_may_lie_at_or_below_trim(marks: bool) -> None:
    """Only the repetition stands above trim: the entry went with its day."""
    toy = Toy()
    sent = toy.send()
    toy.send()
    repeated = toy.append_dispatch(0, sent.dispatches[0])
    toy.passed(0, repeated)
    places = tuple(
        replace(at, offset=repeated) if at.shard == 0 else at for at in sent.receipt.shards
    )
    toy.sources[0].receipts[sent.offset] = encode_receipt(replace(sent.receipt, shards=places))
    toy.trim(0, sent.place(0))
    if not marks:
        toy.boxes[0].progress.clear()
    clean(toy.audit())


def test_a_redriven_dispatch_names_no_record_and_is_no_orphan() -> None:
    toy = Toy()
    sent = toy.send()
    again = replace(sent.dispatches[0], source_partition=NO_SOURCE, source_offset=0)
    toy.passed(0, toy.append_dispatch(0, again))
    assert clean(toy.audit()).dispatches == 3


def test_dispatches_of_records_that_retention_took_are_not_judged() -> None:
    toy = Toy()
    sent = toy.send()
    toy.send()
    dispatch = replace(
        sent.dispatches[0], message_id=b"m" * 16, dispatch_id=dispatch_id(b"m" * 16, 0)
    )
    toy.passed(0, toy.append_dispatch(0, dispatch))
    toy.outbox().start = 1
    clean(toy.audit())


def test_absent_progress_marks_mean_nothing() -> None:
    toy = Toy()
    toy.send()
    toy.boxes[0].progress.clear()
    clean(toy.audit())


def test_what_comes_during_the_run_lies_behind_the_cut() -> None:
    toy = Toy()
    toy.send()
    done = False

    def more(request: object) -> None:
        nonlocal done
        if hasattr(request, "bytes_max") and not done:
            done = True
            toy.publish(toy.record())
            toy.dispatch(0).append(b"garbage")

    toy.trouble = more
    assert ranges(clean(toy.audit())) == [(0, 0, 1, 1)]


def test_dispatches_that_came_after_the_cut_are_waited_for() -> None:
    """The record is below the outbox's cut, its dispatch behind the dispatch log's."""
    toy = Toy()
    toy.send()
    late = toy.record()
    offset = toy.publish(late)
    looks = 0

    def trouble(request: object) -> None:
        nonlocal looks
        if type(request).__name__ == "ReadSource":
            looks += 1
            if looks == 3:
                sent = toy.fan_out(late, 0, offset)
                toy.materialise(sent, 0)
                toy.materialise(sent, 1)

    toy.trouble = trouble
    assert ranges(clean(toy.audit(attempts_max=9))) == [(0, 0, 2, 2)]


def test_a_mailbox_read_before_is_read_on_when_the_watermark_moves() -> None:
    """Windows follow one another: what was read of a user is extended, not read anew."""
    toy = Toy()
    toy.send()
    second = toy.record()
    offset = toy.publish(second)
    sent = toy.fan_out(second, 0, offset)
    toy.materialise(sent, 1)
    reads = 0

    def trouble(request: object) -> None:
        nonlocal reads
        if type(request).__name__ == "ReadMailboxes":
            reads += 1
            if reads == 2:
                toy.materialise(sent, 0)

    toy.trouble = trouble
    assert ranges(clean(toy.audit(window_records_max=1, attempts_max=3))) == [(0, 0, 2, 2)]


def test_forgotten_mailboxes_are_read_again() -> None:
    toy = Toy()
    others = users_in(0, 6)
    for _ in range(2):
        for user in others:
            toy.send((user, B))

    def first_pages(**limits: int) -> int:
        read: list[int] = []

        def listen(request: object) -> None:
            if isinstance(request, ReadMailboxes):
                read.extend(one.user_id for one in request.reads if one.after == 0)

        toy.trouble = listen
        clean(toy.audit(window_records_max=2, advance_coverage=False, **limits))
        assert {*others, B} == set(read)
        return len(read)

    assert first_pages() == len(others) + 1
    assert first_pages(mailbox_cache_entries_max=3) > len(others) + 1, "no more are kept than that"


def test_forgotten_versions_are_read_again() -> None:
    toy = Toy()
    toy.group(1, (A, B))
    toy.group(2, (A, *users_in(2, 2)))
    for version in (1, 2, 1, 2):
        toy.send(version=version)
    clean(toy.audit(window_records_max=1, version_members_max=1))


def test_a_new_shard_epoch_names_other_seqs() -> None:
    """After `qim shard bump` mailbox_seqs carry the epoch of the record behind min W."""
    toy = Toy()
    sent = toy.send()
    for shard in (0, 1):
        box = toy.boxes[shard]
        box.rows.clear()
        box.watermark = before_first(3, 0)
        box.trim = before_first(3, 0)
    report = toy.audit(attempts_max=1)
    assert report.incomplete, "nothing has passed under the new epoch"
    for shard in (0, 1):
        box = toy.boxes[shard]
        box.watermark = mailbox_seq(3, sent.place(shard))
        for user in sent.users[shard]:
            toy.put(shard, user, sent.record, mailbox_seq(3, sent.place(shard)))
    clean(toy.audit())


def test_facts_behind_the_cursor_go_and_pending_ones_stay() -> None:
    toy = Toy()
    sent = [toy.send() for _ in range(3)]
    facts = toy.sources[0].facts
    pending = facts[sent[1].record.message_id]
    facts[pending.message_id] = replace(pending, state=CommitState.RECORDED, outbox_offset=-1)
    refused = replace(pending, message_id=b"refused" + bytes(9), state=CommitState.REFUSED)
    facts[refused.message_id] = refused
    report = clean(toy.audit(window_records_max=2))
    assert report.in_flight == (pending.message_id,)
    assert list(facts) == [pending.message_id]
    assert toy.sources[0].covered_to == 3
    assert clean(toy.audit()).records == 3, "the outbox walk judges without facts"


def test_facts_stay_when_the_caller_says_so() -> None:
    toy = Toy()
    toy.send()
    clean(toy.audit(advance_coverage=False))
    assert len(toy.sources[0].facts) == 1
    assert toy.sources[0].covered_to == 0
