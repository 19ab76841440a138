"""What an OPEN restores from the outbox, what it finishes, and when it refuses to serve (pipeline.md §1.6 (d), (e), §1.8)."""

from qim.core.contract.entities import CommitState
from qim.core.contract.errors import ErrorCode
from qim.core.contract.logvalue import barrier_value
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.log import Append, Fetch, Fetched, LogRecord, OutOfRange
from qim.core.ports.registry import ReadLease
from qim.core.ports.store_message import ApplyOutbox, MarkCommitted, ReadPending, ReserveAndRecord
from qim.core.writer import WriterConfig
from qim.core.writer.opening import NO_LIMIT
from tests.core.newer_format import NEWER
from tests.core.writer.opened import SMALL, closed, reopened
from tests.core.writer.scene import Scene, chat


def test_a_lost_tail_is_restored_from_the_outbox_in_batches() -> None:
    scene = Scene(SMALL)
    mark = scene.keyspace.mark()
    rids = [scene.send(1, 2, number=n) for n in range(1, 8)]
    scene.settle()
    before = [scene.sent(rid) for rid in rids]
    scene.restart_store(mark)
    late = scene.send(1, 2, number=99)
    scene.settle()
    assert scene.sent(late).conversation_seq == 8
    again = [scene.send(1, 2, number=n) for n in range(1, 8)]
    scene.settle()
    after = [scene.sent(rid) for rid in again]
    assert [(a.message_id, a.conversation_seq, a.last_activity_id) for a in after] == [
        (b.message_id, b.conversation_seq, b.last_activity_id) for b in before
    ]
    assert scene.counts["outbox_restored"] == 7
    assert len(scene.effective()) == 8


def test_an_emptied_store_is_restored_wholly_with_groups() -> None:
    scene = Scene(SMALL)
    group = scene.create(1, 2, 3)
    rid = scene.send(2, to=group)
    scene.settle()
    scene.restart_store(-1)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    again = scene.send(3, to=group)
    scene.settle()
    assert scene.sent(again).conversation_seq == scene.sent(rid).conversation_seq + 1
    asked = scene.history(3, group)
    scene.settle()
    assert len(scene.past(asked).records) == 3


def test_a_batch_without_an_effective_record_still_moves_applied() -> None:
    scene = closed(SMALL)
    for epoch in (1, 2, 3, 4, 5):
        scene.put(LogRecord(key=b"", value=barrier_value(epoch)))
    scene.epoch = 5
    scene.hold()
    applies = []
    while scene.inflight:
        if isinstance(scene.inflight[0], ApplyOutbox):
            applies.append(scene.inflight[0])
        scene.answer()
    assert [(a.applied_from, a.applied_to, a.filter_epoch, a.records) for a in applies] == [
        (0, 3, 3, ()),
        (3, 5, 5, ()),
    ]


def test_pending_intents_are_finished_in_order_under_the_new_epoch() -> None:
    scene = Scene(SMALL)
    rids = [scene.send(1, 2, number=n) for n in range(1, 6)]
    scene.until(Append)  # dies with its first append unanswered and never carried out
    scene.inflight.clear()
    assert all(scene.said(rid) is None for rid in rids)
    fresh = reopened(scene)
    fresh.hold()
    fresh.settle()
    assert [r.conversation_seq for r in fresh.effective()] == list(
        range(1, len(fresh.effective()) + 1)
    )
    assert fresh.counts["intent_resumed"] == len(fresh.effective())
    again = [fresh.send(1, 2, number=n) for n in range(1, 6)]
    fresh.settle()
    assert [fresh.sent(rid).conversation_seq for rid in again] == [1, 2, 3, 4, 5]
    assert len(fresh.effective()) == 5


def test_an_append_that_lands_late_means_nothing() -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=1)
    append = scene.until(Append)
    assert isinstance(append, Append)
    scene.step(Unknown(op=append.op))
    assert scene.wanted
    scene.settle()
    done = scene.sent(rid)
    for record in append.records:
        scene.put(record)
    assert [r.message_id for r in scene.effective()] == [done.message_id]
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    assert scene.counts["outbox_ineffective"] == 1
    again = scene.send(1, 2, number=1)
    scene.settle()
    assert scene.sent(again).message_id == done.message_id


def test_an_unknown_append_that_did_land_is_not_repeated() -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=1)
    append = scene.until(Append)
    scene.carry_out(append)
    scene.step(Unknown(op=append.op))
    scene.settle()
    assert len(scene.effective()) == 1
    assert scene.sent(rid).message_id == scene.effective()[0].message_id
    assert scene.counts["duplicate_send.replayed"] == 1


def test_retention_above_applied_refuses_to_serve_and_names_the_range() -> None:
    scene = Scene()
    scene.send(1, 2)
    scene.settle()
    scene.restart_store(-1)
    scene.trim_log(2)
    rid = scene.send(1, 2)
    scene.settle()
    assert [v.check for v in scene.violations] == ["outbox_range_lost"]
    assert "[0, 2)" in scene.violations[0].detail
    assert scene.refused(rid) in (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN)
    later = scene.send(1, 2)
    assert scene.refused(later) is ErrorCode.UNAVAILABLE
    read = scene.history(1, chat(1, 2))
    assert scene.refused(read) is ErrorCode.UNAVAILABLE


def test_retention_that_passes_during_the_walk_refuses_too() -> None:
    for answer in ("range", "gap"):
        scene = closed(SMALL)
        for epoch in (1, 2, 3):
            scene.put(LogRecord(key=b"", value=barrier_value(epoch)))
        scene.epoch = 3
        scene.hold()
        fetch = scene.until(Fetch)
        assert isinstance(fetch, Fetch)
        if answer == "range":
            scene.step(OutOfRange(op=fetch.op, topic_id=b"t", start=2, end=4))
        else:
            records = tuple(scene.log[2:])
            scene.step(Fetched(op=fetch.op, topic_id=b"t", start=2, end=4, records=records))
        assert [v.check for v in scene.violations] == ["outbox_range_lost"]
        assert "[0, 2)" in scene.violations[0].detail


def test_a_log_that_ends_below_applied_refuses_to_serve() -> None:
    scene = Scene()
    scene.send(1, 2)
    scene.settle()
    fresh = reopened(scene)
    fresh.log = fresh.log[:1]
    fresh.hold()
    fresh.settle()
    assert [v.check for v in fresh.violations] == ["outbox_truncated"]


def test_applied_at_the_logs_start_takes_the_registered_barrier_below_it() -> None:
    scene = Scene()
    scene.send(1, 2)
    scene.settle()
    fresh = reopened(scene)
    fresh.trim_log(2)
    fresh.barriers.append((1, 1))
    fresh.hold()
    lease = fresh.until(ReadLease)
    assert isinstance(lease, ReadLease)
    assert lease.barriers_below == 2
    fresh.step(fresh.carry_out(lease))
    fresh.settle()
    assert fresh.counts["shard_serving"] == 1
    assert not fresh.violations


def test_applied_above_the_logs_start_needs_no_registered_barrier() -> None:
    scene = Scene()
    scene.send(1, 2)
    scene.settle()
    fresh = reopened(scene)
    fresh.hold()
    lease = fresh.until(ReadLease)
    assert isinstance(lease, ReadLease)
    assert lease.barriers_below == NO_LIMIT


def test_a_newer_format_stops_the_shard_and_undecodable_bytes_are_passed() -> None:
    scene = closed()
    scene.put(LogRecord(key=b"x", value=b"\x01\x01"))
    scene.hold()
    scene.settle()
    assert scene.counts["outbox_undecodable"] == 1
    assert scene.counts["shard_serving"] == 1
    newer = closed()
    newer.put(LogRecord(key=b"x", value=NEWER))
    newer.hold()
    newer.settle()
    assert [v.check for v in newer.violations] == ["outbox_newer_format"]


def test_a_keyspace_of_somebody_else_is_not_marked() -> None:
    scene = closed()
    scene.hold()
    question = scene.inflight.pop(0)
    scene.step(Failed(op=question.op, why=FailReason.KEYSPACE_UNMARKED))
    assert [v.check for v in scene.violations] == ["keyspace_unmarked"]
    scene.hold()
    scene.settle()
    assert scene.counts["shard_serving"] == 1


def test_a_version_that_the_outbox_cannot_restore_stops_the_shard() -> None:
    scene = closed()
    scene.put(LogRecord(key=b"", value=barrier_value(1)))
    scene.epoch = 1
    scene.hold()
    apply = scene.until(ApplyOutbox)
    scene.step(Failed(op=apply.op, why=FailReason.INVALID))
    assert [v.check for v in scene.violations] == ["version_missing"]


def test_ids_rise_above_everything_restored() -> None:
    scene = Scene()
    scene.wall_offset += (
        200_000  # this writer's clock runs ahead of the next one's, within the limit
    )
    rid = scene.send(1, 2)
    scene.settle()
    fresh = reopened(scene)
    fresh.hold()
    fresh.settle()
    later = fresh.send(3, 4)
    fresh.settle()
    assert fresh.sent(later).message_id > scene.sent(rid).message_id


def test_ack_only_from_a_mark_of_the_present_incarnation() -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=1)
    mark = scene.until(MarkCommitted)
    tail = scene.keyspace.mark()
    answer = scene.carry_out(mark)
    scene.restart_store(tail)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.step(answer)  # learnt in an incarnation that is gone
    assert scene.said(rid) is None
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1
    assert scene.commit_state(1, 1) is CommitState.COMMITTED
    assert len(scene.effective()) == 1


def test_a_reservation_lost_with_the_tail_is_made_again() -> None:
    scene = Scene()
    tail = scene.keyspace.mark()
    rid = scene.send(1, 2, number=1)
    append = scene.until(Append)
    scene.restart_store(tail)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.step(Failed(op=append.op, why=FailReason.CANCELLED))
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1
    assert len(scene.effective()) == 1


def test_pages_of_pending_intents_are_finished_one_by_one() -> None:
    scene = Scene(SMALL)
    scene.send(9, 9)  # keeps the reservation busy, so that the next ones go as one batch
    rids = [scene.send(1, 2, number=n) for n in range(1, 6)]
    scene.answer()
    reserve = [q for q in scene.inflight if isinstance(q, ReserveAndRecord)]
    assert len(reserve[0].items) == 5
    scene.carry_out(reserve[0])
    scene.inflight.clear()
    fresh = reopened(scene)
    fresh.hold()
    pages = []
    while fresh.inflight:
        if isinstance(fresh.inflight[0], ReadPending):
            pages.append(fresh.inflight[0].after)
        fresh.answer()
    assert len(pages) == 3
    assert pages == sorted(pages)
    assert all(scene.said(rid) is None for rid in rids)
    assert [r.conversation_seq for r in fresh.effective() if r.sender_id == 1] == [1, 2, 3, 4, 5]


def test_restored_batches_are_bounded_by_bytes_too() -> None:
    config = WriterConfig(outbox_partition_count=1, apply_bytes_max=1500)
    scene = Scene(config)
    for _ in range(5):
        scene.send(1, 2, body=b"x" * 600)
    scene.settle()
    scene.restart_store(-1)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.wanted.clear()
    scene.hold()
    sizes = []
    while scene.inflight:
        if isinstance(scene.inflight[0], ApplyOutbox):
            sizes.append(len(scene.inflight[0].records))
        scene.answer()
    assert sum(sizes) == 5
    assert max(sizes) == 1
