"""OPEN (pipeline.md §1.6): the only way to serve, step by step and under everything that interrupts it."""

import pytest

from qim.core.contract.entities import CommitState
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import unpack_message_id
from qim.core.contract.logvalue import Barrier, barrier_value, read_outbox
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.log import (
    Append,
    AppendRefused,
    EndsRead,
    Fetch,
    Fetched,
    LogRecord,
    OutOfRange,
    ReadEnds,
)
from qim.core.ports.registry import LeaseRead, ReadLease, RegisterBarrier, Resource, Role
from qim.core.ports.store_message import (
    ApplyOutbox,
    MarkCommitted,
    OpenShard,
    ReadPending,
    ReserveAndRecord,
    ShardOpened,
)
from qim.core.writer import WriterConfig
from qim.core.writer.opening import NO_LIMIT
from tests.core.writer.scene import SHARD, Scene, chat

SMALL = WriterConfig(
    outbox_partition_count=1,
    fetch_records_max=3,
    apply_records_max=2,
    pending_page_max=2,
    append_records_max=2,
)


def closed(config: WriterConfig | None = None) -> Scene:
    """A writer without a lease."""
    return Scene(config, started=False)


def reopened(scene: Scene) -> Scene:
    """The same world after the process died and a new one took the lease."""
    fresh = closed(scene.config)
    fresh.now, fresh.keyspace, fresh.run_id = scene.now, scene.keyspace, scene.run_id
    fresh.log, fresh.log_start, fresh.epoch = scene.log, scene.log_start, scene.epoch
    fresh.barriers, fresh.rid = scene.barriers, scene.rid
    return fresh


def opened_order(scene: Scene) -> list[str]:
    """Names of the questions OPEN asks, in order."""
    names = []
    while scene.inflight:
        names.append(type(scene.inflight[0]).__name__)
        scene.answer()
    return names


def test_each_step_waits_for_the_one_before() -> None:
    scene = closed()
    scene.hold()
    assert opened_order(scene) == [
        "OpenShard",
        "ReadEnds",
        "ReadLease",
        "Append",
        "RegisterBarrier",
        "ApplyOutbox",
        "ReadPending",
    ]
    assert scene.barriers == [(1, 0)]
    assert read_outbox(scene.log[0].value) == Barrier(1)
    assert scene.counts["shard_serving"] == 1


def test_no_shard_is_opened_before_the_instance_lease_that_names_its_ids() -> None:
    """An id made under the epoch of this process's last life may be one that life made."""
    scene = closed(WriterConfig(outbox_partition_count=1, instance_leased=True))
    scene.hold()
    assert scene.inflight == []
    resource = Resource(role=Role.INSTANCE, number=7)
    granted = LeaseHeld(
        resource=resource, epoch=9, barrier_epoch=0, barrier_offset=-1, wall=scene.wall()
    )
    scene.step(granted)
    assert [type(request).__name__ for request in scene.inflight] == ["OpenShard"]
    scene.settle()
    rid = scene.send(1, 2)
    scene.settle()
    parts = unpack_message_id(scene.sent(rid).message_id)
    assert (parts.instance, parts.epoch_low) == (7, 9)


def test_a_shard_lost_before_the_instance_lease_is_not_opened_by_it() -> None:
    scene = closed(WriterConfig(outbox_partition_count=1, instance_leased=True))
    scene.hold()
    scene.lose()
    resource = Resource(role=Role.INSTANCE, number=7)
    granted = LeaseHeld(
        resource=resource, epoch=9, barrier_epoch=0, barrier_offset=-1, wall=scene.wall()
    )
    scene.step(granted)
    assert scene.inflight == []


def test_requests_wait_while_the_shard_opens() -> None:
    scene = closed()
    scene.hold()
    rid = scene.send(1, 2)
    assert scene.said(rid) is None
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1


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


def test_a_higher_epoch_in_the_registry_stops_before_the_barrier() -> None:
    scene = closed()
    scene.grants = False
    scene.hold()
    scene.until(ReadLease)
    lease = LeaseRead(
        op=3,
        resource=SHARD,
        epoch=9,
        owner="writer-2",
        address="a",
        barrier_epoch=0,
        barrier_offset=-1,
    )
    scene.step(lease)
    assert not scene.inflight
    assert [wanted.above for wanted in scene.wanted] == [9]
    assert not scene.log


def test_a_registry_that_forgot_our_epoch_is_raised_above_it() -> None:
    scene = closed()
    scene.grants = False
    scene.epoch = 6
    scene.hold()
    question = scene.until(ReadLease)
    scene.epoch = 2
    scene.step(scene.carry_out(question))
    assert [wanted.above for wanted in scene.wanted] == [7]


def test_a_higher_barrier_in_the_log_asks_for_an_epoch_above_it() -> None:
    scene = closed()
    scene.put(LogRecord(key=b"", value=barrier_value(40)))
    scene.hold()
    scene.settle()
    assert scene.epoch == 41
    assert scene.counts["shard_refresh.barrier_above"] == 1
    assert scene.counts["shard_serving"] == 1


def test_a_higher_filter_in_the_store_asks_for_an_epoch_above_it() -> None:
    scene = closed()
    scene.grants = False
    scene.hold()
    question = scene.inflight.pop(0)
    scene.step(
        ShardOpened(
            op=question.op, incarnation=b"run-1/k", applied=3, filter_epoch=8, hlc_floor=b"\0" * 16
        )
    )
    assert [wanted.above for wanted in scene.wanted] == [8]
    assert not scene.inflight


def test_fenced_open_takes_an_epoch_above_the_fence() -> None:
    scene = closed()
    scene.hold()
    question = scene.inflight.pop(0)
    scene.step(Fenced(op=question.op, epoch=77))
    assert [wanted.above for wanted in scene.wanted] == [77]
    scene.settle()
    assert scene.epoch == 78
    assert scene.counts["shard_serving"] == 1


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


def test_an_unknown_barrier_takes_a_fresh_epoch() -> None:
    scene = closed()
    scene.hold()
    barrier = scene.until(Append)
    scene.carry_out(barrier)
    scene.step(Unknown(op=barrier.op))
    scene.settle()
    assert scene.epoch == 2
    assert scene.counts["shard_serving"] == 1
    assert [read_outbox(r.value) for r in scene.log] == [Barrier(1), Barrier(2)]


def test_a_failed_barrier_is_appended_again() -> None:
    scene = closed()
    scene.hold()
    barrier = scene.until(Append)
    scene.step(Failed(op=barrier.op, why=FailReason.UNREACHABLE))
    assert not scene.inflight
    scene.advance(100)
    scene.settle()
    assert scene.epoch == 1
    assert scene.counts["shard_serving"] == 1


def test_a_refused_barrier_stops_the_shard() -> None:
    scene = closed()
    scene.hold()
    barrier = scene.until(Append)
    scene.step(AppendRefused(op=barrier.op, index=0, why="size"))
    assert [v.check for v in scene.violations] == ["barrier_refused"]


@pytest.mark.parametrize(
    "kind", [OpenShard, ReadEnds, ReadLease, RegisterBarrier, Fetch, ApplyOutbox, ReadPending]
)
@pytest.mark.parametrize("lost", [True, False])
def test_any_other_step_is_asked_again(kind: type, lost: bool) -> None:
    scene = closed()
    scene.put(LogRecord(key=b"", value=barrier_value(1)))
    scene.epoch = 1
    scene.hold()
    question = scene.until(kind)
    if lost:
        scene.carry_out(question)
        scene.step(Unknown(op=question.op))
    else:
        scene.step(Failed(op=question.op, why=FailReason.OVERLOADED))
    assert scene.writer.deadline() is not None
    scene.advance(200)
    assert len(scene.inflight) == 1
    assert scene.inflight[0].op != question.op
    scene.settle()
    assert scene.counts["shard_serving"] == 1
    assert scene.epoch == 2


def test_the_barrier_waits_for_an_append_of_an_earlier_epoch() -> None:
    scene = Scene()
    scene.send(1, 2)
    append = scene.until(Append)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    assert scene.epoch == 2
    assert not scene.pending(Append)  # never two appends of one partition in flight
    scene.step(scene.carry_out(append))
    scene.settle()
    assert scene.counts["shard_serving"] == 2
    assert len(scene.effective()) == 1


def test_a_short_fetch_is_asked_again() -> None:
    scene = closed()
    scene.put(LogRecord(key=b"", value=barrier_value(1)))
    scene.epoch = 1
    scene.hold()
    fetch = scene.until(Fetch)
    scene.step(Fetched(op=fetch.op, topic_id=b"t", start=0, end=2, records=()))
    scene.advance(100)
    scene.settle()
    assert scene.counts["shard_serving"] == 1


def test_a_newer_format_stops_the_shard_and_undecodable_bytes_are_passed() -> None:
    scene = closed()
    scene.put(LogRecord(key=b"x", value=b"\x01\x01"))
    scene.hold()
    scene.settle()
    assert scene.counts["outbox_undecodable"] == 1
    assert scene.counts["shard_serving"] == 1
    newer = closed()
    newer.put(LogRecord(key=b"x", value=b"\x09\x01"))
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


def test_lease_gone_during_open_and_an_older_grant_are_harmless() -> None:
    scene = closed()
    scene.hold()
    rid = scene.send(1, 2)
    scene.lose()
    assert scene.refused(rid) is ErrorCode.NOT_OWNER
    scene.settle()  # the answers to a closed shard mean nothing
    assert "shard_serving" not in scene.counts
    scene.hold()
    scene.settle()
    assert scene.counts["shard_serving"] == 1
    stale = LeaseHeld(resource=SHARD, epoch=1, barrier_epoch=0, barrier_offset=-1, wall=0)
    scene.step(stale)
    assert scene.counts["shard_serving"] == 1
    assert not scene.inflight
    scene.step(LeaseGone(resource=Resource(role=Role.FANOUT, number=0)))
    scene.step(LeaseGone(resource=Resource(role=Role.WRITER, number=5)))
    scene.send(1, 2)
    assert scene.inflight


def test_a_store_reset_during_open_begins_anew() -> None:
    scene = closed()
    scene.hold()
    scene.until(ReadEnds)
    scene.step(StoreReset(op=None, store=StoreRole.MAILBOX))
    assert not scene.wanted
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    assert scene.wanted
    scene.settle()
    assert scene.counts["shard_serving"] == 1
    assert scene.epoch == 2


def test_a_reset_before_anything_was_learnt_changes_nothing() -> None:
    scene = closed()
    scene.hold()
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    assert not scene.wanted
    scene.step(StoreReset(op=999, store=StoreRole.MESSAGE))
    scene.step(EndsRead(op=998, topic_id=b"t", start=0, end=0))
    scene.step(Unknown(op=997))
    assert not scene.wanted


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


def test_a_retried_open_brings_another_key() -> None:
    """A key written late, after FLUSHALL, must not pass for the incarnation that was opened (§0)."""
    scene = closed()
    scene.hold()
    first = scene.inflight.pop(0)
    assert isinstance(first, OpenShard)
    scene.step(Unknown(op=first.op))
    scene.advance(100)
    second = scene.inflight[0]
    assert isinstance(second, OpenShard)
    assert second.epoch == first.epoch
    assert second.fresh_key != first.fresh_key
    scene.settle()
    scene.keyspace.flush()
    scene.carry_out(first)  # it lands in the emptied keyspace
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.counts["shard_refresh.store_reset"] == 1
    assert scene.sent(rid).conversation_seq == 1


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
