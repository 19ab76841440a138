"""The orphan audit of a world: the production auditor as one more process, asked once the world has settled."""

from typing import TYPE_CHECKING, Final

from qim.core.audit import AuditConfig, AuditFinished, Auditor, AuditReport, AuditRequested
from qim.sim.choice import choose
from qim.sim.node import Host

if TYPE_CHECKING:
    from qim.sim.scene import Scene

PATIENCE_MS: Final = 120_000
LOOK_MS: Final = 20


def audited(scene: "Scene") -> AuditReport | None:
    """Run one audit to its end inside the world; None if it never ended."""
    heard: list[AuditReport] = []

    def finished(host: Host, effect: AuditFinished) -> None:
        heard.append(effect.report)

    number = 1 + sum(1 for node in scene.nodes.values() if node.role == "auditor")
    node = scene.make_node(f"auditor-{number}", "auditor")
    config = AuditConfig(
        shard_count=scene.plan.topology.shards,
        outbox_partition_count=scene.plan.topology.outbox_partitions,
    )
    host = Host(
        node,
        f"{node.name}/auditor",
        Auditor(config, choose=node.choose()),
        {**scene.routes, AuditFinished: finished},
        identity=choose(scene.plan.seed, "process", (node.name, 0, "auditor")),
        observe=scene.observe,
    )
    node.start([host])
    host.take(AuditRequested(ticket=1))
    world = scene.world
    until = world.now + PATIENCE_MS
    while not heard and not world.stopped and world.now < until:
        world.run(world.now + LOOK_MS)
    return heard[0] if heard else None
