"""A repair for an archiver alone, in a living world: it dies amid, and the archive had let go what it takes for unarchived."""

from typing import Any, Final

import pytest

from qim.core.contract.logvalue import Outboxed, read_outbox
from qim.core.mending.asking import LEASE_TTL_MS, Procedure
from qim.core.mending.outbox import OutboxRepair
from qim.core.ports.log import Append, Topic
from qim.core.ports.store_operator import AmendSource
from qim.sim import cast
from qim.sim.generate import generate
from qim.sim.scene import Kit, Scene
from tests.core.mending.amid import ordered
from tests.core.mending.settled import KEY
from tests.core.mending.test_outbox_amid import (
    PATIENCE_MS,
    STOPPED,
    busiest,
    lose_unmarked,
    one_by_one,
    repair,
    settle,
    stop,
)

LET_GO: Final = 3
DIED: Final = "died"


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_repair_that_died_leaves_no_fanout_that_dispatches_a_second_time(
    writes: int, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its position was not lost, what was published again stands before it, and the claims of the first time are gone."""
    monkeypatch.setattr(cast, "FanoutConfig", one_by_one)
    scene, number, _ = unarchived_alone(1, kit, passes=True)
    stop(scene, *STOPPED)
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + 500)

    def run() -> Procedure[Any]:
        shards = scene.plan.topology.shards
        whole = OutboxRepair(number, shards, owner="op", address="op", fresh_key=KEY, tiered=True)
        return dying(whole.applied(), writes)

    assert ordered(scene, run, PATIENCE_MS).report == DIED
    scene.world.run(scene.world.now + LEASE_TTL_MS)
    scene.add("fanout")
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + PATIENCE_MS)
    repair(scene, number)
    for role in STOPPED:
        scene.add(role)
    settle(scene)


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_the_archive_had_let_go_comes_again_and_to_nobody_twice(
    seed: int, passes: bool, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't be told from what was never archived; it is in the archive once more, and in no mailbox."""
    monkeypatch.setattr(cast, "FanoutConfig", one_by_one)
    scene, number, lost_from = unarchived_alone(seed, kit, passes=passes)
    gone = let_go(scene, number, lost_from)
    published = count(scene, number)
    plan = repair(scene, number)
    assert plan.unarchived > LET_GO
    assert count(scene, number) == published + plan.unarchived
    for role in STOPPED:
        scene.add(role)
    settle(scene)
    assert all(scene.archive.rows.body(name, stale=True) for name in gone)


def unarchived_alone(seed: int, kit: Kit, *, passes: bool) -> tuple[Scene, int, int]:
    """The archiver alone had read what is lost; ``passes``: fanout has dispatched what was committed there since."""
    scene = Scene(generate(seed, "calm", messages=120), kit)
    number = busiest(scene)
    stop(scene, "fanout")
    lost_from = lose_unmarked(scene, number)
    if passes:
        scene.add("fanout")
    scene.add("writer")
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + PATIENCE_MS)
    return scene, number, lost_from


def let_go(scene: Scene, number: int, below: int) -> list[tuple[bytes, int, bytes]]:
    """The last records before an offset are gone from the archive, as if their time had run out."""
    partition = scene.log.partitions[Topic.OUTBOX, number]
    gone: list[tuple[bytes, int, bytes]] = []
    for stored in reversed(partition.records[: below - partition.start]):
        entry = read_outbox(stored.value)
        if isinstance(entry, Outboxed) and len(gone) < LET_GO:
            record = entry.record
            held = scene.archive.rows.conversations[record.conversation_id]
            place = (record.conversation_seq, record.message_id)
            del held.cells[place]
            held.order.remove(place)
            gone.append((record.conversation_id, *place))
    assert len(gone) == LET_GO
    return gone


def count(scene: Scene, number: int) -> int:
    records = scene.log.partitions[Topic.OUTBOX, number].records
    return sum(isinstance(read_outbox(one.value), Outboxed) for one in records)


def dying(procedure: Procedure[Any], writes: int) -> Procedure[str]:
    """Its process is killed as the so-manieth write was done: its leases stand until they end."""
    answer: Any = None
    while writes:
        request = procedure.send(answer)
        answer = yield request
        writes -= isinstance(request, Append | AmendSource)
    return DIED
