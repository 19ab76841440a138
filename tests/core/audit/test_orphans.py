"""Every kind of orphan, by spoiling one thing about a message that was whole."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from qim.core.audit import AuditReport, Orphan, OrphanKind, Verdict
from qim.core.contract.entities import (
    NO_SOURCE,
    CommitState,
    FanoutAuditReceipt,
    GroupDispatch,
    decode_receipt,
    encode_receipt,
)
from qim.core.contract.ids import dispatch_id
from qim.core.contract.invariants import Invariant
from qim.core.contract.logvalue import barrier_value
from qim.core.contract.sequences import mailbox_seq
from qim.core.ports.log import Topic
from qim.core.ports.observe import Violation
from qim.core.ports.store_mailbox import Progress
from tests.core.audit.toy import A, B, Sent, Toy, users_in
from tests.core.audit.toy_services import PARTITIONS, SHARDS, Log

GARBAGE = b"\x01\x07garbage"


def orphans(report: AuditReport) -> list[tuple[OrphanKind, int, int, int]]:
    """(kind, partition, offset, shard) of each finding."""
    assert report.verdict is Verdict.ORPHANS
    assert report.orphans_total == len(report.orphans)
    return [(one.kind, one.partition, one.offset, one.shard) for one in report.orphans]


def only(report: AuditReport) -> Orphan:
    assert report.verdict is Verdict.ORPHANS
    (one,) = report.orphans
    return one


def receipt(toy: Toy, sent: Sent, **changes: object) -> None:
    """Another receipt stands there."""
    changed: FanoutAuditReceipt = replace(sent.receipt, **changes)
    toy.sources[sent.partition].receipts[sent.offset] = encode_receipt(changed)


def moved(toy: Toy, sent: Sent, of_shard: int, **changes: object) -> None:
    """The receipt names another place in one shard."""
    places = tuple(
        replace(at, **changes) if at.shard == of_shard else at for at in sent.receipt.shards
    )
    receipt(toy, sent, shards=places)


@pytest.fixture
def toy() -> Toy:
    """Two whole messages stand before whatever a test adds."""
    made = Toy()
    made.group(1, (A, B, *users_in(2, 3)))
    made.send()
    made.send(version=1)
    return made


# ------------------------------------------------------------ receipts


def test_a_checkpoint_without_a_receipt(toy: Toy) -> None:
    sent = toy.send()
    del toy.sources[0].receipts[sent.offset]
    one = only(toy.audit())
    assert (one.kind, one.offset) == (OrphanKind.RECEIPT_MISSING, sent.offset)
    assert one.message_id == sent.record.message_id
    violation = [seen for seen in toy.seen if isinstance(seen, Violation)]
    assert [seen.check for seen in violation] == [Invariant.ORPHAN_DISPATCH.value]
    assert "receipt_missing" in violation[0].detail


def test_a_receipt_of_another_message(toy: Toy) -> None:
    sent = toy.send()
    receipt(toy, sent, message_id=b"x" * 16)
    assert only(toy.audit()).kind is OrphanKind.RECEIPT_MISSING


def test_a_receipt_nobody_can_read(toy: Toy) -> None:
    sent = toy.send()
    toy.sources[0].receipts[sent.offset] = GARBAGE
    assert only(toy.audit()).kind is OrphanKind.RECEIPT_MISSING


def test_a_receipt_that_forgets_or_invents_a_shard(toy: Toy) -> None:
    first, second, third = toy.send(), toy.send(), toy.send()
    receipt(toy, first, shards=first.receipt.shards[:1])
    receipt(
        toy, second, shards=(*second.receipt.shards, replace(second.receipt.shards[0], shard=3))
    )
    receipt(toy, third, shards=(third.receipt.shards[0], *third.receipt.shards))
    kind = OrphanKind.WRONG_SHARD_SET
    assert orphans(toy.audit()) == [(kind, 0, one.offset, -1) for one in (first, second, third)]


def test_a_receipt_with_a_shard_that_cannot_be(toy: Toy) -> None:
    sent = toy.send()
    moved(toy, sent, 1, shard=SHARDS)
    assert only(toy.audit()).kind is OrphanKind.WRONG_SHARD_SET


def test_a_receipt_whose_digest_is_not_its_records(toy: Toy) -> None:
    sent = toy.send()
    moved(toy, sent, 1, digest=b"d" * 16)
    assert orphans(toy.audit()) == [(OrphanKind.WRONG_DIGEST, 0, sent.offset, 1)]


# ------------------------------------------------------------ dispatches


@pytest.mark.parametrize("where", ["beyond the end", "another's", "garbage"])
def test_no_dispatch_where_the_receipt_points(toy: Toy, where: str) -> None:
    sent = toy.send()
    if where == "beyond the end":
        moved(toy, sent, 0, offset=99)
    elif where == "another's":
        moved(toy, sent, 0, offset=0)
    else:
        toy.dispatch(0).spoil(sent.place(0), GARBAGE)
    found = orphans(toy.audit())
    assert (OrphanKind.RECORD_WITHOUT_DISPATCH, 0, sent.offset, 0) in found
    others = [kind for kind, *_ in found if kind is not OrphanKind.RECORD_WITHOUT_DISPATCH]
    assert others == ([OrphanKind.DEAD_LETTERED] if where == "garbage" else [])


def test_a_dispatch_of_other_content_than_its_receipt(toy: Toy) -> None:
    sent = toy.send()
    spoiled(toy, sent, 1, body_digest=b"b" * 16)
    assert orphans(toy.audit()) == [
        (OrphanKind.WRONG_DIGEST, 0, sent.offset, 1),
        (OrphanKind.WRONG_DIGEST, 0, sent.place(1), 1),
    ]


def spoiled(toy: Toy, sent: Sent, shard: int, **changes: object) -> None:
    """Another dispatch stands where the receipt points."""
    other = Toy()
    changed: GroupDispatch = replace(sent.dispatches[shard], **changes)
    other.append_dispatch(shard, changed)
    toy.dispatch(shard).spoil(sent.place(shard), other.dispatch(shard).values[0][1])


# ------------------------------------------------------------ mailboxes


def test_an_entry_that_is_not_there(toy: Toy) -> None:
    sent = toy.send(version=1)
    user = sent.users[2][1]
    toy.boxes[2].rows["t", user].pop()
    one = only(toy.audit())
    assert (one.kind, one.shard, one.offset) == (OrphanKind.NOT_MATERIALISED, 2, sent.offset)
    assert f"user {user}" in one.detail


def test_several_missing_entries_of_a_dispatch_are_one_finding(toy: Toy) -> None:
    sent = toy.send(version=1)
    for user in sent.users[2]:
        toy.boxes[2].rows["t", user].pop()
    assert only(toy.audit()).kind is OrphanKind.NOT_MATERIALISED


def test_an_entry_that_is_there_twice(toy: Toy) -> None:
    sent = toy.send()
    toy.put(0, A, sent.record, mailbox_seq(1, sent.place(0)) - 1)
    one = only(toy.audit())
    assert (one.kind, one.shard) == (OrphanKind.NOT_MATERIALISED, 0)


def test_an_entry_behind_its_dispatch(toy: Toy) -> None:
    sent = toy.send()
    toy.boxes[0].rows["t", A].pop()
    toy.put(0, A, sent.record, mailbox_seq(1, sent.place(0)) + 1)
    toy.passed(0, sent.place(0) + 1)
    assert only(toy.audit()).kind is OrphanKind.NOT_MATERIALISED


def test_a_repetition_above_trim_does_not_excuse_a_lost_entry(toy: Toy) -> None:
    """Only a dispatch that first stands at or below trim may have no entry."""
    sent = toy.send()
    repeated = toy.append_dispatch(0, sent.dispatches[0])
    toy.passed(0, repeated)
    moved(toy, sent, 0, offset=repeated)
    toy.boxes[0].rows["t", A].pop()
    toy.trim(0, 0)
    assert orphans(toy.audit()) == [(OrphanKind.NOT_MATERIALISED, 0, sent.offset, 0)]


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (OrphanKind.NOT_MATERIALISED, lambda mark: replace_mark(mark, entry_count=2)),
        (OrphanKind.NOT_MATERIALISED, lambda mark: replace_mark(mark, offset=mark.offset + 1)),
        (OrphanKind.WRONG_DIGEST, lambda mark: replace_mark(mark, digest=b"d" * 16)),
    ],
    ids=["count", "offset", "digest"],
)
def test_a_progress_mark_that_stands_must_agree(
    toy: Toy, kind: OrphanKind, spoil: Callable[[Progress], Progress]
) -> None:
    """More entries than the audience has is a leak that no reading of the audience's mailboxes shows."""
    sent = toy.send()
    one = dispatch_id(sent.record.message_id, 0)
    toy.boxes[0].progress[one] = spoil(toy.boxes[0].progress[one])
    assert orphans(toy.audit()) == [(kind, 0, sent.offset, 0)]


def replace_mark(mark: Progress, **changes: object) -> Progress:
    changed: Progress = replace(mark, **changes)
    return changed


# ------------------------------------------------------------ dead letters


def test_a_dead_letter_is_an_orphan_under_the_key_it_had(toy: Toy) -> None:
    offset = toy.outbox().append(GARBAGE, b"m" * 16)
    toy.sources[0].dead_letters[offset] = GARBAGE
    toy.sources[0].checkpoint = offset + 1
    one = only(toy.audit())
    assert (one.kind, one.offset, one.message_id) == (
        OrphanKind.DEAD_LETTERED,
        offset,
        b"m" * 16,
    )


def test_what_an_older_fanout_could_not_read_is_a_dead_letter_too(toy: Toy) -> None:
    sent = toy.send()
    del toy.sources[0].receipts[sent.offset]
    toy.sources[0].dead_letters[sent.offset] = b"kept"
    assert only(toy.audit()).kind is OrphanKind.DEAD_LETTERED


def test_a_redriven_dead_letter_is_resolved(toy: Toy) -> None:
    """Its receipt says where it was dispatched; its dispatches name no source."""
    sent = toy.send()
    toy.outbox().spoil(sent.offset, GARBAGE)
    toy.sources[0].dead_letters[sent.offset] = GARBAGE
    toy.sources[0].facts.clear()
    for shard in (0, 1):
        spoiled(toy, sent, shard, source_partition=NO_SOURCE, source_offset=0)
    report = toy.audit()
    assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())
    moved(toy, sent, 1, offset=0)
    assert only(toy.audit()).kind is OrphanKind.RECORD_WITHOUT_DISPATCH
    moved(toy, sent, 1, shard=SHARDS + 7)
    assert only(toy.audit()).kind is OrphanKind.WRONG_SHARD_SET


def test_a_dispatch_may_name_an_offset_that_was_lost_and_filled_up(toy: Toy) -> None:
    """The outbox lost the record and got it again elsewhere; its dispatches name where it stood (pipeline.md §7)."""
    sent = toy.send()
    moved_to = toy.publish(sent.record)
    toy.outbox().spoil(sent.offset, barrier_value(1))
    source = toy.sources[0]
    receipt = decode_receipt(source.receipts.pop(sent.offset))
    told = replace(receipt, source_offset=moved_to)
    source.receipts[moved_to] = encode_receipt(told)
    source.checkpoint = moved_to + 1
    fact = source.facts[sent.record.message_id]
    source.facts[sent.record.message_id] = replace(fact, outbox_offset=moved_to)
    assert {one.kind for one in toy.audit().orphans} == {OrphanKind.DISPATCH_WITHOUT_RECORD}
    source.lost = ((sent.offset, sent.offset + 1),)
    assert toy.audit().verdict is Verdict.CLEAN


def test_what_was_materialised_before_its_shard_epoch_was_raised_is_covered_by_its_receipt(
    toy: Toy,
) -> None:
    """The dispatch log of shard 1 is gone; what fanout dispatched again stands in the new one (pipeline.md §7)."""
    before = [toy.send() for _ in range(3)]
    after = toy.send()
    toy.logs[Topic.DISPATCH, 1] = Log()
    box = toy.boxes[1]
    box.rows.clear()
    box.progress.clear()
    box.watermark = box.trim = (2 << 48) - 1
    assert {one.kind for one in toy.audit().orphans} == {OrphanKind.RECORD_WITHOUT_DISPATCH}
    box.settled = ((0, after.offset),)
    one = only(toy.audit())
    assert (one.kind, one.offset, one.shard) == (
        OrphanKind.RECORD_WITHOUT_DISPATCH,
        after.offset,
        1,
    )
    box.settled = ((0, after.offset + 1),)
    report = toy.audit()
    assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())
    assert report.records > len(before)


def test_a_record_that_a_repair_moved_is_still_of_before_the_bump(toy: Toy) -> None:
    """The mark of shard 1 counts offsets as they were dispatched; the record stands above it since its outbox was repaired."""
    sent = toy.send()
    mark = sent.offset + 1
    moved_to = toy.publish(sent.record)
    toy.outbox().spoil(sent.offset, barrier_value(1))
    source = toy.sources[0]
    before = decode_receipt(source.receipts.pop(sent.offset))
    told = replace(before, source_offset=moved_to, moved_from=before.dispatched_under())
    source.receipts[moved_to] = encode_receipt(told)
    source.checkpoint = moved_to + 1
    source.lost = ((sent.offset, mark),)
    fact = source.facts[sent.record.message_id]
    source.facts[sent.record.message_id] = replace(fact, outbox_offset=moved_to)
    toy.logs[Topic.DISPATCH, 1] = Log()
    box = toy.boxes[1]
    box.rows.clear()
    box.progress.clear()
    box.watermark = box.trim = (2 << 48) - 1
    box.settled = ((0, mark),)
    report = toy.audit()
    assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())
    again = replace(told, source_offset=moved_to, moved_from=-1)
    source.receipts[moved_to] = encode_receipt(again)
    assert only(toy.audit()).kind is OrphanKind.RECORD_WITHOUT_DISPATCH, "one dispatched since"


def test_a_dispatch_nobody_can_read(toy: Toy) -> None:
    offset = toy.dispatch(2).append(GARBAGE, b"m" * 16)
    assert orphans(toy.audit()) == [(OrphanKind.DEAD_LETTERED, -1, offset, 2)]


# ------------------------------------------------------------ dispatches without a record


def test_a_dispatch_whose_source_is_another_record(toy: Toy) -> None:
    sent = toy.send()
    offset = toy.append_dispatch(0, replace(sent.dispatches[0], source_offset=0))
    toy.passed(0, offset)
    assert orphans(toy.audit()) == [(OrphanKind.DISPATCH_WITHOUT_RECORD, 0, offset, 0)]


@pytest.mark.parametrize(
    ("kind", "partition", "changes"),
    [
        (OrphanKind.DISPATCH_WITHOUT_RECORD, PARTITIONS, {"source_partition": PARTITIONS}),
        (OrphanKind.DISPATCH_WITHOUT_RECORD, 0, {"dispatch_id": b"i" * 16}),
        (OrphanKind.WRONG_SHARD_SET, 0, {"shard": 1}),
        (OrphanKind.WRONG_SHARD_SET, -1, {"shard": 1, "source_partition": NO_SOURCE}),
        (OrphanKind.WRONG_DIGEST, 0, {"sender_id": 77}),
    ],
)
def test_a_dispatch_that_is_not_its_records(
    toy: Toy, kind: OrphanKind, partition: int, changes: dict[str, object]
) -> None:
    sent = toy.send()
    offset = toy.append_dispatch(0, replace(sent.dispatches[0], **changes))
    toy.passed(0, offset)
    assert orphans(toy.audit()) == [(kind, partition, offset, 0)]


def test_a_dispatch_to_a_shard_its_record_does_not_reach(toy: Toy) -> None:
    """The receipt is right, and yet a copy went elsewhere: a leak."""
    sent = toy.send()
    record = sent.record
    stray = replace(sent.dispatches[0], shard=3, dispatch_id=dispatch_id(record.message_id, 3))
    offset = toy.append_dispatch(3, stray)
    toy.passed(3, offset)
    assert orphans(toy.audit()) == [(OrphanKind.WRONG_SHARD_SET, 0, offset, 3)]


def test_a_dispatch_of_an_ineffective_record(toy: Toy) -> None:
    """Somebody fanned out what a zombie appended."""
    toy.barrier(5)
    record = toy.record()
    offset = toy.publish(record, epoch=4)
    sent = toy.fan_out(record, 0, offset)
    for shard in (0, 1):
        toy.materialise(sent, shard)
    found = orphans(toy.audit())
    kind = OrphanKind.DISPATCH_WITHOUT_RECORD
    assert found == [(kind, 0, sent.place(0), 0), (kind, 0, sent.place(1), 1)]


def test_a_dispatch_that_points_at_a_barrier_or_behind_a_shortened_log(toy: Toy) -> None:
    sent = toy.send()
    barrier = toy.barrier(1)
    offset = toy.append_dispatch(0, replace(sent.dispatches[0], source_offset=barrier))
    toy.passed(0, offset)
    assert orphans(toy.audit()) == [(OrphanKind.DISPATCH_WITHOUT_RECORD, 0, offset, 0)]

    def shorten(request: object) -> None:
        if type(request).__name__ == "Fetch" and getattr(request, "topic", None) is Topic.DISPATCH:
            del toy.outbox().values[barrier:]

    toy.trouble = shorten
    found = orphans(toy.audit())
    assert (OrphanKind.DISPATCH_WITHOUT_RECORD, 0, offset, 0) in found


# ------------------------------------------------------------ facts


def test_a_committed_fact_whose_record_is_not_there(toy: Toy) -> None:
    sent = toy.send()
    fact = toy.sources[0].facts[sent.record.message_id]
    lost = replace(fact, message_id=b"lost" * 4, outbox_offset=0)
    toy.sources[0].facts[lost.message_id] = lost
    one = only(toy.audit())
    assert (one.kind, one.offset, one.message_id) == (
        OrphanKind.FACT_WITHOUT_RECORD,
        0,
        b"lost" * 4,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"rebuilt": True},
        {"state": CommitState.RECORDED},
        {"outbox_offset": -1},
    ],
)
def test_facts_that_are_no_evidence(toy: Toy, change: dict[str, object]) -> None:
    sent = toy.send()
    fact = toy.sources[0].facts[sent.record.message_id]
    other = replace(fact, message_id=b"other" + bytes(11), outbox_offset=0)
    toy.sources[0].facts[other.message_id] = replace(other, **change)
    assert toy.audit().verdict is Verdict.CLEAN


def test_a_committed_fact_whose_record_is_not_effective(toy: Toy) -> None:
    toy.barrier(5)
    record = toy.record()
    offset = toy.publish(record, epoch=4)
    any_fact = next(iter(toy.sources[0].facts.values()))
    fact = replace(any_fact, message_id=record.message_id, outbox_offset=offset)
    toy.sources[0].facts[fact.message_id] = fact
    assert orphans(toy.audit()) == [(OrphanKind.FACT_WITHOUT_RECORD, 0, offset, -1)]


def test_with_an_orphan_no_fact_is_dropped_and_no_cursor_moves(toy: Toy) -> None:
    sent = toy.send()
    del toy.sources[0].receipts[sent.offset]
    for _ in range(2):
        assert only(toy.audit()).kind is OrphanKind.RECEIPT_MISSING, "it stays in every report"
    assert len(toy.sources[0].facts) == 3
    assert toy.sources[0].covered_to == 0


# ------------------------------------------------------------ bounds


def test_findings_are_counted_beyond_those_kept(toy: Toy) -> None:
    for sent in [toy.send() for _ in range(6)]:
        del toy.sources[0].receipts[sent.offset]
    report = toy.audit(orphans_max=2)
    assert (report.verdict, report.orphans_total, len(report.orphans)) == (Verdict.ORPHANS, 6, 2)


def test_suspects_beyond_their_bound_are_orphans(toy: Toy) -> None:
    sent = [toy.send() for _ in range(4)]
    grouped = toy.send(version=1)
    toy.boxes[0].rows["t", A] = toy.boxes[0].rows["t", A][:2]
    for user in grouped.users[2]:
        toy.boxes[2].rows["t", user].pop()
    missing = len(sent) + 1 + len(grouped.users[2])
    dispatches = len(sent) + 2
    for limit, total in ((1, missing), (5, missing), (6, dispatches), (9, dispatches)):
        report = toy.audit(orphans_max=limit)
        assert (report.orphans_total, len(report.orphans)) == (total, min(limit, total))


def test_a_shard_that_is_behind_hides_no_orphan_of_another(toy: Toy) -> None:
    late, sent = toy.send(), toy.send()
    toy.boxes[1].rows["t", B] = toy.boxes[1].rows["t", B][:-1]
    toy.passed(0, late.place(0) - 1)
    report = toy.audit()
    assert orphans(report) == [(OrphanKind.NOT_MATERIALISED, 0, sent.offset, 1)]
    assert report.incomplete == (
        f"outbox 0 offsets {late.offset}..{sent.offset}: mailbox shard 0 has not passed its dispatch",
    )
