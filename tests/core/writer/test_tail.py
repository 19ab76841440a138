"""The outbox still has what it confirmed (pipeline.md §§1.6, 7): a log that lost its tail stops the shard, grown again or not."""

import pytest
from msgspec.structs import replace

from qim.core.contract.errors import ErrorCode
from qim.core.contract.logvalue import barrier_value
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole
from qim.core.ports.log import Append, Fetch, LogRecord, OutOfRange, ReadEnds
from qim.core.ports.registry import ReadLease
from qim.core.ports.store_message import ApplyOutbox, MarkCommitted
from qim.core.position import record_digest
from tests.core.writer.opened import SMALL, closed, reopened
from tests.core.writer.scene import Scene


def checks(scene: Scene) -> list[str]:
    return [violation.check for violation in scene.violations]


def said(*numbers: int) -> Scene:
    """A shard that committed these, and serves."""
    scene = Scene()
    for number in numbers:
        scene.send(1, 2, number=number)
        scene.settle()
    return scene


# ------------------------------------------------------------ while it serves


def test_an_append_below_what_was_confirmed_stops_the_shard() -> None:
    scene = said(1, 2)
    del scene.log[-1]
    rid = scene.send(1, 2, number=3)
    scene.settle()
    assert checks(scene) == ["outbox_truncated"]
    assert "appended at 2, and had confirmed all below 3" in scene.violations[0].detail
    assert scene.refused(rid) is ErrorCode.TIMEOUT_UNKNOWN, "it stands in the log, and in no ack"
    assert scene.inflight == []
    later = scene.send(1, 2, number=4)
    assert scene.refused(later) is ErrorCode.UNAVAILABLE


def test_records_of_others_above_are_none_of_its_business() -> None:
    """A dead owner's late append lands behind the barrier and means nothing; the next one of ours stands behind it."""
    scene = said(1)
    scene.put(LogRecord(key=b"", value=barrier_value(1)))
    rid = scene.send(1, 2, number=2)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 2
    assert checks(scene) == []


def test_a_barrier_below_what_was_confirmed_is_no_fence() -> None:
    scene = said(1, 2)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.hold()
    barrier = scene.until(Append)
    del scene.log[-1]
    scene.step(scene.carry_out(barrier))
    assert checks(scene) == ["outbox_truncated"]
    assert scene.barriers == [(1, 0)]


def test_a_barrier_below_what_the_store_applied_is_none_either() -> None:
    fresh = reopened(said(1, 2))
    fresh.hold()
    barrier = fresh.until(Append)
    del fresh.log[-1]
    fresh.step(fresh.carry_out(barrier))
    assert checks(fresh) == ["outbox_truncated"]


def test_what_was_confirmed_is_forgotten_with_the_lease() -> None:
    """Others owned the log meanwhile, an operator among them, who fills it up only as far as the store had applied."""
    scene = Scene()
    scene.settle()
    scene.lose()
    scene.log.clear()
    scene.hold()
    scene.settle()
    assert checks(scene) == []
    assert scene.counts["shard_serving"] == 2


# ------------------------------------------------------------ at its open


def grown_again(scene: Scene) -> Scene:
    """Its last record is another one now, with one more behind it."""
    fresh = reopened(scene)
    fresh.log[-1] = replace(fresh.log[-1], key=b"", value=barrier_value(1))
    fresh.put(LogRecord(key=b"", value=barrier_value(1)))
    return fresh


def test_a_log_that_grew_again_over_what_was_applied_is_not_opened() -> None:
    fresh = grown_again(said(1, 2))
    length = len(fresh.log)
    fresh.hold()
    fresh.settle()
    assert checks(fresh) == ["outbox_truncated"]
    assert "another record stands before 3" in fresh.violations[0].detail
    assert len(fresh.log) == length, "no barrier: what stands there is looked at by a person"


def test_so_is_one_whose_last_record_was_applied_by_an_open() -> None:
    scene = said(1, 2)
    scene.restart_store(-1)
    second = reopened(scene)
    second.hold()
    second.settle()
    assert second.counts["outbox_restored"] == 2
    # the barrier of this open stands behind what it applied, and is not applied itself
    third = reopened(second)
    del third.log[-1]
    third = grown_again(third)
    third.hold()
    third.settle()
    assert checks(third) == ["outbox_truncated"]


def test_marks_and_open_tell_the_store_what_stands_before_applied() -> None:
    scene = said(1)
    scene.send(1, 2, number=2)
    mark = scene.until(MarkCommitted)
    assert isinstance(mark, MarkCommitted)
    assert mark.before == record_digest(scene.log[mark.applied_to - 1])
    scene.restart_store(-1)
    fresh = reopened(scene)
    fresh.hold()
    apply = fresh.until(ApplyOutbox)
    assert isinstance(apply, ApplyOutbox)
    assert apply.before == record_digest(fresh.log[apply.applied_to - 1])


def test_a_log_that_moves_while_its_place_is_compared_is_asked_for_its_ends_again() -> None:
    fresh = reopened(said(1, 2))
    fresh.hold()
    fetch = fresh.until(Fetch)
    assert isinstance(fetch, Fetch)
    assert (fetch.offset, fetch.wait_ms) == (3, 0)
    fresh.step(Failed(op=fetch.op, why=FailReason.UNREACHABLE))
    fresh.advance(60_000)
    fetch = fresh.until(Fetch)
    fresh.step(OutOfRange(op=fetch.op, topic_id=b"t", start=0, end=2))
    assert len(fresh.pending(ReadEnds)) == 1
    fresh.settle()
    assert checks(fresh) == []


def test_where_retention_took_the_record_nothing_is_compared() -> None:
    fresh = reopened(said(1, 2))
    fresh.trim_log(3)
    fresh.hold()
    assert fresh.until(ReadLease) is not None
    fresh.settle()
    assert checks(fresh) == []


@pytest.mark.parametrize("walked", [0, 1])
def test_another_record_met_on_the_walk_stops_it(walked: int) -> None:
    scene = closed(SMALL)
    for epoch in (1, 2, 3, 4, 5):
        scene.put(LogRecord(key=b"", value=barrier_value(epoch)))
    scene.epoch = 5
    scene.hold()
    for _ in range(walked):
        scene.step(scene.carry_out(scene.until(Fetch)))
    fetch = scene.until(Fetch)
    assert isinstance(fetch, Fetch)
    assert fetch.before == (record_digest(scene.log[fetch.offset - 1]) if walked else b"")
    scene.step(OutOfRange(op=fetch.op, topic_id=b"t", start=0, end=6, other_record=True))
    assert checks(scene) == ["outbox_truncated"]
