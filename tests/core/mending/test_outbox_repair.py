"""An outbox without its tail, in a simulated world: it comes back once, whole, and behind where it stood."""

from typing import Any

import pytest

from qim.core.audit import Verdict
from qim.core.audit.tenure import COVERAGE
from qim.core.contract.logvalue import Barrier, Outboxed, read_outbox
from qim.core.mending import outbox, source
from qim.core.mending.asking import NotMended, Procedure, ends
from qim.core.mending.bump import Bump
from qim.core.mending.dead_letters import dispatched
from qim.core.mending.outbox import OutboxRepair
from qim.core.ports.completion import Fenced, StoreRole, Unknown
from qim.core.ports.log import Append, LogRecord, Topic
from qim.core.ports.registry import RegisterBarrier
from qim.core.ports.store_audit import AdvanceCoverage, OpenCoverage
from qim.core.ports.store_history import OpenArchive
from qim.core.ports.store_message import OpenShard
from qim.core.ports.store_operator import AmendSource
from qim.core.ports.store_source import OpenSource, ReadFacts, ReadSource, SourceOpened
from tests.core.mending.settled import KEY, World


def cut(world: World, records: int) -> int:
    """The outbox partition with most records loses its newest ones; nothing of it was archived, and facts are audited away."""
    number = max(
        (key[1] for key in world.scene.log.partitions if key[0] is Topic.OUTBOX),
        key=lambda one: len(world.scene.log.partitions[Topic.OUTBOX, one].records),
    )
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    if records:
        del partition.records[-records:]
        world.spoil(b"HDEL", b"as:" + number.to_bytes(4, "big"), b"p")
    return number


def repairing(world: World, number: int) -> OutboxRepair:
    more: dict[str, Any] = {"owner": "op", "address": "op", "fresh_key": KEY, "tiered": True}
    return OutboxRepair(number, world.shards(), **more)


def message_ids(world: World, number: int) -> list[bytes]:
    records = world.scene.log.partitions[Topic.OUTBOX, number].records
    read = [read_outbox(one.value) for one in records]
    return [one.record.message_id for one in read if isinstance(one, Outboxed)]


@pytest.mark.parametrize("records", [1, 3, 6])
def test_a_tail_comes_back_once_and_behind_where_it_stood(world: World, records: int) -> None:
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    before, stood = message_ids(world, number), partition.end
    cut(world, records)
    plan = world.carry_out(repairing(world, number).planned())
    assert not plan.nothing()
    assert plan.padding == records
    lost = len(before) - len(message_ids(world, number))
    assert plan.lost_dispatched + plan.lost_undispatched + len(plan.unreadable) == lost
    done = world.carry_out(repairing(world, number).applied())
    assert done.republished == lost - len(plan.unreadable)
    assert sorted(message_ids(world, number)) == sorted(before)
    behind = partition.records[stood - partition.start :]
    assert all(isinstance(read_outbox(one.value), Outboxed) for one in behind)
    assert world.carry_out(repairing(world, number).applied()).nothing(), "once is enough"
    report = world.audit()
    assert report.verdict is Verdict.CLEAN, report.orphans


def test_a_log_made_anew_is_filled_up_to_where_the_archive_stands(world: World) -> None:
    """Its position has no name of the log it was filled from, so no offset below it may ever mean a record of another one.

    Store and log are gone: of all that stood anywhere the archive's own position alone is left.
    """
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    stands = world.scene.archive.rows.positions[number]
    assert stands > 0
    world.scene.log.recreate(partition, 2)
    store = world.scene.stores[StoreRole.MESSAGE]
    store.keyspace.flush()
    opening = OpenSource(op=0, partition=number, epoch=1, fresh_key=KEY)
    assert isinstance(store.ask(opening), SourceOpened)
    plan = world.carry_out(repairing(world, number).planned())
    assert (plan.archived, plan.padding) == (stands, stands)
    if stands > outbox.PADDING_MAX:
        with pytest.raises(NotMended, match=f"{stands} barriers"):
            world.carry_out(repairing(world, number).applied())
        return
    world.carry_out(repairing(world, number).applied())
    entries = [read_outbox(one.value) for one in partition.records]
    assert len(entries) >= stands
    assert all(isinstance(one, Barrier) for one in entries)
    assert world.carry_out(repairing(world, number).applied()).nothing()


def test_an_audit_that_began_before_a_repair_moves_no_coverage(world: World) -> None:
    """What it judged stands elsewhere now: whatever auditor lives, its epoch is over."""
    number = cut(world, 3)
    lease = world.scene.registry.lease(COVERAGE)
    epoch, before = lease.epoch, len(world.asked)
    world.carry_out(repairing(world, number).applied())
    late = AdvanceCoverage(
        op=0,
        partition=number,
        epoch=epoch,
        incarnation=world.answer(
            ReadSource(op=0, partition=number, low=0, high=0, limit=1)
        ).incarnation,
        covered_to=1 << 40,
        drop_facts=(),
    )
    fenced = world.answer(late)
    assert isinstance(fenced, Fenced)
    assert epoch < fenced.epoch <= lease.epoch, "the next grant is above the fence"
    kinds = [type(one) for one in world.asked[before:]]
    assert kinds.index(OpenCoverage) < kinds.index(Append), "before the first of it is written"


def test_a_repair_cut_off_anywhere_is_finished_by_the_next(world: World) -> None:
    number = cut(world, 0)
    before = message_ids(world, number)
    cut(world, 4)
    for steps in range(1, 200):
        left = [steps]

        def fate(request: Any, left: list[int] = left) -> Any:
            if isinstance(request, Append | AmendSource | RegisterBarrier):
                left[0] -= 1
                if left[0] == 0:
                    world.answer(request)
                    return Unknown(op=0)
            return None

        world.fate = fate
        try:
            world.carry_out(repairing(world, number).applied())
        except NotMended:
            continue
        break
    world.fate = lambda request: None
    assert sorted(message_ids(world, number)) == sorted(before), "none twice"
    assert world.audit().verdict is Verdict.CLEAN


def test_a_message_that_stands_twice_keeps_a_receipt_at_each_place(world: World) -> None:
    """Its writer had appended it before it stopped at a first loss, and again after that was mended; now there is a second."""
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    known = world.carry_out(source.evidence(number))
    offset = min(known.receipts)
    (first,) = partition.slice(offset, 1, 1)
    again = partition.end
    barrier = LogRecord(key=b"", value=partition.records[0].value)
    for record in (LogRecord(key=first.key, value=first.value), barrier, barrier):
        world.answer(Append(op=0, topic=Topic.OUTBOX, partition=number, epoch=0, records=(record,)))
    world.carry_out(passed(number, again, first.value, world.shards()))
    assert world.audit().verdict is not Verdict.ORPHANS
    del partition.records[-2:]
    done = world.carry_out(repairing(world, number).applied())
    assert not done.trusted and done.differs_from <= offset, "facts of all are gone"
    receipts = world.carry_out(source.evidence(number)).receipts
    assert receipts[offset].message_id == receipts[again].message_id
    report = world.audit()
    assert report.verdict is not Verdict.ORPHANS, report.orphans


def passed(number: int, offset: int, value: bytes, shards: int) -> Procedure[None]:
    """As fanout does: what stands at ``offset`` dispatched, and the checkpoint behind all of it."""
    yield from dispatched(number, offset, value, shards, KEY, apply=True)
    opened = yield from source.opened(number, KEY)
    log = yield from ends(Topic.OUTBOX, number)
    to = yield from source.position_at(Topic.OUTBOX, number, log.end)
    yield from source.amend(opened, to, opened.filter_epoch)


def test_more_padding_than_a_person_was_asked_for_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "PADDING_MAX", 2)
    number = cut(world, 3)
    with pytest.raises(NotMended, match="more than 2"):
        world.carry_out(repairing(world, number).applied())
    assert not [one for one in world.asked if isinstance(one, Append)]


def test_what_its_owners_had_under_way_is_fenced_before_it_is_looked_at(world: World) -> None:
    """A mark that came after the look moved the store's position, which nobody told anew: no writer served the partition again."""
    number = cut(world, 3)
    world.carry_out(repairing(world, number).applied())
    kinds = [type(one) for one in world.asked]
    looked = min(kinds.index(kind) for kind in (ReadSource, ReadFacts))
    assert max(kinds.index(kind) for kind in (OpenShard, OpenSource, OpenArchive)) < looked


def test_what_is_no_longer_hot_is_named_and_left(world: World) -> None:
    number = cut(world, 2)
    held = world.scene.stores[StoreRole.MESSAGE].keyspace.dump()
    for key in held:
        if key.startswith(b"h:"):
            world.spoil(b"DEL", key)
    plan = world.carry_out(repairing(world, number).planned())
    assert plan.lost_dispatched == plan.lost_undispatched == 0
    done = world.carry_out(repairing(world, number).applied())
    assert done.unreadable == plan.unreadable
    assert done.republished == 0


def test_what_was_dispatched_archived_and_audited_needs_no_second_life(world: World) -> None:
    """The log is filled up to where it stood and nothing more: a copy of what everybody has would help nobody."""
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    stood = partition.end
    del partition.records[-3:]
    done = world.carry_out(repairing(world, number).applied())
    assert (done.padding, done.republished, done.redispatched) == (3, 0, 0)
    assert partition.end >= stood
    assert world.carry_out(repairing(world, number).planned()).nothing()
    assert world.audit().verdict is Verdict.CLEAN


def test_a_bump_and_then_a_repair_leave_no_orphan_that_is_none(world: World) -> None:
    """The records a bumped shard had materialised stand above its mark now: their receipts say under which they came."""
    for (topic, _), partition in world.scene.log.partitions.items():
        if topic is Topic.DISPATCH:
            partition.records.clear()
            partition.topic_id = b"made anew"
    partitions = len(world.scene.log.partitions) - 2 * world.shards()
    more: dict[str, Any] = {"owner": "op", "address": "op", "fresh_key": KEY}
    bumped = [
        world.carry_out(bump.applied()).applied
        for bump in (
            Bump(number, partitions, shard_count=world.shards(), **more)
            for number in range(world.shards())
        )
        if not world.carry_out(bump.planned()).whole
    ]
    assert any(bumped)
    number = cut(world, 6)
    done = world.carry_out(repairing(world, number).applied())
    assert done.lost_dispatched, "some were passed by fanout before the bump"
    report = world.audit()
    assert report.verdict is not Verdict.ORPHANS, report.orphans
