"""One plan, one world, one report."""

from collections.abc import Sequence
from typing import Final

from qim.sim.checkers import all_checkers
from qim.sim.checkers.liveness import unsettled
from qim.sim.node import Observe
from qim.sim.plan import Plan
from qim.sim.report import Report
from qim.sim.scene import Kit, Scene

LOOK_MS: Final = 250
"""How often a healed world is asked whether anything is still owed."""
AFTERWARDS_MS: Final = 600
"""A settled world runs on a little: whatever comes too much would come now."""


def run(
    plan: Plan, kit: Kit, *, observe: Observe | None = None, until: int | None = None
) -> Report:
    """Run to the end (or to ``until`` ms, without the judgement of the end)."""
    scene = Scene(plan, kit, observe=observe)
    checkers = all_checkers()
    for checker in checkers:
        checker.attach(scene.history)
    last = max((operation.at_ms for operation in plan.operations), default=0)
    world = scene.world
    if until is not None:
        world.run(until)
        return report_of(scene)
    at = max(plan.heal_ms, last) + 1
    world.run(at)
    while at < plan.end_ms and not world.stopped and unsettled(scene):
        at += LOOK_MS
        world.run(at)
    world.run(at + AFTERWARDS_MS)
    if not world.stopped:
        for checker in checkers:
            checker.finish(scene)
    return report_of(scene)


def report_of(scene: Scene) -> Report:
    """What can be said of the world as it stands."""
    world, history = scene.world, scene.history
    census: dict[str, int] = {}
    parts: Sequence[dict[str, int]] = (
        scene.counts,
        scene.network.counts,
        scene.log.counts,
        scene.registry.counts,
        *(server.counts for server in scene.servers),
        {f"stage.{stage}": count for stage, count in history.stages.items()},
        {f"said.{name}": count for name, count in history.counts.items()},
    )
    for part in parts:
        for name, count in part.items():
            census[name] = census.get(name, 0) + count
    digest = world.trace.digest(world.now)
    return Report(
        seed=scene.plan.seed,
        profile=scene.plan.profile,
        digest=digest,
        checkpoints=tuple(world.trace.checkpoints),
        violations=tuple(history.findings),
        census=dict(sorted(census.items())),
        ledger=_ledger(scene),
        events=world.events,
        steps=world.steps,
        sim_ms=world.now,
    )


def _ledger(scene: Scene) -> dict[str, int]:
    oracle = scene.history.oracle
    return {
        "asked": len(scene.workload.asked),
        "committed": len(oracle.messages),
        "ineffective": oracle.ineffective,
        "barriers": sum(len(found) for found in oracle.barriers.values()),
        "deliveries_owed": sum(len(message.audience) for message in oracle.messages.values()),
        "dispatches": len(oracle.firsts),
        "dispatches_repeated": oracle.repeated,
        "applied": sum(len(device.messages) for device in scene.devices.values()),
        "rebuilds": sum(device.rebuilds for device in scene.devices.values()),
        "store_calls": sum(server.calls for server in scene.servers),
        "appends": scene.log.appends,
    }
