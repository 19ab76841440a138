"""Another owner of the outbox amid a repair: what is published behind its barrier means nothing, and the repair says so."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.audit import Verdict
from qim.core.contract.logvalue import Outboxed, barrier_value, outbox_value, read_outbox
from qim.core.mending import publishing
from qim.core.mending.asking import NotMended, Overtaken, ends
from qim.core.mending.lost import walk
from qim.core.ports.log import Append, Fetch, LogRecord, Topic
from qim.core.ports.registry import RaiseEpoch, RegisterBarrier, Resource, Role
from qim.core.ports.store_history import CommitArchive
from qim.core.ports.store_mailbox import OpenMailbox
from qim.core.ports.store_message import OpenShard
from qim.core.ports.store_operator import AmendSource, BumpShard
from tests.core.mending.settled import World
from tests.core.mending.test_bump import bump, lose_dispatches
from tests.core.mending.test_outbox_repair import cut, message_ids, repairing

LOST = 6
RUNS = 60


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may come between two appends of a large repair may do so here."""
    monkeypatch.setattr(publishing, "BATCH_RECORDS", 1)


def effective(world: World, number: int) -> list[bytes]:
    log = world.carry_out(ends(Topic.OUTBOX, number))
    return sorted(world.carry_out(walk(number, log)).placed.values())


def append(world: World, number: int, value: bytes) -> int:
    record = LogRecord(key=b"", value=value)
    request = Append(op=0, topic=Topic.OUTBOX, partition=number, epoch=0, records=(record,))
    return int(world.answer(request).offsets[0])


def opened_by_another(world: World, number: int) -> int:
    """It is granted the lease, and its barrier stands: the offset of that."""
    writer = Resource(role=Role.WRITER, number=number)
    epoch = world.scene.registry.lease(writer).epoch + 1
    world.answer(RaiseEpoch(op=0, resource=writer, above=epoch))
    offset = append(world, number, barrier_value(epoch))
    world.answer(RegisterBarrier(op=0, resource=writer, epoch=epoch, offset=offset))
    return offset


def at_append(number: int, left: int, act: Callable[[], Any]) -> Callable[[Any], Any]:
    """``act`` before the so-manieth append to this outbox."""
    seen = 0

    def fate(request: Any) -> None:
        nonlocal seen
        if isinstance(request, Append) and (request.topic, request.partition) == (
            Topic.OUTBOX,
            number,
        ):
            seen += 1
            if seen == left:
                act()

    return fate


@pytest.mark.parametrize("archived", [True, False])
def test_whoever_is_overtaken_says_so_and_the_next_run_finishes(
    world: World, archived: bool
) -> None:
    """Before any append of a run, and before any of the run after it: only the one that nobody came into says it is done."""
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    before = effective(world, number)
    if archived:
        del partition.records[-LOST:]
    else:
        cut(world, LOST)
    refusals: list[str] = []
    for left in range(1, RUNS):
        world.fate = at_append(number, left, lambda: opened_by_another(world, number))
        asked = len(world.asked)
        try:
            done = world.carry_out(repairing(world, number).applied())
        except Overtaken as overtaken:
            refusals.append(str(overtaken))
            later = world.asked[asked:]
            assert not [one for one in later if isinstance(one, CommitArchive)], "it rests on it"
            continue
        assert done.applied_repair or done.nothing()
        break
    assert len(refusals) >= (1 if archived else 2)
    assert all("Nothing is lost by that" in one and "order it again" in one for one in refusals)
    world.fate = lambda request: None
    if not archived:
        assert effective(world, number) == before, "all of it, and none twice"
    assert world.carry_out(repairing(world, number).applied()).nothing()
    report = world.audit()
    assert report.verdict is Verdict.CLEAN, report.orphans


@pytest.mark.parametrize("left", [1, 2, 3, LOST])
def test_no_receipt_is_moved_to_what_means_nothing(world: World, left: int) -> None:
    """It would be the last word of a record that was dispatched, and stands nowhere."""
    number = cut(world, LOST)
    world.fate = at_append(number, left, lambda: opened_by_another(world, number))
    with pytest.raises(Overtaken, match="a barrier of epoch"):
        world.carry_out(repairing(world, number).applied())
    amended = [one for one in world.asked if isinstance(one, AmendSource)]
    assert not [one for one in amended if one.receipts or one.drop_from >= 0]


@pytest.mark.parametrize("moment", [Fetch, OpenShard])
def test_who_comes_behind_all_of_it_overtakes_nobody(world: World, moment: type) -> None:
    """What stands before its barrier is effective for good, also when it comes before that was looked at."""
    number = cut(world, 0)
    before, records = effective(world, number), len(message_ids(world, number))
    cut(world, LOST)
    behind: list[int] = []

    def last(request: Any) -> None:
        published = len(message_ids(world, number)) == records
        if isinstance(request, moment) and published and not behind:
            behind.append(opened_by_another(world, number))

    world.fate = last
    assert world.carry_out(repairing(world, number).applied()).applied_repair
    assert behind
    assert effective(world, number) == before


def test_what_nobody_can_read_amid_it_proves_nothing(world: World) -> None:
    number = cut(world, 0)
    before = effective(world, number)
    cut(world, LOST)
    world.fate = at_append(number, 2, lambda: append(world, number, b"of another program"))
    with pytest.raises(Overtaken, match="that this version can't read stands among its own"):
        world.carry_out(repairing(world, number).applied())
    world.fate = lambda request: None
    assert world.carry_out(repairing(world, number).applied()).applied_repair
    assert effective(world, number) == before


def test_a_barrier_that_a_registry_forgot_is_not_begun_under(world: World) -> None:
    """It was set back: the lease's epoch is one that the log has seen. Nothing is written, and the next grant is above it."""
    number = cut(world, 0)
    before = effective(world, number)
    cut(world, LOST)
    writer = Resource(role=Role.WRITER, number=number)
    append(world, number, barrier_value(world.scene.registry.lease(writer).epoch + 7))
    with pytest.raises(Overtaken, match="the next grant is above it"):
        world.carry_out(repairing(world, number).applied())
    assert not [one for one in world.asked if isinstance(one, Append)]
    assert world.carry_out(repairing(world, number).applied()).applied_repair
    assert effective(world, number) == before


def test_what_a_dead_writer_appends_late_and_before_the_first_barrier_is_looked_at_again(
    world: World,
) -> None:
    """It means something, and stands where others had stood: its OPEN and the archiver would pass over it."""
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    before = effective(world, number)
    late = read_outbox(
        next(
            one.value
            for one in reversed(partition.records)
            if isinstance(read_outbox(one.value), Outboxed)
        )
    )
    assert isinstance(late, Outboxed)
    cut(world, LOST)
    value = outbox_value(late.epoch, late.stored)
    world.fate = at_append(number, 1, lambda: append(world, number, value))
    with pytest.raises(Overtaken, match=f"a record of epoch {late.epoch} was appended amid"):
        world.carry_out(repairing(world, number).applied())
    world.fate = lambda request: None
    world.carry_out(repairing(world, number).applied())
    assert sorted(dict.fromkeys(effective(world, number))) == before
    assert world.audit().verdict is Verdict.CLEAN


@pytest.mark.parametrize("refilled", [True, False])
def test_a_log_that_loses_again_what_was_published_is_not_repaired(
    world: World, refilled: bool
) -> None:
    number = cut(world, 0)
    before = message_ids(world, number)
    cut(world, LOST)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]

    def lose(request: Any) -> None:
        ours = isinstance(request, Fetch) and request.topic is Topic.OUTBOX
        published = len(message_ids(world, number)) == len(before)
        if ours and published and request.offset < partition.end:
            gone = partition.records.pop()
            if refilled:
                partition.records.append(replace(gone, value=barrier_value(1)))

    world.fate = lose
    why = r"lacks 1 of the records" if refilled else "not readable at .* run it again"
    with pytest.raises(NotMended, match=why):
        world.carry_out(repairing(world, number).applied())
    world.fate = lambda request: None
    world.carry_out(repairing(world, number).applied())
    assert sorted(message_ids(world, number)) == sorted(before)


def test_a_bump_is_proved_by_its_fences(world: World) -> None:
    """Another mailbox that opened amid: its script refuses, and no shard_epoch was raised."""
    shard = lose_dispatches(world)[0]
    began = world.carry_out(bump(world, shard).planned()).shard_epoch

    def another(request: Any) -> None:
        if isinstance(request, BumpShard):
            opening = next(one for one in reversed(world.asked) if isinstance(one, OpenMailbox))
            lease = world.scene.registry.lease(Resource(role=Role.MAILBOX, number=request.shard))
            lease.epoch += 1
            world.answer(replace(opening, epoch=lease.epoch))

    world.fate = another
    with pytest.raises(NotMended, match="somebody else opened it meanwhile; run it again"):
        world.carry_out(bump(world, shard).applied())
    world.fate = lambda request: None
    done = world.carry_out(bump(world, shard).applied())
    assert (done.shard_epoch, done.new_shard_epoch) == (began, began + 1)
    assert done.applied
