"""The operator's procedures over what a simulated world left behind: real scripts, real codec, somebody else's driver.

The world has ended, so nobody materialises what is dispatched again: what is judged is the log, the receipts and the refusals.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from qim.adapters.redis.scripts import load_scripts
from qim.core.audit import OrphanKind, Verdict
from qim.core.audit.tenure import COVERAGE
from qim.core.contract.entities import NO_SOURCE, decode_receipt
from qim.core.contract.logvalue import (
    Barrier,
    Dispatched,
    Outboxed,
    barrier_value,
    read_dispatch,
    read_outbox,
)
from qim.core.mending import outbox
from qim.core.mending.asking import Moved, NotMended, Procedure
from qim.core.mending.bump import Bump
from qim.core.mending.dead_letters import listed, redriven
from qim.core.mending.dispatches import redispatched
from qim.core.mending.halts import Halt, halts
from qim.core.mending.outbox import OutboxRepair
from qim.core.ports.archive import ReadArchivedConversations
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreRole, Unknown
from qim.core.ports.log import (
    Append,
    Appended,
    EndsRead,
    Fetch,
    Fetched,
    OutOfRange,
    ReadEnds,
    StoredRecord,
    Topic,
)
from qim.core.ports.registry import (
    Acquire,
    BarrierRegistered,
    Denied,
    EpochRaised,
    Granted,
    LeaseRead,
    RaiseEpoch,
    ReadLease,
    RegisterBarrier,
    Release,
    Released,
    Role,
)
from qim.core.ports.store import store_role
from qim.core.ports.store_audit import AdvanceCoverage, OpenCoverage
from qim.core.ports.store_message import (
    OpenSource,
    ReadSource,
    ReadVersions,
    SourceOpened,
    VersionsRead,
)
from qim.core.ports.store_operator import AmendSource
from qim.sim.auditing import audited
from qim.sim.generate import generate
from qim.sim.keyspace import ScriptRuntime
from qim.sim.run import run_scene
from qim.sim.scene import Kit, Scene
from tests.core.newer_format import LATER_VERSION, NEWER

SPOIL = "redis.call(unpack(ARGV)) return {'K'}"
KEY = b"k" * 16
NEVER_MS = 1 << 40


class SpoilingKit(Kit):
    """Its keyspaces know one script more: any command at all."""

    def __init__(self) -> None:
        super().__init__()
        self._runtime = ScriptRuntime({**load_scripts(), "spoil": SPOIL})


class World:
    """A world that has settled, and a driver of procedures over it. ``fate`` may answer something else first."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        for name in list(scene.nodes):
            scene.kill_now(name, NEVER_MS)  # who owns something would be told by its lease
        self.fate: Callable[[Any], Any] = lambda request: None
        self.asked: list[Any] = []

    def carry_out(self, procedure: Procedure[Any]) -> Any:
        try:
            request = next(procedure)
            while True:
                self.asked.append(request)
                answer = self.fate(request)
                request = procedure.send(self.answer(request) if answer is None else answer)
        except StopIteration as done:
            return done.value

    def answer(self, request: Any) -> Any:
        match request:
            case Append() | Fetch() | ReadEnds():
                return self._log(request)
            case ReadLease() | Acquire() | Release() | RegisterBarrier() | RaiseEpoch():
                return self._registry(request)
            case ReadArchivedConversations():
                return self.scene.archive.ask(request)
            case _:
                return self.scene.stores[store_role(request)].ask(request)

    def _log(self, request: Append | Fetch | ReadEnds) -> Any:
        partition = self.scene.log.partitions[request.topic, request.partition]
        start, end = partition.start, partition.end
        match request:
            case ReadEnds():
                return EndsRead(op=0, topic_id=partition.topic_id, start=start, end=end)
            case Fetch(offset=offset) if not start <= offset <= end:
                return OutOfRange(op=0, topic_id=partition.topic_id, start=start, end=end)
            case Fetch():
                records = partition.slice(request.offset, request.limit, request.bytes_max)
                return Fetched(
                    op=0, topic_id=partition.topic_id, start=start, end=end, records=records
                )
            case Append():
                offsets = []
                for record in request.records:
                    offsets.append(partition.end)
                    stored = StoredRecord(
                        offset=partition.end, append_time=0, key=record.key, value=record.value
                    )
                    partition.records.append(stored)
                return Appended(op=0, offsets=tuple(offsets), append_time=0)

    def _registry(self, request: Any) -> Any:
        lease = self.scene.registry.lease(
            getattr(request, "resource", None) or request.leases[0][0]
        )
        match request:
            case ReadLease():
                below = [one for one in lease.barriers if one[1] < request.barriers_below]
                epoch, offset = max(below, default=(0, -1))
                return LeaseRead(
                    op=0,
                    resource=request.resource,
                    epoch=lease.epoch,
                    owner="",
                    address="",
                    barrier_epoch=epoch,
                    barrier_offset=offset,
                )
            case Acquire():
                lease.epoch += 1
                return Granted(
                    op=0,
                    resource=request.resource,
                    epoch=lease.epoch,
                    barrier_epoch=0,
                    barrier_offset=-1,
                )
            case RaiseEpoch():
                lease.epoch = max(lease.epoch, request.above)
                return EpochRaised(op=0)
            case RegisterBarrier():
                lease.barriers.append((request.epoch, request.offset))
                return BarrierRegistered(op=0)
            case _:
                return Released(op=0)

    # ------------------------------------------------------------ what befalls it

    def audit(self) -> Any:
        return audited(self.scene)

    def spoil(self, *command: bytes) -> None:
        self.scene.stores[StoreRole.MESSAGE].keyspace.call("spoil", [], list(command))

    def shards(self) -> int:
        return sum(topic is Topic.DISPATCH for topic, _ in self.scene.log.partitions)

    def dead_lettered(self) -> tuple[int, StoredRecord]:
        """As if an older fanout had passed the newest receipted record: a dead letter where its receipt was."""
        held = self.scene.stores[StoreRole.MESSAGE].keyspace.dump()
        for key, (_, rows) in held.items():
            if key.startswith(b"fr:") and rows:
                number = int.from_bytes(key[3:7], "big")
                receipt = decode_receipt(rows[-1][8:])
                partition = self.scene.log.partitions[Topic.OUTBOX, number]
                (record,) = partition.slice(receipt.source_offset, 1, 1)
                self.spoil(b"ZREM", key, rows[-1])
                letter = receipt.source_offset.to_bytes(8, "big") + record.value
                self.spoil(b"ZADD", b"fd:" + key[3:], b"0", letter)
                return number, record
        raise AssertionError("no receipt in this world: choose another seed")


@pytest.fixture(scope="module")
def kit() -> Kit:
    return SpoilingKit()


@pytest.fixture(params=(3, 11, 12))
def world(request: pytest.FixtureRequest, kit: Kit) -> World:
    scene, report = run_scene(generate(request.param, "calm"), kit)
    assert report.violations == ()
    return World(scene)


def test_a_dead_letter_of_a_world_is_found_read_and_dispatched(world: World) -> None:
    number, record = world.dead_lettered()
    assert OrphanKind.DEAD_LETTERED in {one.kind for one in world.audit().orphans}
    partitions = range(len(world.scene.log.partitions) - 2 * world.shards())
    (letter,) = world.carry_out(listed(partitions))
    assert (letter.partition, letter.offset, letter.state) == (number, record.offset, "readable")
    before = {key: one.end for key, one in world.scene.log.partitions.items()}
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=False))
    assert told.outcome == "would_dispatch"
    assert before == {key: one.end for key, one in world.scene.log.partitions.items()}
    (done,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert (done.outcome, done.shards) == ("dispatched", told.shards)
    for shard in done.shards:
        partition = world.scene.log.partitions[Topic.DISPATCH, shard]
        read = read_dispatch(partition.records[-1].value)
        assert isinstance(read, Dispatched)
        assert (read.dispatch.message_id.hex(), read.dispatch.source_partition) == (
            letter.message_id,
            NO_SOURCE,
        )
    after = world.audit()
    assert OrphanKind.DEAD_LETTERED not in {one.kind for one in after.orphans}
    assert after.verdict is not Verdict.ORPHANS, after.orphans


def test_a_letter_under_a_higher_barrier_is_nothing_to_deliver(world: World) -> None:
    number, record = world.dead_lettered()
    lease = world.scene.registry.lease(
        next(
            one
            for one in world.scene.registry.leases
            if one.role is Role.WRITER and one.number == number
        )
    )
    lease.barriers.append((1 << 63, record.offset - 1))
    (letter,) = world.carry_out(listed([number]))
    # A barrier can't stand before the first offset of all.
    assert letter.state == ("ineffective" if record.offset else "readable")
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert told.outcome == ("ineffective" if record.offset else "dispatched")


def test_an_append_of_unknown_outcome_is_repeated_and_a_store_that_fails_says_what_to_do(
    world: World,
) -> None:
    number, _ = world.dead_lettered()
    (letter,) = world.carry_out(listed([number]))
    lost = [True]

    def fate(request: Any) -> Any:
        return Unknown(op=0) if isinstance(request, Append) and lost.pop() else None

    world.fate = lambda request: fate(request) if lost else None
    (done,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert done.outcome == "dispatched"
    world.fate = lambda request: Failed(op=0, why=FailReason.UNREACHABLE)
    with pytest.raises(NotMended, match="unreachable"):
        world.carry_out(listed([number]))
    world.fate = lambda request: Unknown(op=0)
    with pytest.raises(NotMended, match="Run it again"):
        world.carry_out(listed([number]))


def test_what_the_dispatch_log_lost_is_dispatched_once_a_record(world: World) -> None:
    """Every dispatch of one message is garbled: one order mends all its shards."""
    for (topic, _), partition in world.scene.log.partitions.items():
        records = [one for one in partition.records if isinstance(read_outbox(one.value), Outboxed)]
        if topic is Topic.OUTBOX and records:
            wanted = records[0].key
    for (topic, _), partition in world.scene.log.partitions.items():
        for at, one in enumerate(partition.records):
            if topic is Topic.DISPATCH and one.key == wanted:
                partition.records[at] = replace(one, value=b"\x01\xff")
    orphans = world.audit().orphans
    assert OrphanKind.RECORD_WITHOUT_DISPATCH in {one.kind for one in orphans}
    (done,) = world.carry_out(redispatched(orphans, world.shards(), KEY, apply=True))
    assert (done.outcome, done.message_id) == ("dispatched", wanted.hex())
    left = {one.kind for one in world.audit().orphans if one.partition >= 0}
    assert OrphanKind.RECORD_WITHOUT_DISPATCH not in left


def test_a_whole_world_has_nothing_to_mend_and_a_held_lease_is_named(world: World) -> None:
    partitions = len(world.scene.log.partitions) - 2 * world.shards()
    more: dict[str, Any] = {"owner": "op", "address": "op", "fresh_key": KEY}
    for number in range(partitions):
        repair = OutboxRepair(number, world.shards(), tiered=True, **more)
        assert world.carry_out(repair.planned()).nothing()
        assert world.carry_out(repair.applied()).nothing()
    bump = Bump(0, partitions, **more)
    assert world.carry_out(bump.planned()).whole
    with pytest.raises(NotMended, match="nothing is to be mended"):
        world.carry_out(bump.applied())

    def held(request: Any) -> Any:
        if isinstance(request, Acquire):
            return Denied(op=0, resource=request.resource, owner="mailbox-7", remaining_ms=4_000)
        return None

    world.fate = held
    with pytest.raises(NotMended, match="held by mailbox-7"):
        world.carry_out(bump.applied())


def test_a_lease_is_given_back_when_the_work_is_refused(world: World) -> None:
    partitions = len(world.scene.log.partitions) - 2 * world.shards()
    bump = Bump(0, partitions, owner="op", address="op", fresh_key=KEY)
    with pytest.raises(NotMended):
        world.carry_out(bump.applied())
    taken = [one.resource for one in world.asked if isinstance(one, Acquire)]
    given = [lease for one in world.asked if isinstance(one, Release) for lease, _ in one.leases]
    assert sorted(taken) == sorted(given)


# ------------------------------------------------------------ letters of every kind


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (b"\x01\xff", "undecodable"),
        (NEWER, "newer_format"),
        (barrier_value(3), "barrier"),
    ],
)
def test_what_can_not_be_dispatched_says_why(world: World, value: bytes, state: str) -> None:
    world.spoil(b"ZADD", b"fd:" + bytes(4), b"0", (1 << 40).to_bytes(8, "big") + value)
    (letter,) = [one for one in world.carry_out(listed([0])) if one.offset == 1 << 40]
    assert letter.state == state
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert told.outcome == state
    assert not [one for one in world.asked if isinstance(one, Append)]


def test_a_version_the_store_does_not_have_is_waited_for_by_a_person(world: World) -> None:
    number, _ = world.dead_lettered()
    (letter,) = world.carry_out(listed([number]))

    def fate(request: Any) -> Any:
        if isinstance(request, ReadVersions):
            return VersionsRead(op=0, versions=(None,), applied=(0,))
        return None

    world.fate = fate
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    asked = [one for one in world.asked if isinstance(one, ReadVersions)]
    assert told.outcome == ("version_missing" if asked else "dispatched")


def test_who_moves_the_checkpoint_meanwhile_makes_us_look_again(world: World) -> None:
    number, _ = world.dead_lettered()
    (letter,) = world.carry_out(listed([number]))
    moves = [Fenced(op=0, epoch=0)] * 2

    def fate(request: Any) -> Any:
        return moves.pop() if isinstance(request, AmendSource) and moves else None

    world.fate = fate
    (done,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert (done.outcome, moves) == ("dispatched", [])
    world.fate = lambda request: Fenced(op=0, epoch=9) if isinstance(request, AmendSource) else None
    with pytest.raises(Moved):
        world.carry_out(redriven([letter], world.shards(), KEY, apply=True))


# ------------------------------------------------------------ what stands before a newer format


def put(world: World, topic: Topic, number: int, value: bytes) -> int:
    """One more record that nobody of the world has fetched; its offset."""
    partition = world.scene.log.partitions[topic, number]
    offset = partition.end
    partition.records.append(StoredRecord(offset=offset, append_time=0, key=b"", value=value))
    return offset


def test_a_record_of_a_newer_format_is_found_where_a_consumer_stands_before_it(
    world: World,
) -> None:
    partitions = range(len(world.scene.log.partitions) - 2 * world.shards())
    shards = range(world.shards())
    assert world.carry_out(halts(partitions, shards, tiered=True)) == (), "their logs end there"
    for topic, number in ((Topic.OUTBOX, 0), (Topic.DISPATCH, 1)):
        put(world, topic, number, b"hello stranger")
        assert world.carry_out(halts(partitions, shards, tiered=True)) == ()
        del world.scene.log.partitions[topic, number].records[-1]
    outbox = put(world, Topic.OUTBOX, 0, NEWER)
    dispatch = put(world, Topic.DISPATCH, 1, NEWER)
    put(world, Topic.OUTBOX, 0, NEWER)
    of_outbox = {"topic": Topic.OUTBOX, "number": 0, "offset": outbox}
    told: dict[str, Any] = {"size_bytes": len(NEWER), "version": LATER_VERSION}
    assert world.carry_out(halts(partitions, shards, tiered=True)) == (
        Halt(consumer="fanout", **of_outbox, **told),
        Halt(consumer="archiver", **of_outbox, **told),
        Halt(consumer="mailbox", topic=Topic.DISPATCH, number=1, offset=dispatch, **told),
    )
    (fanout,) = world.carry_out(halts(partitions, (), tiered=False))
    assert fanout.consumer == "fanout"


def test_what_halts_fanout_is_listed_beside_the_letters_and_not_redriven(world: World) -> None:
    offset = put(world, Topic.OUTBOX, 0, NEWER)
    (letter,) = world.carry_out(listed([0]))
    assert (letter.state, letter.offset, letter.size_bytes) == ("halting", offset, len(NEWER))
    assert f"format {LATER_VERSION}" in letter.detail
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert told.outcome == "halting"
    assert not [one for one in world.asked if isinstance(one, Append)]


# ------------------------------------------------------------ an outbox without its tail


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
    behind = partition.records[stood - partition.base :]
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
    opening = OpenSource(op=0, partition=number, epoch=1 << 40, fresh_key=KEY)
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


def test_more_padding_than_a_person_was_asked_for_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "PADDING_MAX", 2)
    number = cut(world, 3)
    with pytest.raises(NotMended, match="more than 2"):
        world.carry_out(repairing(world, number).applied())
    assert not [one for one in world.asked if isinstance(one, Append)]


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
        for bump in (Bump(number, partitions, **more) for number in range(world.shards()))
        if not world.carry_out(bump.planned()).whole
    ]
    assert any(bumped)
    number = cut(world, 6)
    done = world.carry_out(repairing(world, number).applied())
    assert done.lost_dispatched, "some were passed by fanout before the bump"
    report = world.audit()
    assert report.verdict is not Verdict.ORPHANS, report.orphans
