"""A source partition from its opening to the end of its lease: positions, resets, fences, drain (pipeline.md §§0, 2, 7)."""

import pytest

from qim.core.fanout import FanoutConfig
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.log import Append, Appended, Fetch, Position
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_reads import ReadVersions
from qim.core.ports.store_source import CommitSource, OpenSource
from qim.core.position import NO_DIGEST, record_digest
from tests.core.fanout.bench import TOPIC, WALL, Bench, record, replace, version
from tests.core.fanout.sources import (
    FANOUT_0,
    SHARDS,
    append_of,
    effects,
    running,
    shard_of,
    the,
    until_appends,
)


def test_fenced_is_never_adopted_a_fresh_epoch_is_wanted() -> None:
    bench = Bench()
    bench.append(record(0))
    bench.hold()
    while not effects(bench, CommitSource):
        bench.answer(bench.waiting[0], "done")
    commit = the(bench, CommitSource)
    assert isinstance(commit, CommitSource)
    bench.waiting.remove(commit)
    bench.step(Fenced(op=commit.op, epoch=9))
    assert bench.wanted == [FreshEpochWanted(resource=FANOUT_0, above=9)]
    bench.run()
    assert bench.sources[0].position is None
    bench.hold(epoch=10)
    bench.run()
    assert bench.sources[0].offset() == 1
    assert [d.source_offset for d in bench.first_dispatches(shard_of(1))] == [0]


def test_a_reset_store_is_opened_again_and_dispatches_are_repeated() -> None:
    bench = Bench()
    named = bench.know(version(1, (1, 2, 3)))
    bench.append(record(0, named=named))
    running(bench)
    bench.marker = b"run/2"
    bench.sources[0].position = None
    bench.step(StoreReset(op=None, store=StoreRole.MAILBOX))
    assert not bench.wanted
    bench.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    bench.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    assert bench.wanted == [FreshEpochWanted(resource=FANOUT_0, above=0)]
    bench.hold(epoch=2)
    bench.run()
    assert bench.sources[0].offset() == 1
    assert all(len(bench.first_dispatches(shard)) <= 1 for shard in range(SHARDS))


def test_a_commit_in_another_incarnation_is_a_reset() -> None:
    bench = Bench()
    running(bench)
    bench.append(record(0))
    bench.marker = b"run/2"
    bench.run()
    assert bench.wanted == [FreshEpochWanted(resource=FANOUT_0, above=0)]


def test_nothing_in_flight_of_a_lost_lease_matters() -> None:
    bench = Bench(FanoutConfig(shard_count=1))
    bench.append(record(0))
    bench.hold()
    until_appends(bench)
    late = append_of(bench, 0)
    bench.step(LeaseGone(resource=FANOUT_0))
    bench.step(LeaseGone(resource=FANOUT_0))
    assert not bench.node.idle()
    bench.run()
    assert bench.node.idle()
    assert len(bench.dispatches(0)) == 1
    assert late not in bench.waiting
    assert bench.sources[0].position is None


def test_a_repeated_append_leaves_out_what_has_lost_its_lease() -> None:
    bench = Bench(FanoutConfig(shard_count=1))
    bench.append(record(0))
    bench.hold()
    until_appends(bench)
    bench.answer(append_of(bench, 0), "unknown_lost")
    bench.step(LeaseGone(resource=FANOUT_0))
    bench.pass_time(5_000)
    assert not bench.dispatched
    assert bench.node.idle()


def test_what_lost_its_lease_while_its_append_was_in_flight_is_not_repeated() -> None:
    bench = Bench(FanoutConfig(shard_count=1))
    bench.append(record(0))
    bench.hold()
    until_appends(bench)
    bench.step(LeaseGone(resource=FANOUT_0))
    bench.answer(append_of(bench, 0), "unknown_lost")
    bench.pass_time(5_000)
    assert not bench.dispatched
    assert bench.node.idle()


def test_a_lease_may_go_in_the_step_that_brings_an_answer() -> None:
    bench = Bench()
    bench.append(record(0))
    bench.hold()
    opened = bench.waiting.pop(0)
    bench.step(bench.execute(opened), LeaseGone(resource=FANOUT_0))  # type: ignore[arg-type]
    bench.run()
    assert not bench.waiting
    assert not bench.dispatched


def test_leases_of_other_roles_are_not_ours() -> None:
    bench = Bench()
    writer = Resource(role=Role.WRITER, number=0)
    held = LeaseHeld(resource=writer, epoch=1, barrier_epoch=0, barrier_offset=-1, wall=WALL)
    bench.step(held, LeaseGone(resource=writer))
    assert not bench.waiting


@pytest.mark.parametrize(
    ("position", "start", "said"),
    [
        (Position(b"x" * 16, 1, NO_DIGEST), 0, "OTHER_TOPIC"),
        (Position(TOPIC, 9, NO_DIGEST), 0, "BEYOND_END"),
        (Position(TOPIC, 1, NO_DIGEST), 2, "BELOW_START"),
        (Position(TOPIC, 1, b"z" * 16), 0, "OTHER_RECORD"),
    ],
)
def test_a_position_that_is_not_in_this_log_stops_the_partition(
    position: Position, start: int, said: str
) -> None:
    bench = Bench()
    bench.sources[0].start = start
    bench.append(record(0), record(1))
    bench.sources[0].position = position
    running(bench)
    (violation,) = [seen for seen in bench.seen if type(seen).__name__ == "Violation"]
    assert said in str(violation)
    assert bench.violations() == ["position_mismatch"]
    assert not bench.waiting
    assert not bench.dispatched


@pytest.mark.parametrize("start", [0, 1])
def test_a_position_that_is_known_goes_on_there(start: int) -> None:
    bench = Bench()
    bench.append(record(0), record(1))
    digest = record_digest(bench.sources[0].log[0])
    bench.sources[0].position = Position(TOPIC, 1, digest)
    del bench.sources[0].log[:start]
    bench.sources[0].start = start
    running(bench)
    assert bench.stages() == [1]


def test_a_predecessor_that_retention_took_meanwhile_is_judged_by_the_ends_again() -> None:
    bench = Bench()
    bench.append(record(0), record(1))
    bench.sources[0].position = Position(TOPIC, 1, record_digest(bench.sources[0].log[0]))
    bench.hold()
    while not effects(bench, Fetch):
        bench.answer(bench.waiting[0], "done")
    del bench.sources[0].log[:1]
    bench.sources[0].start = 1
    bench.run()
    assert bench.stages() == [1]


@pytest.mark.parametrize("change", ["topic", "start", "end", "hole", "other"])
def test_a_log_that_changes_under_a_running_partition_stops_it(change: str) -> None:
    bench = Bench()
    bench.append(record(0))
    running(bench)
    source = bench.sources[0]
    bench.append(record(1))
    if change == "topic":
        bench.topic = b"n" * 16
    elif change == "start":
        source.start = 4
    elif change == "end":
        source.log.clear()
    elif change == "other":
        # what was read is gone, and the log has grown again beyond it
        source.log[0] = replace(source.log[0], value=b"another")
    else:
        source.log[1] = replace(source.log[1], offset=5)
    bench.run()
    assert bench.violations() == ["position_mismatch"]
    assert not bench.waiting


@pytest.mark.parametrize("fault", ["failed", "unknown_lost"])
def test_every_request_of_opening_is_repeated(fault: str) -> None:
    bench = Bench()
    bench.append(record(0), record(1))
    for position in (None, Position(TOPIC, 1, record_digest(bench.sources[0].log[0]))):
        bench.sources[0].position = position
        bench.crash()
        bench.hold(epoch=bench.sources[0].epoch + 1)
        for _ in range(8):
            if all(bench.parked(effect) for effect in bench.waiting):
                break
            bench.answer(bench.waiting[0], fault)
            bench.now += 5_000
            bench.step()
            bench.answer(bench.waiting[0], "done")
        bench.run()
        assert bench.sources[0].offset() == 2


def test_a_failed_open_is_repeated_and_a_fenced_one_wants_a_fresh_epoch() -> None:
    bench = Bench()
    bench.hold()
    bench.answer(bench.waiting[0], "failed")
    assert not bench.waiting
    bench.now = bench.node.deadline() or 0
    bench.step()
    opening = the(bench, OpenSource)
    assert isinstance(opening, OpenSource)
    bench.waiting.clear()
    bench.step(Fenced(op=opening.op, epoch=4))
    assert bench.wanted == [FreshEpochWanted(resource=FANOUT_0, above=4)]


def test_every_try_to_open_brings_another_key() -> None:
    bench = Bench()
    bench.hold()
    keys: list[bytes] = []
    openers: list[bytes] = []
    for _ in range(3):
        opening = the(bench, OpenSource)
        assert isinstance(opening, OpenSource)
        keys.append(opening.fresh_key)
        openers.append(opening.opener)
        bench.answer(opening, "unknown_applied")
        bench.now += 2_000
        bench.step()
    assert len(set(keys)) == 3
    assert len(openers[0]) == 16 and openers == openers[:1] * 3, "one owner, whose retry it is"


def test_windows_are_bounded_in_records_and_bytes() -> None:
    config = FanoutConfig(shard_count=1, window_records_max=3, fetch_records_max=2)
    bench = Bench(config)
    named = version(1, (1, 2))
    bench.append(*(record(n, named=named) for n in range(10)))
    running(bench)
    assert not effects(bench, Fetch)
    bench.know(named)
    bench.pass_time(60)
    assert bench.sources[0].offset() == 10
    small = Bench(FanoutConfig(shard_count=1, window_bytes_max=10, fetch_records_max=1))
    small.append(*(record(n, named=named) for n in range(4)))
    running(small)
    assert not effects(small, Fetch), "one record fills it"
    small.know(named)
    small.pass_time(60)
    assert small.sources[0].offset() == 4


def test_appends_are_bounded_in_records_and_bytes() -> None:
    for config in (
        FanoutConfig(shard_count=1, append_records_max=1),
        FanoutConfig(shard_count=1, append_bytes_max=10),
    ):
        bench = Bench(config)
        bench.append(*(record(n) for n in range(4)))
        bench.hold()
        for _ in range(4):
            until_appends(bench)
            append = append_of(bench, 0)
            assert len(append.records) == 1
            bench.answer(append, "done")
        bench.run()
        assert bench.sources[0].offset() == 4


def test_draining_finishes_what_was_fetched_and_fetches_no_more() -> None:
    bench = Bench()
    bench.append(record(0))
    bench.hold()
    until_appends(bench)
    assert not bench.node.idle()
    bench.step(DrainRequested())
    bench.append(record(1))
    bench.run()
    assert bench.node.idle()
    assert bench.sources[0].offset() == 2, "what the fetch in flight brought is finished, too"
    assert not effects(bench, Fetch)


def test_an_answer_of_another_kind_is_our_bug() -> None:
    bench = Bench()
    bench.hold()
    op = bench.waiting[0].op  # type: ignore[union-attr]
    with pytest.raises(AssertionError):
        bench.step(Appended(op=op, offsets=(), append_time=0))


def test_a_reset_answered_to_a_read_is_only_a_failed_read() -> None:
    bench = Bench()
    bench.append(record(0, named=bench.know(version(1, (1, 2)))))
    bench.hold()
    while not effects(bench, ReadVersions):
        bench.answer(bench.waiting[0], "done")
    read = the(bench, ReadVersions)
    assert isinstance(read, ReadVersions)
    bench.waiting.remove(read)
    bench.step(StoreReset(op=read.op, store=StoreRole.MESSAGE))
    bench.run()
    bench.pass_time(60)
    assert bench.stages() == [0]


def test_a_success_ends_the_backing_off() -> None:
    bench = running(Bench(FanoutConfig(shard_count=1)))
    waits = []
    for number in range(3):
        bench.append(record(number))
        while not effects(bench, CommitSource):
            bench.answer(bench.waiting[0], "done")
        bench.answer(the(bench, CommitSource), "failed")  # type: ignore[arg-type]
        waits.append((bench.node.deadline() or 0) - bench.now)
        bench.pass_time(waits[-1])
        assert bench.sources[0].offset() == number + 1
    assert waits == [50, 50, 50]


def test_failures_of_an_append_back_off() -> None:
    bench = Bench(FanoutConfig(shard_count=1))
    bench.append(record(0))
    bench.hold()
    until_appends(bench)
    waits = []
    for _ in range(8):
        bench.step(Failed(op=append_of(bench, 0).op, why=FailReason.OVERLOADED))
        bench.waiting = [e for e in bench.waiting if not isinstance(e, Append)]
        bench.run()
        deadline = bench.node.deadline()
        assert deadline is not None
        waits.append(deadline - bench.now)
        bench.now = deadline
        bench.step()
    assert waits == [50, 100, 200, 400, 800, 1600, 2000, 2000]
    unknown = append_of(bench, 0)
    bench.waiting.remove(unknown)
    bench.step(Unknown(op=unknown.op))
    bench.pass_time(2_000)
    assert bench.stages() == [0]
