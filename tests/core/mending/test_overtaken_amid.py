"""A repair that takes minutes amid a living world: nobody begins in its middle, and who does all the same costs nothing but another run."""

from collections.abc import Callable
from typing import Any, Final, get_args

import pytest

from qim.core.mending import publishing
from qim.core.mending.asking import LEASE_TTL_MS, NotMended
from qim.core.mending.carrying import Carrying
from qim.core.mending.outbox import OutboxPlan, OutboxRepair
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import Append, Topic
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_operator import OperatorMailboxRequest, OperatorMessageRequest
from qim.sim.choice import choose
from qim.sim.generate import generate
from qim.sim.node import Host
from qim.sim.scene import Kit, Scene
from tests.core.mending.settled import KEY
from tests.core.mending.test_outbox_amid import (
    PATIENCE_MS,
    STOPPED,
    busiest,
    lose_tail,
    lose_unmarked,
    repair,
    settle,
    stop,
)

RUN_MS_MAX: Final = 30 * 60_000
Meanwhile = Callable[[int], int]
"""Told how many appends to the outbox came before, does what it wants, says how long this one takes."""


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "BATCH_RECORDS", 1)


def carried_out(scene: Scene, number: int, meanwhile: Meanwhile) -> Carrying:
    """One run of a repair, as a process of the world; whoever owns something of the outbox is stopped before, not for it."""
    shards = scene.plan.topology.shards
    more: dict[str, Any] = {"owner": "slow", "address": "", "fresh_key": KEY, "tiered": True}
    machine = Carrying(OutboxRepair(number, shards, **more).applied())
    seen = 0

    def slow(host: Host, request: Append) -> None:
        nonlocal seen
        took = 0
        if request.topic is Topic.OUTBOX:
            took = meanwhile(seen)
            seen += 1
        at = scene.world.now + took
        scene.world.at(at, 0, lambda _: scene.routes[Append](host, request), None)

    message = scene.stores[StoreRole.MESSAGE]
    routes: dict[type, Any] = {
        **scene.routes,
        **dict.fromkeys(get_args(OperatorMailboxRequest), scene.boxes.request),
        **dict.fromkeys(get_args(OperatorMessageRequest), message.request),
        Append: slow,
    }
    node = scene.make_node("slow", "operator")
    identity = choose(scene.plan.seed, "process", (node.name,))
    node.start([Host(node, "slow/operator", machine, routes, identity=identity)])
    until = scene.world.now + RUN_MS_MAX
    while not machine.idle():
        assert scene.world.now < until
        scene.world.run(scene.world.now + 50)
    return machine


def lost_unmarked(scene: Scene) -> int:
    """What nobody but the archiver knows of is lost, and other records stand there: its writer opens as if nothing were."""
    number = busiest(scene)
    stop(scene, "fanout")
    lose_unmarked(scene, number)
    scene.add("writer")
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + PATIENCE_MS)
    down(scene)
    return number


def down(scene: Scene) -> None:
    stop(scene, *STOPPED)
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + 500)


def up(scene: Scene) -> None:
    for role in STOPPED:
        scene.add(role)


@pytest.mark.parametrize("seed", range(4))
def test_nobody_begins_in_the_middle_of_what_takes_longer_than_a_lease(seed: int, kit: Kit) -> None:
    """Its processes are started again too early, and wait for it."""
    scene = Scene(generate(seed, "calm", messages=60), kit)
    number = busiest(scene)
    lose_tail(scene, number, 4)
    down(scene)
    began = scene.world.now

    def meanwhile(seen: int) -> int:
        if seen == 0:
            up(scene)
        return LEASE_TTL_MS // 2

    machine = carried_out(scene, number, meanwhile)
    assert scene.world.now - began > LEASE_TTL_MS
    report = machine.result()
    assert isinstance(report, OutboxPlan) and report.applied_repair
    settle(scene)


@pytest.mark.parametrize("at", range(4))
def test_who_begins_in_the_middle_costs_another_run(at: int, kit: Kit) -> None:
    """The registry forgets the lease, a writer takes it and puts its barrier: after any of the appends."""
    scene = Scene(generate(1, "calm", messages=120), kit)
    number = lost_unmarked(scene)
    taken: list[int] = []

    def meanwhile(seen: int) -> int:
        if seen != at:
            return 0
        taken.append(seen)
        scene.registry.expire(Resource(role=Role.WRITER, number=number))
        scene.add("writer")
        return PATIENCE_MS

    machine = carried_out(scene, number, meanwhile)
    assert taken
    with pytest.raises(NotMended, match=r"overtaken|somebody else opened it"):
        machine.result()
    down(scene)
    repair(scene, number)
    up(scene)
    settle(scene)
