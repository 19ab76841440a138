"""A mailbox shard from its opening to the end of its lease: positions, resets, fences, drain (pipeline.md §§0, 3, 7)."""

import pytest

from qim.core.contract.invariants import Invariant
from qim.core.contract.sequences import before_first, mailbox_seq
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.log import Fetch, Position, ReadEnds
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_mailbox import AppendEntries, ClaimDispatches, MailboxesRead, OpenMailbox
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
from tests.core.mailbox.shards import effects, running, until

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


def test_a_lane_ahead_of_the_log_stops_the_shard() -> None:
    """min W is still in the log; others would come in the places of those this lane has passed, and it would skip them."""
    bench = running(*(dispatch(n, users=(1,)) for n in range(3)))
    bench.crash()
    top = bench.store.base
    assert top is not None
    bench.store.base, bench.store.own = top - 2, {7: top}
    bench.store.position = Position(TOPIC, 1, record_digest(bench.log[0]))
    del bench.log[2:]
    bench.hold()
    bench.run()
    assert bench.violations() == [Invariant.MAILBOX_SEQ_REGRESSION]
    assert "a lane stands at 2" in str(bench.seen[-1])


@pytest.mark.parametrize("change", ["topic", "start", "end", "hole", "other"])
def test_a_log_that_changes_under_a_running_shard_stops_it(change: str) -> None:
    bench = running(dispatch(0, users=(1,)))
    bench.append(dispatch(1, users=(1,)))
    if change == "topic":
        bench.topic = b"n" * 16
    elif change == "start":
        bench.start = 4
    elif change == "end":
        bench.log.clear()
    elif change == "other":
        # what was read is gone, and the log has grown again beyond it
        bench.log[0] = replace(bench.log[0], value=b"another")
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
    openers: list[bytes] = []
    for _ in range(3):
        opening = until(bench, OpenMailbox)
        assert isinstance(opening, OpenMailbox)
        keys.append(opening.fresh_key)
        openers.append(opening.opener)
        bench.answer(opening, "unknown_applied")
        bench.now += 2_000
        bench.step()
    assert len(set(keys)) == 3
    assert len(openers[0]) == 16 and openers == openers[:1] * 3, "one owner, whose retry it is"
    bench.run()
    assert bench.node.serving() == 1


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
