"""A mailbox shard is bumped while clients send, writers commit and fanout dispatches on into the log that had lost its tail."""

from typing import Any, Final

import pytest

from qim.core.audit import Verdict
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.mending.asking import Procedure
from qim.core.mending.bump import Bump, BumpPlan
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import Topic
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.sim.auditing import audited
from qim.sim.choice import choose
from qim.sim.generate import generate
from qim.sim.scene import Kit, Scene
from tests.core.mending.amid import ordered
from tests.core.mending.settled import KEY, NEVER_MS

WORLDS: Final = 24
UNREAD_MS: Final = 300
"""So long fanout dispatches without a mailbox that reads it, before the log loses that and a little more."""
READ_LOST: Final = 2
PATIENCE_MS: Final = 3_000
SETTLED_MS: Final = 30_000


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.mark.parametrize("seed", range(WORLDS))
def test_what_the_log_lost_is_dispatched_again_behind_what_counts_it_as_durable(
    seed: int, kit: Kit
) -> None:
    """Dispatches that came after the lost ones carry an f above them: no floor may go by it before fanout has been there."""
    scene = Scene(generate(seed, "calm", messages=60), kit)
    shard = choose(seed, "shard", ()) % scene.plan.topology.shards
    scene.world.run(600 + choose(seed, "lost_at", ()) % 600)
    for node in list(scene.nodes.values()):
        if node.role in ("mailbox", "session"):
            scene.kill_now(node.name, NEVER_MS)
    scene.world.run(scene.world.now + UNREAD_MS)
    lose(scene, shard)
    scene.world.run(scene.world.now + scene.plan.parameters.lease_ttl_ms + 500)

    def run() -> Procedure[Any]:
        partitions = scene.plan.topology.outbox_partitions
        run = Bump(
            shard,
            partitions,
            shard_count=scene.plan.topology.shards,
            owner="op",
            address="op",
            fresh_key=KEY,
            force=True,
        )
        return run.applied()

    operator = ordered(scene, run, PATIENCE_MS)
    assert isinstance(operator.report, BumpPlan), operator.refusals
    # They are back at once, while fanout has not yet taken up its own lease again.
    scene.add("mailbox")
    scene.add("session")
    scene.world.run(scene.world.now + SETTLED_MS)
    report = audited(scene)
    assert report is not None
    assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())


def lose(scene: Scene, shard: int) -> None:
    """All that the mailbox had not read of its log, and the last that it had."""
    state = scene.stores[StoreRole.MAILBOX].ask(ReadShardState(op=0, shard=shard))
    assert isinstance(state, ShardStateRead)
    _, reached = split_mailbox_seq(state.min_watermark + 1)
    partition = scene.log.partitions[Topic.DISPATCH, shard]
    scene.log.lose_tail(partition, partition.end - reached + READ_LOST, refill=False)
