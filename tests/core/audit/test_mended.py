"""What mending left behind is no orphan: redriven letters, a repaired outbox, a shard whose epoch was raised."""

from msgspec.structs import replace

from qim.core.audit import OrphanKind, Verdict
from qim.core.contract.entities import NO_SOURCE, decode_receipt, encode_receipt
from qim.core.contract.logvalue import barrier_value
from qim.core.ports.log import Topic
from tests.core.audit.spoiling import GARBAGE, moved, only, spoiled
from tests.core.audit.toy import Toy
from tests.core.audit.toy_services import SHARDS, Log


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


def test_a_record_may_come_late_to_the_very_place_where_it_was_lost(toy: Toy) -> None:
    """A dead writer's append lands behind the barriers that filled the log up, and means nothing; its dispatches are of the first."""
    toy.barrier(1)
    sent = toy.send()
    source = toy.sources[0]
    moved_to = toy.publish(sent.record, epoch=2)
    toy.outbox().spoil(sent.offset - 1, barrier_value(2))
    receipt = decode_receipt(source.receipts.pop(sent.offset))
    source.receipts[moved_to] = encode_receipt(replace(receipt, source_offset=moved_to))
    source.checkpoint = moved_to + 1
    fact = source.facts[sent.record.message_id]
    source.facts[sent.record.message_id] = replace(fact, outbox_offset=moved_to)
    assert {one.kind for one in toy.audit().orphans} == {OrphanKind.DISPATCH_WITHOUT_RECORD}
    source.lost = ((sent.offset - 1, sent.offset + 1),)
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
