"""An outbox loses its tail under its living writer, whose next append stands where others had been archived; then it is repaired."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from qim.core.audit import Verdict
from qim.core.contract.logvalue import Barrier, Outboxed, read_outbox
from qim.core.fanout.vocabulary import FanoutConfig
from qim.core.mending.asking import NotMended, Procedure
from qim.core.mending.outbox import OutboxPlan, OutboxRepair
from qim.core.ports.completion import StoreRole, Unknown
from qim.core.ports.log import Append, Topic
from qim.core.ports.store_history import ArchivePositionRead, CommitArchive, ReadArchivePosition
from qim.core.ports.store_message import ApplyOutbox
from qim.core.ports.store_operator import AmendSource
from qim.core.ports.store_source import ReadSource, SourceRead
from qim.sim import cast
from qim.sim.auditing import audited
from qim.sim.choice import choose
from qim.sim.generate import generate
from qim.sim.scene import Kit, Scene
from tests.core.mending.amid import ordered
from tests.core.mending.settled import KEY, NEVER_MS, World
from tests.core.mending.test_outbox_repair import message_ids, repairing

WORLDS: Final = 24
STOPPED: Final = ("writer", "fanout", "archiver")
NOTICED_MS: Final = 500
PATIENCE_MS: Final = 3_000
SETTLED_MS: Final = 90_000
"""A device that was long without an answer comes again within half a minute."""
BEHIND_MS: Final = 250
UNMARKED: Final = 4
UNMARKED_MS: Final = 60_000


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.mark.parametrize("seed", range(WORLDS))
def test_what_its_writer_wrote_over_the_lost_is_published_behind_them(seed: int, kit: Kit) -> None:
    """The writer stops at that append and has marked nothing of it: nobody has been told that it stands there."""
    scene = Scene(generate(seed, "calm", messages=60), kit)
    number = choose(seed, "partition", ()) % scene.plan.topology.outbox_partitions
    scene.world.run(600 + choose(seed, "lost_at", ()) % 600)
    lose_tail(scene, number, 1 + choose(seed, "records", ()) % 6)
    repair(scene, number)
    for role in STOPPED:
        scene.add(role)
    settle(scene)


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("seed", range(WORLDS // 2))
def test_what_comes_again_is_delivered_once_though_fanout_was_behind(
    seed: int, passes: bool, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its position was not lost, so it goes on over what was written there, before or after the repair; claims of that are gone
    by the time at which it comes to the second place."""
    monkeypatch.setattr(cast, "FanoutConfig", one_by_one)
    scene = Scene(generate(seed, "calm", messages=120), kit)
    number = choose(seed, "partition", ()) % scene.plan.topology.outbox_partitions
    scene.world.run(600 + choose(seed, "lost_at", ()) % 400)
    stop(scene, "fanout")
    scene.world.run(scene.world.now + BEHIND_MS)
    lose_tail(scene, number, 3 + choose(seed, "records", ()) % 6)
    if passes:
        scene.add("fanout")
        scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + PATIENCE_MS)
    repair(scene, number)
    for role in ("fanout", "archiver"):
        scene.add(role)
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + PATIENCE_MS)
    scene.add("writer")
    settle(scene)


@pytest.mark.parametrize("seed", range(WORLDS // 2))
def test_who_had_passed_a_barrier_that_was_lost_goes_on_over_the_next(seed: int, kit: Kit) -> None:
    """A writer that had applied nothing of it opens as if it had never been, and all that it commits stands where facts say."""
    scene = Scene(generate(seed, "calm", messages=60), kit)
    store = scene.stores[StoreRole.MESSAGE]
    number = choose(seed, "partition", ()) % scene.plan.topology.outbox_partitions
    partition = scene.log.partitions[Topic.OUTBOX, number]
    look = ReadSource(op=0, partition=number, low=0, high=0, limit=1)
    while getattr(store.ask(look), "checkpoint", -1) != partition.end:
        assert scene.world.now < PATIENCE_MS
        scene.world.run(scene.world.now + 1)
    assert isinstance(read_outbox(partition.records[-1].value), Barrier)
    stop(scene, "writer")
    scene.log.lose_tail(partition, 1, refill=False)
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + 500)
    scene.add("writer")
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + PATIENCE_MS)
    repair(scene, number)
    for role in STOPPED:
        scene.add(role)
    settle(scene)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("seed", range(WORLDS // 4))
def test_an_archiver_that_alone_had_read_what_is_lost_gets_what_stands_there_now(
    seed: int, passes: bool, more: int, kit: Kit
) -> None:
    """Nothing of it was marked: a writer opens as if it had never been, and facts, fanout and store agree with the log.

    A receipt says that fanout had it, and nothing of an archive; ``more``: there is something else to be mended, too.
    """
    scene = Scene(generate(seed, "calm", messages=120), kit)
    number = busiest(scene)
    scene.world.run(600 + choose(seed, "lost_at", ()) % 400)
    stop(scene, "fanout")
    lost_from = lose_unmarked(scene, number)
    if passes:
        scene.add("fanout")
    scene.add("writer")
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + PATIENCE_MS)
    if more:
        audited(scene)
        lose_tail(scene, number, more)
    first = first_unarchived(scene, number, lost_from)
    plan = repair(scene, number)
    assert plan.unarchived, "it is committed where others had been archived"
    differs_from = min(first, plan.archived - 1)
    assert plan.differs_from <= differs_from if more else plan.differs_from == differs_from
    for role in STOPPED:
        scene.add(role)
    settle(scene)


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("passes", [False, True])
def test_what_is_published_again_for_the_archive_is_so_once(
    passes: bool, answered: bool, kit: Kit
) -> None:
    """However often, and wherever, a run of it is cut off."""
    scene = Scene(generate(1, "calm", messages=120), kit)
    number = busiest(scene)
    stop(scene, "fanout")
    lose_unmarked(scene, number)
    if passes:
        scene.add("fanout")
    scene.add("writer")
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + PATIENCE_MS)
    world = World(scene)
    unarchived = world.carry_out(repairing(world, number).planned()).unarchived
    stood = len(message_ids(world, number))
    for steps in range(1, 60):
        world.fate = cut_off(world, steps, answered=answered)
        try:
            world.carry_out(repairing(world, number).applied())
        except NotMended:
            continue
        break
    world.fate = lambda request: None
    assert world.carry_out(repairing(world, number).applied()).nothing()
    assert len(message_ids(world, number)) - stood == unarchived > 0


def cut_off(world: World, steps: int, *, answered: bool) -> Callable[[Any], Any]:
    """The so-manieth write of a run has an unknown end: it was done, or not."""
    left = [steps]

    def fate(request: Any) -> Any:
        repeated = isinstance(request, Append) and request.topic is Topic.DISPATCH
        if isinstance(request, Append | AmendSource | CommitArchive | ApplyOutbox) and not repeated:
            left[0] -= 1
            if left[0] == 0:
                if answered:
                    world.answer(request)
                return Unknown(op=0)
        return None

    return fate


def busiest(scene: Scene) -> int:
    """The outbox partition with most records, once there are some."""
    scene.world.run(600)
    outboxes = {key[1]: one for key, one in scene.log.partitions.items() if key[0] is Topic.OUTBOX}
    return max(outboxes, key=lambda number: len(outboxes[number].records))


def one_by_one(**given: Any) -> FanoutConfig:
    """What is true of thousands of records is true of a few then: between two of them the checkpoint moves, and floors with it."""
    single = ("fetch_records_max", "window_records_max", "append_records_max", "commit_records_max")
    return replace(FanoutConfig(**given), **dict.fromkeys(single, 1))


def stop(scene: Scene, *roles: str) -> None:
    for node in list(scene.nodes.values()):
        if node.role in roles:
            scene.kill_now(node.name, NEVER_MS)


def lose_tail(scene: Scene, number: int, records: int) -> None:
    """Its writer lives and writes on, until it notices."""
    scene.log.lose_tail(scene.log.partitions[Topic.OUTBOX, number], records, refill=False)
    scene.world.run(scene.world.now + NOTICED_MS)


def lose_unmarked(scene: Scene, number: int) -> int:
    """Its writer is gone amid an append, the archiver has read it, and the log loses what nobody else knows of: from where on."""
    partition = scene.log.partitions[Topic.OUTBOX, number]
    look = ReadSource(op=0, partition=number, low=0, high=0, limit=1)
    store = scene.stores[StoreRole.MESSAGE]

    def unknown() -> int:
        known = store.ask(look)
        assert isinstance(known, SourceRead)
        return partition.end - max(known.applied, known.checkpoint)

    until = scene.world.now + UNMARKED_MS
    while unknown() < UNMARKED:
        assert scene.world.now < until
        stop(scene, "writer")
        end = partition.end
        scene.add("writer")
        while partition.end == end and scene.world.now < until:
            scene.world.run(scene.world.now + 1)
    stop(scene, "writer")
    scene.world.run(scene.world.now + BEHIND_MS)
    archived = store.ask(ReadArchivePosition(op=0, partition=number))
    assert isinstance(archived, ArchivePositionRead) and archived.offset == partition.end
    scene.log.lose_tail(partition, unknown(), refill=False)
    lost_from = partition.end
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + 500)
    return lost_from


def first_unarchived(scene: Scene, number: int, low: int) -> int:
    """The offset of the first record from ``low`` on that the archive lacks."""
    partition = scene.log.partitions[Topic.OUTBOX, number]
    for stored in partition.records[low - partition.start :]:
        entry = read_outbox(stored.value)
        if isinstance(entry, Outboxed):
            record = entry.record
            name = (record.conversation_id, record.conversation_seq, record.message_id)
            if scene.archive.rows.body(name, stale=True) is None:
                return stored.offset
    raise AssertionError("the archive has all of it")


def repair(scene: Scene, number: int) -> OutboxPlan:
    """Whoever owns something of it is stopped first."""
    stop(scene, *STOPPED)
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + 500)

    def run() -> Procedure[Any]:
        shards = scene.plan.topology.shards
        repair = OutboxRepair(number, shards, owner="op", address="op", fresh_key=KEY, tiered=True)
        return repair.applied()

    operator = ordered(scene, run, PATIENCE_MS)
    assert isinstance(operator.report, OutboxPlan), operator.refusals
    return operator.report


def settle(scene: Scene) -> None:
    scene.world.run(scene.world.now + SETTLED_MS)
    report = audited(scene)
    assert report is not None
    assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())
    everybody_has_everything(scene)


def everybody_has_everything(scene: Scene) -> None:
    """Devices of what is theirs, the archive of all; and nobody waits for an answer any more."""
    for message_id, message in scene.history.oracle.messages.items():
        record = message.record
        name = (record.conversation_id, record.conversation_seq, message_id)
        assert scene.archive.rows.body(name, stale=True) is not None
        for device in scene.devices.values():
            assert message_id in device.messages or device.user_id not in message.audience
    assert not any(device.pending for device in scene.devices.values())
