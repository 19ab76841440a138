"""Losses that a person mends, and the person's act: what the log alone lost is whole again afterwards (pipeline.md §7)."""

from typing import TYPE_CHECKING, ClassVar, Final

from qim.core.contract.sequences import FIRST_SHARD_EPOCH, split_mailbox_seq
from qim.core.mending.asking import Procedure
from qim.core.mending.bump import Bump, BumpPlan
from qim.core.mending.outbox import OutboxPlan, OutboxRepair
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import Topic
from qim.core.ports.store_history import ArchivePositionRead, ReadArchivePosition
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.ports.store_source import ReadSource, SourceRead
from qim.sim.faults.kind import FaultBase
from qim.sim.operators import key_of

if TYPE_CHECKING:
    from qim.sim.scene import Scene

OF_A_SHARD: Final = ("mailbox", "session")
OF_AN_OUTBOX: Final = ("writer", "fanout", "archiver")


class DispatchLost(FaultBase, frozen=True, kw_only=True, gc=False, tag="dispatch_lost"):
    """A dispatch log loses what its mailbox had not read, and ``read`` records more; ``notice_ms`` later the shard is bumped.

    A shard that was bumped before loses nothing and is bumped once more.

    ``how``: cut, refilled (others stand in their places at once) or recreated (all of it; another topic).
    """

    shard: int
    read: int = 1
    how: str = "cut"
    notice_ms: int = 500
    stops_after: int = 0
    drawn_by: ClassVar[str] = "mended"

    def begin(self, scene: "Scene") -> None:
        if scene.history.oracle.epoch(self.shard) > FIRST_SHARD_EPOCH:
            # What its projection has not read again by then, a second loss takes from the list (decision 0032, Price).
            scene.count("operator.bumped_again")
            scene.operators.expect()
            self._bump(scene)
        elif self._loses(scene):
            scene.history.dispatch_lost(self.shard)
            scene.operators.expect()
            scene.world.at(scene.world.now + self.notice_ms, 0, self._bump, scene)
        else:
            scene.count("operator.nothing_to_lose")

    def _loses(self, scene: "Scene") -> bool:
        state = scene.boxes.ask(ReadShardState(op=0, shard=self.shard))
        partition = scene.log.partitions[Topic.DISPATCH, self.shard]
        reached = partition.start
        if isinstance(state, ShardStateRead) and state.base >= 0:
            _, reached = split_mailbox_seq(state.min_watermark + 1)
        if not partition.start < reached <= partition.end:
            return False
        read = partition.records[reached - 1 - partition.start]
        unread = partition.end - reached
        if self.how == "recreated" or read.value == partition.records[0].value:
            scene.log.recreate(partition, 2 + self.at_ms)
        else:
            lost = unread + min(self.read, len(partition.records) - unread - 1)
            scene.log.lose_tail(partition, lost, refill=self.how == "refilled", apart=True)
        return True

    def _bump(self, scene: "Scene") -> None:
        partitions = scene.plan.topology.outbox_partitions

        def begun(name: str) -> Procedure[BumpPlan]:
            run = Bump(
                self.shard,
                partitions,
                shard_count=scene.plan.topology.shards,
                owner=name,
                address=name,
                fresh_key=key_of(name),
                force=True,
            )
            return run.applied()

        scene.operators.order(OF_A_SHARD, begun, self.stops_after)


class OutboxLost(FaultBase, frozen=True, kw_only=True, gc=False, tag="outbox_lost"):
    """An outbox loses what nobody had read, and ``records`` more; ``notice_ms`` later it is repaired.

    ``how``: cut, refilled (barriers that say nothing stand in their places at once) or recreated (all of it; another topic).
    What is lost while somebody repairs is not among it.
    """

    partition: int
    records: int = 1
    how: str = "cut"
    notice_ms: int = 500
    stops_after: int = 0
    drawn_by: ClassVar[str] = "repaired"

    def begin(self, scene: "Scene") -> None:
        partition = scene.log.partitions[Topic.OUTBOX, self.partition]
        reached = self._reached(scene)
        if reached <= partition.start or scene.operators.keeps_down(OF_AN_OUTBOX[0]):
            scene.count("operator.nothing_to_lose")
            return
        # Offsets that begin again far below where they had been are more than a run fills up.
        recreated = self.how == "recreated" and partition.start == 0
        end = max(partition.start, reached - self.records)
        end = partition.start if self.how == "recreated" else min(end, partition.end)
        scene.history.outbox_lost(self.partition, end)
        if recreated:
            scene.log.recreate(partition, 2 + self.at_ms)
        else:
            lost = partition.end - end
            scene.log.lose_tail(partition, lost, refill=self.how == "refilled")
        scene.operators.expect()
        scene.world.at(scene.world.now + self.notice_ms, 0, self._repair, scene)

    def _reached(self, scene: "Scene") -> int:
        """Where the furthest of writer, fanout and archiver stands."""
        store = scene.stores[StoreRole.MESSAGE]
        read = store.ask(ReadSource(op=0, partition=self.partition, low=0, high=0, limit=1))
        archived = store.ask(ReadArchivePosition(op=0, partition=self.partition))
        assert isinstance(read, SourceRead) and isinstance(archived, ArchivePositionRead)
        return max(read.applied, read.checkpoint, archived.offset)

    def _repair(self, scene: "Scene") -> None:
        shards = scene.plan.topology.shards

        def begun(name: str) -> Procedure[OutboxPlan]:
            run = OutboxRepair(
                self.partition,
                shards,
                owner=name,
                address=name,
                fresh_key=key_of(name),
                tiered=True,
            )
            return run.applied()

        scene.operators.order(OF_AN_OUTBOX, begun, self.stops_after)
