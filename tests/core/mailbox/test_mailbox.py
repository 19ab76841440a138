"""MailboxNode, hand-fed: claims, versions, lanes, marks, floors, each fault by itself."""

from qim.core.contract import routing
from qim.core.contract.invariants import Invariant
from qim.core.contract.sequences import before_first, mailbox_seq
from qim.core.ports.completion import Fenced
from qim.core.ports.local import FreshEpochWanted
from qim.core.ports.log import Position
from qim.core.ports.store_mailbox import AppendEntries, FinishDispatches, RaiseFloor, Trimmed
from qim.core.ports.store_reads import ReadVersions
from qim.core.position import NO_DIGEST
from tests.core.mailbox.bench import CONFIG, RESOURCE, TOPIC, Bench, dispatch, replace, version
from tests.core.mailbox.shards import effects, running, until, users_of_lanes
from tests.core.newer_format import NEWER, halted, told

# ------------------------------------------------------------ claims


def test_a_dispatch_is_materialised_at_its_first_offset_only() -> None:
    again = dispatch(0, users=(1,))
    bench = running(again, replace(again, source_epoch=9), dispatch(1, users=(1,)))
    assert list(bench.mailbox(1)) == [mailbox_seq(1, 0), mailbox_seq(1, 2)]
    assert bench.counts("mailbox_duplicate_dispatch") == 1
    assert bench.stages("MAILBOXED") == [0, 1]


def test_a_repeated_dispatch_below_the_floor_is_a_duplicate_though_its_claim_is_gone() -> None:
    bench = running(dispatch(0, users=(1,)), dispatch(1, users=(1,), checkpoint=1))
    bench.pass_time(1_000)
    assert bench.store.floors == {0: 1}
    assert dispatch(0, users=(1,)).dispatch_id not in bench.store.claims
    bench.append(dispatch(0, users=(1,)))
    bench.run()
    assert len(bench.mailbox(1)) == 2


def test_undecodable_bytes_pass_every_lane_and_are_counted() -> None:
    bench = Bench()
    bench.append_value(b"\x01\x03junk")
    bench.hold()
    bench.run()
    assert bench.store.base == mailbox_seq(1, 0)
    assert bench.counts("mailbox_dead_letter") == 1
    assert not bench.violations()


def test_a_newer_format_is_waited_for_and_what_stands_before_it_is_done() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1,)))
    bench.append_value(NEWER)
    bench.append(dispatch(1, users=(1,)))
    bench.hold()
    bench.run()
    assert bench.store.base == mailbox_seq(1, 0)
    assert bench.counts("mailbox_newer_format") == 1
    number = RESOURCE.number
    assert told("dispatch", number, 1) in bench.seen
    assert halted(bench.node.gauges(bench.now)) == {str(number): 1}
    assert not bench.waiting


def test_a_replay_that_finds_another_digest_is_a_violation() -> None:
    bench = running(dispatch(0, users=(1,)))
    item = dispatch(0, users=(1,))
    bench.store.finished[item.dispatch_id] = (1, b"x" * 16)
    bench.store.base = before_first(1, 0)
    bench.store.position = None
    bench.store.rows.clear()
    bench.crash()
    bench.hold()
    bench.run()
    # Once when the claim shows it, once when the mark is refused.
    assert bench.violations() == [Invariant.EVENT_ID_NONDETERMINISM] * 2


# ------------------------------------------------------------ versions


def test_a_version_not_yet_there_holds_the_shard_with_alarm() -> None:
    named = version(b"g" * 16, 3, (1, 2, 3))
    bench = running(dispatch(0, named=named), dispatch(1, users=(1,)))
    assert bench.store.base == before_first(1, 0)
    assert bench.counts("version_not_yet") == 1
    bench.know(named)
    bench.pass_time(60)
    assert bench.stages("MAILBOXED") == [0, 1]


def test_a_version_unknown_though_applied_passed_it_is_a_violation_once_and_waits_on() -> None:
    named = version(b"g" * 16, 3, (1, 2, 3))
    bench = Bench()
    bench.applied = 1
    bench.append(dispatch(0, named=named))
    bench.hold()
    bench.run()
    for _ in range(4):
        bench.pass_time(3_000)
    assert bench.violations() == ["version_unknown"]
    bench.know(named)
    bench.pass_time(3_000)
    assert bench.stages("MAILBOXED") == [0]


def test_a_failed_read_of_versions_is_repeated() -> None:
    named = version(b"g" * 16, 3, (1, 2, 3))
    bench = Bench()
    bench.know(named)
    bench.append(dispatch(0, named=named))
    bench.hold()
    bench.answer(until(bench, ReadVersions), "failed")  # type: ignore[arg-type]
    bench.run()
    bench.pass_time(60)
    assert bench.stages("MAILBOXED") == [0]


# ------------------------------------------------------------ lanes


def test_a_call_refused_for_its_rows_stops_no_other_lane() -> None:
    one, two, three = users_of_lanes(3)
    bench = Bench()
    bench.append(dispatch(0, users=(one, two)))
    bench.hold()
    bench.answer(until(bench, AppendEntries), "too_large")  # type: ignore[arg-type]
    bench.append(dispatch(1, users=(three,)))

    def refuse_lane_one() -> None:
        for _ in range(200):
            ready = [effect for effect in bench.waiting if not bench.parked(effect)]
            if not ready:
                return
            rows = ready[0].rows if isinstance(ready[0], AppendEntries) else ()
            bad = any(row.user_id == one for row in rows)
            bench.answer(ready[0], "too_large" if bad else "done")
        raise AssertionError("no end")

    refuse_lane_one()
    bench.now += 100
    bench.step()
    refuse_lane_one()
    assert (len(bench.mailbox(one)), len(bench.mailbox(two)), len(bench.mailbox(three))) == (
        0,
        1,
        1,
    )
    assert bench.store.own == {routing.lane(one): before_first(1, 0)}
    assert bench.store.position == Position(TOPIC, 0, NO_DIGEST)
    bench.now += 5_000
    bench.step()
    bench.run()
    assert len(bench.mailbox(one)) == 1
    assert bench.store.own == {}


def test_after_unknown_only_the_same_call_is_sent_even_if_it_is_then_refused() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1, 2)))
    bench.hold()
    first = until(bench, AppendEntries)
    assert isinstance(first, AppendEntries)
    bench.answer(first, "unknown_late")
    bench.append(dispatch(1, users=(1, 2)))
    bench.run()
    for fault in ("too_large", "failed", "done"):
        bench.now += 2_000
        bench.step()
        again = until(bench, AppendEntries)
        assert isinstance(again, AppendEntries)
        assert replace(again, op=first.op) == first
        bench.answer(again, fault)
    bench.run()
    assert bench.store.base == mailbox_seq(1, 1)
    assert isinstance(bench.store.execute(bench.late[0]), Fenced)


def test_a_large_dispatch_is_cut_into_calls_of_bounded_size() -> None:
    config = replace(CONFIG, rows_max=10)
    named = version(b"g" * 16, 1, tuple(range(1, 120)))
    bench = Bench(config)
    bench.know(named)
    bench.append(dispatch(0, named=named), dispatch(1, named=named))
    bench.hold()
    sizes: list[int] = []
    while ready := [effect for effect in bench.waiting if not bench.parked(effect)]:
        if isinstance(ready[0], AppendEntries):
            sizes.append(len(ready[0].rows))
        bench.answer(ready[0], "done")
    assert max(sizes) <= 10
    assert all(len(bench.mailbox(user)) == 2 for user in range(1, 120))
    assert bench.store.own == {}


def test_a_late_call_below_trim_means_another_owner() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    call = until(bench, AppendEntries)
    assert isinstance(call, AppendEntries)
    bench.waiting.remove(call)
    bench.step(Trimmed(op=call.op, trim=mailbox_seq(1, 9)))
    assert bench.wanted == [FreshEpochWanted(resource=RESOURCE, above=0)]


# ------------------------------------------------------------ marks and floors


def test_no_watermark_waits_for_a_mark_and_the_queue_of_marks_is_bounded() -> None:
    bench = Bench(replace(CONFIG, finish_queue_max=2, finish_items_max=1))
    bench.append(*(dispatch(n, users=(1,)) for n in range(6)))
    bench.hold()
    mark = until(bench, FinishDispatches)
    bench.waiting.remove(mark)  # type: ignore[arg-type]
    bench.run()
    bench.append(*(dispatch(n, users=(1,)) for n in range(6, 10)))
    bench.run()
    assert bench.store.base == mailbox_seq(1, 9)
    assert bench.counts("mailbox_finish_dropped") > 0
    bench.waiting.append(mark)  # type: ignore[arg-type]
    bench.run()
    assert bench.node.idle()


def test_floors_rise_once_a_while_to_the_greatest_f_that_every_lane_has_passed() -> None:
    bench = running(*(dispatch(n, users=(1,), checkpoint=n) for n in range(1, 4)))
    assert not bench.store.floors
    deadline = bench.node.deadline()
    assert deadline is not None
    assert deadline <= bench.now + CONFIG.floor_ms
    bench.append(dispatch(4, users=(1,), checkpoint=2))
    bench.run()
    asked: list[RaiseFloor] = []
    bench.now += 1_000
    bench.step()
    while found := effects(bench, RaiseFloor):
        assert isinstance(found[0], RaiseFloor)
        asked.append(found[0])
        bench.answer(found[0], "done")
    assert [(floor.source_partition, floor.floor) for floor in asked] == [(0, 3)]
    assert bench.store.floors == {0: 3}


def test_floors_of_many_sources_and_claims_are_worked_off_in_bounded_calls() -> None:
    items = [
        replace(dispatch(n, users=(1,), checkpoint=n), source_partition=n % 2) for n in range(12)
    ]
    bench = running(*items, config=replace(CONFIG, floor_claims_max=1))
    bench.pass_time(1_000)
    assert bench.store.floors == {0: 10, 1: 11}
    assert len(bench.store.claims) == 2
