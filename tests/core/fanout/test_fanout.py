"""FanoutCoordinator, hand-fed: the calm path, versions, filter, checkpoint, each fault by itself."""

import pytest

from qim.core.contract.entities import ReceiptShard, decode_receipt
from qim.core.dispatch_digest import materialisation_digest
from qim.core.fanout import FanoutConfig
from qim.core.ports.log import Append, AppendRefused
from qim.core.ports.store_reads import ReadVersions
from qim.core.ports.store_source import CommitSource
from tests.core.fanout.bench import Bench, record, version
from tests.core.fanout.sources import (
    SHARDS,
    append_of,
    effects,
    running,
    shard_of,
    the,
    until_appends,
    user_in,
)
from tests.core.newer_format import NEWER, halted, told


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
    bench.append_value(NEWER)
    bench.append(record(1))
    running(bench)
    assert bench.sources[0].offset() == 1
    assert bench.counts("fanout_newer_format") == 1
    assert told("outbox", 0, 1) in bench.seen
    assert halted(bench.node.gauges(bench.now))["0"] == 1
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
