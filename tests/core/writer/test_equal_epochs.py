"""An epoch granted twice: the registry was put back from an older copy (pipeline.md §0). One of two owners goes no further."""

from msgspec.structs import replace

from qim.core.contract.logvalue import barrier_value, outbox_value, read_outbox
from qim.core.ports.completion import Fenced
from qim.core.ports.local import Started
from qim.core.ports.log import Append, LogRecord
from qim.core.ports.registry import ReadLease
from qim.core.ports.store_message import MarkCommitted, OpenShard
from qim.core.writer import Writer
from tests.core.writer.opened import closed, filtering, reopened
from tests.core.writer.scene import Scene


def another(scene: Scene) -> Scene:
    """Another process, to which a registry that forgot the last grant gives it once more."""
    second = reopened(scene)
    second.epoch = scene.epoch - 1
    second.writer = Writer(second.config, choose=lambda site, key: 1)
    second.step(Started(address="writer-2", wall=second.wall()))
    return second


def test_the_second_owner_of_an_epoch_is_fenced_at_its_open_and_takes_one_above() -> None:
    first = Scene()
    assert first.epoch == 1
    second = another(first)
    second.hold()
    opening = second.inflight.pop(0)
    assert isinstance(opening, OpenShard)
    answer = second.carry_out(opening)
    assert answer == Fenced(op=opening.op, epoch=1)
    second.step(answer)
    assert [wanted.above for wanted in second.wanted] == [1]
    assert not second.inflight
    second.settle()
    assert second.epoch == 2
    assert second.counts["shard_refresh.fenced"] == 1
    assert second.counts["shard_serving"] == 1


def test_what_the_first_owner_still_appends_means_nothing_after_that() -> None:
    first = Scene()
    first.send(1, 2, number=1)
    append = first.until(Append)
    second = another(first)
    second.hold()
    second.settle()
    rid = second.send(3, 4, number=2)
    second.settle()
    assert second.sent(rid).conversation_seq == 1
    first.epoch = second.epoch
    first.step(first.carry_out(append))
    mark = first.until(MarkCommitted)
    refused = first.carry_out(mark)
    assert refused == Fenced(op=mark.op, epoch=2)
    third = reopened(second)
    third.hold()
    third.settle()
    assert third.counts["outbox_ineffective"] == 1, (
        "it stands once, as its second owner appended it"
    )


def test_an_owner_retries_its_own_open_under_the_epoch_it_has() -> None:
    scene = closed()
    scene.hold()
    first = scene.inflight[0]
    assert isinstance(first, OpenShard)
    scene.carry_out(first)
    again = replace(first, op=99, fresh_key=b"another")
    assert not isinstance(scene.carry_out(again), Fenced)
    scene.settle()
    assert scene.epoch == 1
    assert scene.counts["shard_serving"] == 1


def test_a_barrier_of_our_own_epoch_that_is_not_ours_asks_for_one_above() -> None:
    """The store that had the fence is gone; the log has what was appended under it."""
    scene = closed()
    scene.put(LogRecord(key=b"", value=barrier_value(1)))
    scene.hold()
    scene.settle()
    assert scene.epoch == 2
    assert scene.counts["shard_refresh.barrier_above"] == 1
    assert scene.counts["shard_serving"] == 1


def test_a_record_of_our_own_epoch_before_our_barrier_asks_for_one_above() -> None:
    first = Scene()
    rid = first.send(1, 2)
    first.settle()
    entry = read_outbox(first.log[-1].value)
    scene = closed()
    scene.put(LogRecord(key=b"k", value=outbox_value(1, entry.stored)))  # type: ignore[union-attr]
    scene.hold()
    scene.settle()
    assert first.sent(rid).conversation_seq == 1
    assert scene.epoch == 2
    assert scene.counts["shard_refresh.barrier_above"] == 1
    assert scene.counts["outbox_restored"] == 1


def test_a_filter_of_our_own_epoch_asks_for_one_above() -> None:
    scene = filtering(1)
    assert [wanted.above for wanted in scene.wanted] == [1]
    assert not scene.inflight


def test_a_barrier_of_our_own_epoch_that_only_the_registry_still_has_asks_for_one_above() -> None:
    scene = closed()
    scene.grants = False
    scene.hold()
    question = scene.until(ReadLease)
    answer = scene.carry_out(question)
    scene.step(replace(answer, barrier_epoch=1, barrier_offset=4))  # type: ignore[type-var]
    assert [wanted.above for wanted in scene.wanted] == [1]
    assert not scene.log, "before its first effect"
