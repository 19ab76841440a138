"""FanoutCoordinator, hand-fed: the calm path, versions, filter, checkpoint, each fault by itself."""

import pytest

from qim.core.contract import routing
from qim.core.contract.entities import ReceiptShard, decode_receipt
from qim.core.dispatch_digest import materialisation_digest
from qim.core.fanout import FanoutConfig
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.log import Append, Appended, AppendRefused, Fetch
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_message import CommitSource, OpenSource, Position, ReadVersions
from qim.core.position import NO_DIGEST, record_digest
from tests.core.fanout.bench import TOPIC, WALL, Bench, record, replace, version

SHARDS = 4
FANOUT_0 = Resource(role=Role.FANOUT, number=0)


def shard_of(user: int) -> int:
    return routing.shard(user, SHARDS)


def user_in(shard: int, after: int = 0) -> int:
    return next(user for user in range(after + 1, 10_000) if shard_of(user) == shard)


def effects(bench: Bench, kind: type) -> list[object]:
    return [effect for effect in bench.waiting if type(effect) is kind]


def the(bench: Bench, kind: type) -> object:
    (effect,) = effects(bench, kind)
    return effect


def running(bench: Bench) -> Bench:
    bench.hold()
    bench.run()
    return bench


def test_a_commit_tells_where_the_log_began_a_good_while_ago() -> None:
    """So long that no audit which began before is still running: receipts below are dropped by the script."""
    bench = Bench()
    bench.sources[0].start = 7
    starts: list[int] = []
    bench.hold()
    for _ in range(3):
        bench.append(record(0))
        while not effects(bench, CommitSource):
            ready = [one for one in bench.waiting if not bench.parked(one)]
            bench.answer(ready[0], "done")
        (commit,) = effects(bench, CommitSource)
        assert isinstance(commit, CommitSource)
        starts.append(commit.log_start)
        bench.run()
        bench.now += bench.config.receipts_grace_ms - 1
    assert starts == [0, 0, 7], "heard at the first fetch; the third comes when its time is over"


def test_a_single_chat_goes_to_the_shards_of_its_two_users() -> None:
    bench = Bench()
    one, two = user_in(0), user_in(3)
    bench.append_barrier(1)
    bench.append(record(0, sender=one, peer=two))
    running(bench)
    (first,), (second,) = bench.dispatches(0), bench.dispatches(3)
    assert (first.recipients, second.recipients) == ((one,), (two,))
    assert first.inline_body == b"hello"
    assert first.message_id == second.message_id
    assert first.dispatch_id != second.dispatch_id
    receipt = decode_receipt(bench.sources[0].receipts[1])
    assert receipt.shards == (
        ReceiptShard(shard=0, offset=0, digest=materialisation_digest(first)),
        ReceiptShard(shard=3, offset=0, digest=materialisation_digest(second)),
    )
    assert bench.sources[0].offset() == 2
    assert bench.sources[0].filter_epoch == 1
    assert bench.stages() == [0]
    assert not effects(bench, ReadVersions)
    assert bench.node.serving() == 1


def test_a_chat_with_oneself_is_one_dispatch() -> None:
    bench = Bench()
    bench.append(record(0, sender=5, peer=5))
    running(bench)
    assert [d.recipients for d in bench.dispatches(shard_of(5))] == [(5,)]
    assert sum(len(log) for log in bench.dispatched.values()) == 1


def test_a_group_is_sent_to_every_shard_of_the_named_version_once() -> None:
    bench = Bench()
    named = bench.know(version(3, tuple(range(1, 100))))
    bench.append(record(0, named=named), record(1, named=named))
    running(bench)
    for shard in range(SHARDS):
        first, second = bench.dispatches(shard)
        assert first.recipients == ()
        assert (first.version, first.membership_digest) == (3, named.digest)
        assert (first.source_offset, second.source_offset) == (0, 1)
    assert bench.stages() == [0, 1]


def test_explicit_recipients_need_no_version() -> None:
    bench = Bench()
    users = tuple(range(20, 40))
    bench.append(record(0, named=version(7, (1, 2)), recipients=users))
    running(bench)
    named = sorted(u for shard in range(SHARDS) for u in bench.dispatches(shard)[0].recipients)
    assert tuple(named) == users


@pytest.mark.parametrize(
    ("members", "size", "inline"), [(64, 1024, True), (65, 1024, False), (64, 1025, False)]
)
def test_small_bodies_travel_inline_to_small_audiences(
    members: int, size: int, inline: bool
) -> None:
    bench = Bench(FanoutConfig(shard_count=1))
    named = bench.know(version(1, tuple(range(1, members + 1))))
    bench.append(record(0, named=named, body=b"x" * size))
    running(bench)
    (item,) = bench.dispatches(0)
    assert (item.inline_body is not None) is inline


def test_ineffective_records_and_barriers_are_passed_without_receipt() -> None:
    bench = Bench()
    bench.append_barrier(5)
    bench.append(record(0), epoch=4)
    bench.append(record(1), epoch=5)
    running(bench)
    assert list(bench.sources[0].receipts) == [2]
    assert bench.sources[0].offset() == 3
    assert bench.stages() == [1]


def test_the_filter_is_kept_with_the_checkpoint() -> None:
    bench = Bench()
    bench.append_barrier(5)
    running(bench)
    bench.append(record(0), epoch=4)
    bench.crash()
    bench.hold(epoch=2)
    bench.run()
    assert bench.sources[0].offset() == 2
    assert not bench.dispatched


def test_without_a_checkpoint_the_log_s_start_is_the_start_and_registered_barriers_count() -> None:
    bench = Bench()
    bench.sources[0].start = 7
    bench.barriers = [(3, 2), (6, 6), (9, 7)]
    bench.append(record(0), epoch=5)
    bench.append(record(1), epoch=6)
    running(bench)
    assert list(bench.sources[0].receipts) == [8]
    assert bench.sources[0].offset() == 9


def test_undecodable_bytes_are_dead_lettered_and_passed() -> None:
    bench = Bench()
    bench.append_value(b"\x01\x01nonsense")
    bench.append(record(0))
    running(bench)
    assert bench.sources[0].dead_letters == {0: b"\x01\x01nonsense"}
    assert bench.counts("fanout_dead_letter") == 1
    assert bench.sources[0].offset() == 2


def test_a_newer_format_is_waited_for_and_what_stands_before_it_is_done() -> None:
    bench = Bench()
    bench.append(record(0))
    bench.append_value(b"\x02rest")
    bench.append(record(1))
    running(bench)
    assert bench.sources[0].offset() == 1
    assert bench.counts("fanout_newer_format") == 1
    assert not bench.waiting
    assert not bench.violations()


def test_a_version_not_yet_there_holds_the_partition_with_alarm_never_as_poison() -> None:
    bench = Bench()
    named = version(3, (1, 2, 3))
    bench.append(record(0, named=named), record(1))
    running(bench)
    assert not bench.dispatched
    assert bench.counts("version_not_yet") == 1
    deadline = bench.node.deadline()
    assert deadline is not None
    assert deadline > bench.now
    bench.know(named)
    bench.pass_time(60)
    assert bench.stages() == [0, 1]
    assert not bench.violations()


def test_a_version_unknown_though_applied_passed_it_is_a_violation_once_and_waits_on() -> None:
    bench = Bench()
    named = version(3, (1, 2, 3))
    bench.append(record(0, named=named))
    bench.applied = 1
    running(bench)
    for _ in range(5):
        bench.pass_time(5_000)
    assert bench.violations() == ["version_unknown"]
    assert bench.counts("version_not_yet") >= 5
    assert not bench.sources[0].dead_letters
    bench.know(named)
    bench.pass_time(5_000)
    assert bench.stages() == [0]


def test_a_failed_read_of_versions_is_repeated() -> None:
    bench = Bench()
    named = bench.know(version(3, (1, 2, 3)))
    bench.append(record(0, named=named))
    bench.hold()
    while not effects(bench, ReadVersions):
        bench.answer(bench.waiting[0], "done")
    bench.answer(the(bench, ReadVersions), "failed")  # type: ignore[arg-type]
    bench.run()
    bench.pass_time(60)
    assert bench.stages() == [0]


def test_versions_are_read_once_and_in_batches() -> None:
    bench = Bench(partitions=2)
    named = [bench.know(version(n, (1, 2, 3))) for n in range(1, 5)]
    for partition in (0, 1):
        bench.append(*(record(n, named=v) for n, v in enumerate(named)), partition=partition)
        bench.hold(partition=partition)
    reads = 0
    while ready := [effect for effect in bench.waiting if not bench.parked(effect)]:
        reads += isinstance(ready[0], ReadVersions)
        bench.answer(ready[0], "done")
    assert reads <= 2
    assert len(bench.stages()) == 8


def append_of(bench: Bench, shard: int) -> Append:
    (found,) = [e for e in bench.waiting if isinstance(e, Append) and e.partition == shard]
    return found


def until_appends(bench: Bench) -> None:
    while not effects(bench, Append):
        bench.answer(bench.waiting[0], "done")


def test_an_unknown_append_is_sent_again_before_anything_later() -> None:
    bench = Bench(FanoutConfig(shard_count=1))
    bench.append(record(0))
    bench.hold()
    until_appends(bench)
    first = append_of(bench, 0)
    bench.append(record(1))
    bench.answer(first, "unknown_applied")
    bench.run()
    assert not effects(bench, Append)
    bench.pass_time(60)
    assert [d.source_offset for d in bench.dispatches(0)] == [0, 0, 1]
    assert decode_receipt(bench.sources[0].receipts[0]).shards[0].offset == 1
    assert bench.stages() == [0, 1]


def test_shards_don_t_wait_for_each_other() -> None:
    bench = Bench()
    one, two = user_in(0), user_in(3)
    bench.append(record(0, sender=one, peer=two))
    bench.hold()
    until_appends(bench)
    stuck = append_of(bench, 0)
    bench.append(record(1, sender=two, peer=user_in(3, two)))
    bench.waiting.remove(stuck)
    bench.run()
    assert [d.source_offset for d in bench.dispatches(3)] == [0, 1]
    assert bench.sources[0].position is None
    assert bench.stages() == [1]
    bench.waiting.append(stuck)
    bench.run()
    assert bench.sources[0].offset() == 2


def test_a_refused_dispatch_stops_its_partition_and_no_other() -> None:
    bench = Bench(FanoutConfig(shard_count=1), partitions=2)
    bench.append(record(0), partition=0)
    bench.append(record(1), partition=1)
    bench.hold(partition=0)
    bench.hold(partition=1)
    until_appends(bench)
    first = append_of(bench, 0)
    bench.waiting.remove(first)
    bench.run()
    bench.step(AppendRefused(op=first.op, index=0, why="too large"))
    bench.pass_time(5_000)
    assert bench.violations() == ["append_refused"]
    assert bench.sources[0].position is None
    assert bench.sources[1].offset() == 1


def test_the_checkpoint_is_repeated_after_unknown_until_it_is_settled() -> None:
    bench = Bench()
    bench.append(record(0))
    bench.hold()
    while not effects(bench, CommitSource):
        bench.answer(bench.waiting[0], "done")
    first = the(bench, CommitSource)
    assert isinstance(first, CommitSource)
    bench.answer(first, "unknown_applied")
    bench.pass_time(60)
    assert bench.sources[0].offset() == 1
    bench.append(record(1))
    bench.run()
    assert bench.sources[0].offset() == 2


def test_f_is_the_checkpoint_that_was_durable_when_the_dispatch_was_made() -> None:
    bench = Bench(FanoutConfig(shard_count=1))
    bench.append(record(0))
    running(bench)
    bench.append(record(1))
    bench.run()
    assert [d.source_checkpoint for d in bench.dispatches(0)] == [0, 1]


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


@pytest.mark.parametrize("change", ["topic", "start", "end", "hole"])
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
    for _ in range(3):
        opening = the(bench, OpenSource)
        assert isinstance(opening, OpenSource)
        keys.append(opening.fresh_key)
        bench.answer(opening, "unknown_applied")
        bench.now += 2_000
        bench.step()
    assert len(set(keys)) == 3


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
    small = Bench(FanoutConfig(shard_count=1, window_bytes_max=10, append_bytes_max=10))
    small.append(*(record(n) for n in range(4)))
    running(small)
    assert small.sources[0].offset() == 4


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
    assert bench.sources[0].offset() <= 2
    assert not effects(bench, Fetch) or all(bench.parked(e) for e in bench.waiting)


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
