"""MailboxNode, hand-fed: opening, claims, lanes, marks, floors, trim, each fault by itself."""

import pytest

from qim.core.contract import routing
from qim.core.contract.invariants import Invariant
from qim.core.contract.sequences import before_first, mailbox_seq
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.log import Fetch, ReadEnds
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_mailbox import (
    AppendEntries,
    ClaimDispatches,
    FinishDispatches,
    MailboxesRead,
    OpenMailbox,
    RaiseFloor,
    TrimMailbox,
    Trimmed,
)
from qim.core.ports.store_message import Position, ReadVersions
from qim.core.position import NO_DIGEST, record_digest
from tests.core.mailbox.bench import (
    CONFIG,
    RESOURCE,
    TENANT,
    TOPIC,
    WALL,
    Bench,
    dispatch,
    replace,
    version,
)

DAY = 86_400_000


def users_of_lanes(count: int) -> tuple[int, ...]:
    """The first users of ``count`` different lanes."""
    found: dict[int, int] = {}
    for user in range(1, 10_000):
        found.setdefault(routing.lane(user), user)
        if len(found) == count:
            break
    return tuple(found.values())


def effects(bench: Bench, kind: type) -> list[object]:
    return [effect for effect in bench.waiting if type(effect) is kind]


def until(bench: Bench, kind: type) -> object:
    """Answer all else in order until such an effect waits."""
    for _ in range(200):
        found = effects(bench, kind)
        if found:
            return found[0]
        bench.answer(next(e for e in bench.waiting if not bench.parked(e)), "done")
    raise AssertionError(kind)


def running(*items: object, config: object = CONFIG) -> Bench:
    bench = Bench(config)  # type: ignore[arg-type]
    bench.append(*items)  # type: ignore[arg-type]
    bench.hold()
    bench.run()
    return bench


# ------------------------------------------------------------ opening


def test_a_fresh_shard_starts_before_the_first_retained_record() -> None:
    bench = Bench()
    bench.start = 5
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    opening = until(bench, OpenMailbox)
    assert isinstance(opening, OpenMailbox)
    assert opening.initial == before_first(1, 5)
    assert bench.node.serving() == 0
    bench.run()
    assert bench.node.serving() == 1
    assert list(bench.mailbox(1)) == [mailbox_seq(1, 5)]
    assert bench.store.position == Position(TOPIC, 6, record_digest(bench.log[0]))


def test_the_fence_stands_before_anything_is_fetched() -> None:
    bench = Bench()
    bench.hold()
    kinds: list[str] = []
    for _ in range(3):
        kinds.append(type(bench.waiting[0]).__name__)
        bench.answer(bench.waiting[0], "done")
    assert kinds == ["ReadEnds", "OpenMailbox", "ReadEnds"]
    assert effects(bench, Fetch)


def test_a_shard_whose_watermark_is_gone_while_its_data_remains_is_not_served() -> None:
    bench = running(dispatch(0, users=(1,)))
    bench.crash()
    bench.store.base = None
    bench.hold()
    bench.run()
    assert bench.violations() == [Invariant.MAILBOX_SEQ_REGRESSION]
    assert not bench.waiting


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ("topic", Invariant.MAILBOX_SEQ_REGRESSION),
        ("shorter", Invariant.MAILBOX_SEQ_REGRESSION),
        ("other record", Invariant.MAILBOX_SEQ_REGRESSION),
        ("other position", Invariant.MAILBOX_SEQ_REGRESSION),
        ("retention", "position_mismatch"),
    ],
)
def test_a_log_that_is_not_the_one_remembered_stops_the_shard(change: str, check: str) -> None:
    bench = running(dispatch(0, users=(1,)), dispatch(1, users=(1,)))
    bench.crash()
    if change == "topic":
        bench.topic = b"n" * 16
    elif change == "shorter":
        del bench.log[1:]
    elif change == "other record":
        bench.log[1] = replace(bench.log[1], value=b"other")
    elif change == "other position":
        bench.store.position = Position(TOPIC, 1, NO_DIGEST)
    else:
        bench.start = 4
    bench.hold()
    bench.run()
    assert bench.violations() == [check]
    assert not bench.waiting


@pytest.mark.parametrize("change", ["topic", "start", "end", "hole"])
def test_a_log_that_changes_under_a_running_shard_stops_it(change: str) -> None:
    bench = running(dispatch(0, users=(1,)))
    bench.append(dispatch(1, users=(1,)))
    if change == "topic":
        bench.topic = b"n" * 16
    elif change == "start":
        bench.start = 4
    elif change == "end":
        bench.log.clear()
    else:
        bench.log[1] = replace(bench.log[1], offset=7)
    bench.run()
    below = change in {"start", "hole"}
    assert bench.violations() == [
        "position_mismatch" if below else Invariant.MAILBOX_SEQ_REGRESSION
    ]


def test_a_predecessor_that_retention_took_meanwhile_is_judged_by_the_ends_again() -> None:
    bench = running(dispatch(0, users=(1,)), dispatch(1, users=(1,)))
    bench.crash()
    bench.hold()
    until(bench, Fetch)
    del bench.log[:]
    bench.start = 2
    bench.append(dispatch(2, users=(1,)))
    bench.run()
    assert not bench.violations()
    assert len(bench.mailbox(1)) == 3


@pytest.mark.parametrize("fault", ["failed", "unknown_lost", "unknown_applied"])
def test_every_request_of_a_shard_is_repeated_until_it_is_settled(fault: str) -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1, 2), checkpoint=3))
    bench.hold()
    kinds: set[str] = set()
    for _ in range(60):
        ready = [effect for effect in bench.waiting if not bench.parked(effect)]
        if not ready:
            bench.now += 2_000
            bench.step()
            continue
        name = type(ready[0]).__name__
        bench.answer(ready[0], "done" if name in kinds else fault)
        kinds.add(name)
    assert kinds >= {
        "ReadEnds",
        "OpenMailbox",
        "Fetch",
        "ClaimDispatches",
        "AppendEntries",
        "FinishDispatches",
        "RaiseFloor",
        "ReadPresence",
    }
    assert len(bench.mailbox(1)) == len(bench.mailbox(2)) == 1
    assert bench.store.floors == {0: 3}
    assert not bench.violations()


def test_every_try_to_open_brings_another_key() -> None:
    bench = Bench()
    bench.hold()
    keys: list[bytes] = []
    for _ in range(3):
        opening = until(bench, OpenMailbox)
        assert isinstance(opening, OpenMailbox)
        keys.append(opening.fresh_key)
        bench.answer(opening, "unknown_applied")
        bench.now += 2_000
        bench.step()
    assert len(set(keys)) == 3
    bench.run()
    assert bench.node.serving() == 1


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
    bench.append_value(b"\x02rest")
    bench.append(dispatch(1, users=(1,)))
    bench.hold()
    bench.run()
    assert bench.store.base == mailbox_seq(1, 0)
    assert bench.counts("mailbox_newer_format") == 1
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


# ------------------------------------------------------------ trim


def days_bench(append_days: tuple[int, ...]) -> Bench:
    bench = Bench()
    bench.now = 0
    for number, day in enumerate(append_days):
        bench.append(dispatch(number, users=(1, 2)), at=WALL + day * DAY)
    bench.hold()
    bench.run()
    return bench


def test_day_ranges_follow_the_append_times_and_never_go_back() -> None:
    bench = days_bench((0, 0, 2, 1, 3))
    first = WALL // DAY
    assert bench.store.days == [(first, 0), (first + 2, 2), (first + 3, 4)]


def test_whole_leading_days_beyond_retention_are_trimmed_and_nothing_else() -> None:
    bench = days_bench((0, 0, 1, 5))
    bench.append(dispatch(9, users=(1,)), at=WALL + 31 * DAY)
    bench.run()
    bench.pass_time(30 * DAY + 3_600_000)
    # WALL is 22:13 of its day: less than 30 days ago that day had not ended yet.
    assert bench.store.trim == 0
    bench.pass_time(3_600_000)
    assert bench.store.trim == mailbox_seq(1, 1)
    assert sorted(bench.mailbox(1)) == [mailbox_seq(1, n) for n in (2, 3, 4)]


def test_nothing_is_trimmed_while_clock_and_append_times_are_a_day_apart() -> None:
    bench = days_bench((0, 1))
    bench.pass_time(90 * DAY)
    assert bench.store.trim == 0
    bench.append(dispatch(5, users=(1,)), at=WALL + 90 * DAY)
    bench.run()
    bench.pass_time(CONFIG.trim_ms)
    assert bench.store.trim == mailbox_seq(1, 1)


def test_a_day_is_dropped_in_bounded_calls() -> None:
    bench = Bench(replace(CONFIG, trim_keys_max=3))
    bench.now = 0
    bench.append(dispatch(0, users=tuple(range(1, 11))), at=WALL)
    bench.append(dispatch(1, users=(1,)), at=WALL + 40 * DAY)
    bench.hold()
    bench.run()
    bench.now = 40 * DAY
    bench.step()
    calls = 0
    while found := effects(bench, TrimMailbox):
        calls += 1
        bench.answer(found[0], "done")  # type: ignore[arg-type]
    assert calls == 4
    assert bench.store.days == [((WALL + 40 * DAY) // DAY, 1)]


def test_a_trim_that_the_store_does_not_do_is_not_believed() -> None:
    bench = days_bench((0, 40))
    bench.now = 40 * DAY
    bench.step()
    call = until(bench, TrimMailbox)
    assert isinstance(call, TrimMailbox)
    bench.store.base = before_first(1, 0)
    bench.answer(call, "done")
    assert bench.store.trim == 0


# ------------------------------------------------------------ leases, resets, drain


def test_fenced_is_never_mended_from_memory() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    call = until(bench, ClaimDispatches)
    assert isinstance(call, ClaimDispatches)
    bench.waiting.remove(call)
    bench.step(Fenced(op=call.op, epoch=7))
    assert bench.wanted == [FreshEpochWanted(resource=RESOURCE, above=7)]
    bench.run()
    assert not bench.mailbox(1)
    bench.epoch = 7
    bench.hold()
    bench.run()
    assert len(bench.mailbox(1)) == 1


def test_a_reset_mailbox_store_is_opened_again_and_filled_from_the_log() -> None:
    bench = running(dispatch(0, users=(1,)), dispatch(1, users=(2,)))
    bench.store = type(bench.store)()
    bench.store.marker = b"run/2"
    bench.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    assert not bench.wanted
    bench.step(StoreReset(op=None, store=StoreRole.MAILBOX))
    bench.step(StoreReset(op=None, store=StoreRole.MAILBOX))
    assert bench.wanted == [FreshEpochWanted(resource=RESOURCE, above=0)]
    bench.hold()
    bench.run()
    assert (len(bench.mailbox(1)), len(bench.mailbox(2))) == (1, 1)


def test_nothing_in_flight_of_a_lost_lease_matters() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    call = until(bench, AppendEntries)
    bench.step(LeaseGone(resource=RESOURCE))
    bench.step(LeaseGone(resource=RESOURCE))
    assert bench.node.deadline() is None
    bench.answer(call, "failed")  # type: ignore[arg-type]
    bench.run()
    assert bench.node.idle()
    assert bench.node.deadline() is None


def test_a_lease_may_go_in_the_step_that_brings_an_answer() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    ends = bench.waiting.pop(0)
    bench.step(bench.execute(ends), LeaseGone(resource=RESOURCE))  # type: ignore[arg-type]
    bench.run()
    assert not bench.waiting
    assert not bench.mailbox(1)


def test_leases_of_other_roles_are_not_ours() -> None:
    bench = Bench()
    writer = Resource(role=Role.WRITER, number=0)
    bench.step(
        LeaseHeld(resource=writer, epoch=1, barrier_epoch=0, barrier_offset=-1, wall=WALL),
        LeaseGone(resource=writer),
    )
    assert not bench.waiting


def test_draining_finishes_what_was_fetched_and_fetches_no_more() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    until(bench, AppendEntries)
    bench.step(DrainRequested())
    assert not bench.node.idle()
    bench.append(dispatch(1, users=(1,)))
    bench.run()
    assert bench.node.idle()
    assert not effects(bench, Fetch) or all(map(bench.parked, bench.waiting))


def test_the_window_is_bounded() -> None:
    bench = Bench(replace(CONFIG, window_records_max=3, fetch_records_max=2))
    named = version(b"g" * 16, 1, (1, 2))
    bench.append(*(dispatch(n, named=named) for n in range(10)))
    bench.hold()
    bench.run()
    assert not effects(bench, Fetch)
    bench.know(named)
    bench.pass_time(60)
    assert len(bench.mailbox(1)) == 10


def test_an_answer_of_another_kind_is_our_bug() -> None:
    bench = Bench()
    bench.hold()
    op = bench.waiting[0].op  # type: ignore[union-attr]
    assert isinstance(bench.waiting[0], ReadEnds)
    with pytest.raises(AssertionError):
        bench.step(MailboxesRead(op=op, results=()))


def test_unreachable_stores_are_retried_with_growing_pauses() -> None:
    bench = Bench()
    bench.append(dispatch(0, users=(1,)))
    bench.hold()
    call = until(bench, AppendEntries)
    waits: list[int] = []
    for number in range(7):
        assert isinstance(call, AppendEntries)
        bench.waiting.remove(call)
        why = FailReason.OVERLOADED
        bench.step(Unknown(op=call.op) if number % 2 else Failed(op=call.op, why=why))
        due = bench.node.deadline()
        assert due is not None
        waits.append(due - bench.now)
        bench.now = due
        bench.step()
        call = until(bench, AppendEntries)
    assert waits == [50, 100, 200, 400, 800, 1600, 2000]
    bench.run()
    assert bench.mailbox(1)
    assert bench.store.rows.keys() == {(TENANT, 1)}
