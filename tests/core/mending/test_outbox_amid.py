"""An outbox loses its tail under its living writer, whose next append stands where others had been archived; then it is repaired."""

from typing import Any, Final

import pytest

from qim.core.audit import Verdict
from qim.core.mending.asking import Procedure
from qim.core.mending.outbox import OutboxPlan, OutboxRepair
from qim.core.ports.log import Topic
from qim.sim.auditing import audited
from qim.sim.choice import choose
from qim.sim.generate import generate
from qim.sim.scene import Kit, Scene
from tests.core.mending.amid import ordered
from tests.core.mending.settled import KEY, NEVER_MS

WORLDS: Final = 24
STOPPED: Final = ("writer", "fanout", "archiver")
NOTICED_MS: Final = 500
PATIENCE_MS: Final = 3_000
SETTLED_MS: Final = 30_000


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.mark.parametrize("seed", range(WORLDS))
def test_what_its_writer_wrote_over_the_lost_is_published_behind_them(seed: int, kit: Kit) -> None:
    """The writer stops at that append and has marked nothing of it: nobody has been told that it stands there."""
    scene = Scene(generate(seed, "calm", messages=60), kit)
    number = choose(seed, "partition", ()) % scene.plan.topology.outbox_partitions
    scene.world.run(600 + choose(seed, "lost_at", ()) % 600)
    partition = scene.log.partitions[Topic.OUTBOX, number]
    scene.log.lose_tail(partition, 1 + choose(seed, "records", ()) % 6, refill=False)
    scene.world.run(scene.world.now + NOTICED_MS)
    for node in list(scene.nodes.values()):
        if node.role in STOPPED:
            scene.kill_now(node.name, NEVER_MS)
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + 500)

    def run() -> Procedure[Any]:
        shards = scene.plan.topology.shards
        repair = OutboxRepair(number, shards, owner="op", address="op", fresh_key=KEY, tiered=True)
        return repair.applied()

    operator = ordered(scene, run, PATIENCE_MS)
    assert isinstance(operator.report, OutboxPlan), operator.refusals
    for role in STOPPED:
        scene.add(role)
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
