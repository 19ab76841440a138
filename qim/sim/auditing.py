"""The orphan audit of a world: the production auditor as one more process, asked once the world has settled.

In some worlds the first auditor is stopped in the middle of its run, beyond its lease; a second one takes over and gives
the report; then the first wakes as a zombie that still hands over what it had ordered (pipeline.md §§0, 8).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qim.core.audit import AuditFinished, Auditor, AuditReport, AuditRequested
from qim.sim.cast import auditor_machines
from qim.sim.choice import choose
from qim.sim.node import Host, Node

if TYPE_CHECKING:
    from qim.sim.scene import Scene

PATIENCE_MS: Final = 120_000
LOOK_MS: Final = 20
ZOMBIE_ONE_IN: Final = 3
"""Of the worlds that have faults at all."""
STOPPED_AT: Final = ("OpenCoverage", "AdvanceCoverage", "AdvanceCoverage", "ReadFacts")
DOWN_MS: Final = 700
DEATH_MS: Final = 2_500
"""Until a kill at an order has found its order, or waited in vain, and the process is up again."""
LEASES_WAITED: Final = 3
AMID_FAULTS_ONE_IN: Final = 2


def audited(scene: "Scene") -> AuditReport | None:
    """Run one audit to its end inside the world; None if it never ended."""
    auditors = [node for node in scene.nodes.values() if node.role == "auditor" and node.alive]
    first = next((node for node in auditors if _machine(node).serving()), None) or _begun(scene)
    draw = choose(scene.plan.seed, "audit", ("zombie",))
    if scene.plan.profile != "calm" and draw % ZOMBIE_ONE_IN == 0 and scene.audit_report is None:
        return _beside_a_zombie(scene, first, draw // ZOMBIE_ONE_IN)
    return _asked(scene, first)


def audited_amid_faults(scene: "Scene") -> None:
    """In some worlds somebody asks in the middle of it all; a false orphan would be a violation. Half of these die of it."""
    draw = choose(scene.plan.seed, "audit", ("amid faults",))
    heal_ms = scene.plan.heal_ms
    if draw % AMID_FAULTS_ONE_IN or not heal_ms:
        return
    scene.world.run(draw // AMID_FAULTS_ONE_IN % heal_ms)
    if scene.world.stopped:
        return
    scene.count("audit.amid_faults")
    node = _made(scene)
    _ask(scene, node)
    draw //= AMID_FAULTS_ONE_IN * heal_ms
    # Whoever is to die in the faults must not die in the audit after them.
    if draw % 2 and scene.world.now + DEATH_MS < heal_ms:
        scene.kill(node.name, draw // 2, DOWN_MS, STOPPED_AT[draw // 2 % len(STOPPED_AT)])


def _begun(scene: "Scene") -> Node:
    """One more auditor, that holds the lease unless another one does."""
    node = _made(scene)
    _run(scene, LEASES_WAITED * scene.parameters.lease_ttl_ms, _machine(node).serving)
    return node


def _made(scene: "Scene") -> Node:
    number = 1 + sum(1 for node in scene.nodes.values() if node.role == "auditor")
    node = scene.make_node(f"auditor-{number}", "auditor")
    hosts = auditor_machines(scene, node)
    for server in scene.servers:
        server.hosts.append(hosts[0])
    node.start(hosts)
    return node


def _asked(scene: "Scene", node: Node) -> AuditReport | None:
    reports = _ask(scene, node)
    _run(scene, PATIENCE_MS, lambda: reports)
    return reports[0] if reports else None


def _beside_a_zombie(scene: "Scene", zombie: Node, draw: int) -> AuditReport | None:
    """What the zombie reports is nobody's; whatever it changes is a finding of the checkers."""
    at_effect = STOPPED_AT[draw % len(STOPPED_AT)]
    _ask(scene, zombie)
    generation = scene.stop(zombie.name, draw // len(STOPPED_AT), at_effect)
    _run(scene, PATIENCE_MS, lambda: zombie.paused)
    scene.count("audit.zombie")
    report = _asked(scene, _begun(scene))
    scene.resume(zombie.name, generation)
    _run(scene, PATIENCE_MS, _machine(zombie).idle)
    return report


def _ask(scene: "Scene", node: Node) -> list[AuditReport]:
    """Where the report will stand."""
    reports: list[AuditReport] = []
    ticket = 1 + scene.world.now

    def finished(_: Host, effect: AuditFinished) -> None:
        if effect.ticket == ticket:
            reports.append(effect.report)

    host = node.hosts[0]
    host.routes = {**host.routes, AuditFinished: finished}
    host.take(AuditRequested(ticket=ticket))
    return reports


def _run(scene: "Scene", patience_ms: int, ended: Callable[[], object]) -> None:
    world = scene.world
    until = world.now + patience_ms
    while not ended() and not world.stopped and world.now < until:
        world.run(world.now + LOOK_MS)


def _machine(node: Node) -> Auditor:
    machine = node.hosts[0].machine
    assert isinstance(machine, Auditor)
    return machine
