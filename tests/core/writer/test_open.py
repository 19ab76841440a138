"""OPEN (pipeline.md §1.6): the only way to serve, step by step and under everything that interrupts it."""

import pytest

from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import unpack_message_id
from qim.core.contract.logvalue import Barrier, barrier_value, read_outbox
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.log import Append, AppendRefused, EndsRead, Fetch, Fetched, LogRecord, ReadEnds
from qim.core.ports.registry import LeaseRead, ReadLease, RegisterBarrier, Resource, Role
from qim.core.ports.store_message import ApplyOutbox, OpenShard, ReadPending
from qim.core.writer import WriterConfig
from tests.core.writer.opened import closed, filtering, opened_order, reopened
from tests.core.writer.outside import SHARD
from tests.core.writer.scene import Scene


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


def test_a_barrier_is_registered_with_the_start_of_the_log_it_stands_in() -> None:
    """So that the registry can let go of those that nobody needs any more."""
    first = Scene()
    first.send(1, 2)
    first.settle()
    applied = first.log_start + len(first.log)
    first.trim_log(applied)
    second = reopened(first)
    second.hold()
    question = second.until(RegisterBarrier)
    assert isinstance(question, RegisterBarrier)
    assert (question.offset, question.log_start) == (applied, applied)


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
    scene = filtering(8)
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
