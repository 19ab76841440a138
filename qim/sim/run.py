"""One plan, one world, one report."""

from collections.abc import Sequence
from typing import Final

from qim.sim.auditing import audited, audited_amid_faults
from qim.sim.checkers import all_checkers
from qim.sim.checkers.liveness import unsettled
from qim.sim.checkers.presence import unlisted
from qim.sim.judging import judge
from qim.sim.mutants import Override, applied
from qim.sim.node import Observe
from qim.sim.plan import Plan
from qim.sim.report import Report
from qim.sim.scene import Kit, Scene

LOOK_MS: Final = 250
"""How often a healed world is asked whether anything is still owed."""
AFTERWARDS_MS: Final = 600
"""A settled world runs on a little, and must stay settled: whatever comes too much would come now."""

AUDITS_MAX: Final = 4
EVENTS_MAX: Final = 150_000
"""More means that machines keep each other busy: no plan asks for a tenth of it."""


def run(
    plan: Plan,
    kit: Kit,
    overrides: Sequence[Override] = (),
    *,
    observe: Observe | None = None,
    until: int | None = None,
) -> Report:
    """Run to the end (or to ``until`` ms, without the judgement of the end), with the machines' code overridden."""
    with applied(overrides):
        return run_scene(plan, kit, observe=observe, until=until)[1]


def run_scene(
    plan: Plan, kit: Kit, *, observe: Observe | None = None, until: int | None = None
) -> tuple[Scene, Report]:
    """As ``run``, with the world as it ended for whoever wants to look around in it."""
    scene = Scene(plan, kit, observe=observe)
    checkers = all_checkers()
    for checker in checkers:
        checker.attach(scene.history)
    if until is not None:
        scene.world.run(until)
        return scene, report_of(scene)
    world = scene.world
    last = max((operation.at_ms for operation in plan.operations), default=0)
    audited_amid_faults(scene)
    world.run(max(plan.heal_ms, last) + 1)
    for _ in range(AUDITS_MAX):
        _live(scene)
        scene.history.settled = True
        if world.stopped:
            return scene, report_of(scene)
        scene.audit_report = audited(scene)
        # A late append may have landed while the auditor walked: then the world is not at its end yet.
        if not unsettled(scene) or world.now >= plan.end_ms:
            break
    judge(scene)
    # A late copy may have landed meanwhile: whoever reads it comes to its end too.
    _live(scene)
    for checker in checkers:
        checker.finish(scene)
    return scene, report_of(scene)


def _live(scene: Scene) -> None:
    """Until nothing is owed any more and stays so, or the plan's patience is over."""
    plan, world = scene.plan, scene.world
    at = calm_since = world.now
    while at < plan.end_ms and not world.stopped and at < calm_since + AFTERWARDS_MS:
        at += LOOK_MS
        world.run(at)
        if unsettled(scene) or unlisted(scene) or scene.operators.working():
            calm_since = at
        if world.events > EVENTS_MAX:
            scene.history.found("runaway", "world", f"{world.events} events by {world.now} ms")
            world.stopped = True


def report_of(scene: Scene) -> Report:
    """What can be said of the world as it stands."""
    world, history = scene.world, scene.history
    census: dict[str, int] = {}
    parts: Sequence[dict[str, int]] = (
        scene.counts,
        scene.network.counts,
        scene.log.counts,
        scene.archive.counts,
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
