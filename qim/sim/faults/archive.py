"""What happens to the archive."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qim.core.ports.completion import StoreRole
from qim.core.ports.log import Topic
from qim.core.ports.store_history import ArchivePositionRead, ReadArchivePosition
from qim.core.ports.store_source import ReadSource, SourceRead
from qim.sim.faults.kind import FaultBase, open_window

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class ArchiveRates(FaultBase, frozen=True, kw_only=True, gc=False, tag="archive_rates"):
    """Batches applied in part, after the caller gave up or without an answer; stale reads, unreachable, slow."""

    reply_lost: int = 0
    late: int = 0
    partial: int = 0
    unreachable: int = 0
    stale: int = 0
    extra_ms: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        return open_window(scene.archive, self)


class OutboxTrimmed(FaultBase, frozen=True, kw_only=True, gc=False, tag="outbox_trimmed"):
    """Retention takes what every consumer has passed and the archive holds; then the message store comes back empty.

    Retention outlives every dedupe window: no device still waits for an answer to what goes. What OPEN restores must come
    from the archive (pipeline.md §1.8). Only what landed ``older_ms`` ago goes.
    """

    older_ms: int = 0

    def begin(self, scene: "Scene") -> None:
        store = scene.stores[StoreRole.MESSAGE]
        if scene.world.now < store.down_until:
            return
        trimmed = False
        for number in range(scene.plan.topology.outbox_partitions):
            partition = scene.log.partitions[Topic.OUTBOX, number]
            before = partition.start
            scene.log.retain(partition, _passed_by_all(scene, number, self.older_ms))
            trimmed = trimmed or partition.start > before
        if trimmed:
            scene.count("log.outbox_trimmed")
            store.restart(down_ms=50, lost_calls=None)


def _passed_by_all(scene: "Scene", number: int, older_ms: int) -> int:
    """The offset below which nobody needs the log any more."""
    store = scene.stores[StoreRole.MESSAGE]
    source = store.ask(ReadSource(op=0, partition=number, low=0, high=1 << 62, limit=1))
    archived = store.ask(ReadArchivePosition(op=0, partition=number))
    if not isinstance(source, SourceRead) or not isinstance(archived, ArchivePositionRead):
        return 0
    held = scene.archive.rows.positions.get(number, 0)
    low = min(source.checkpoint, archived.offset, held)
    devices = (*scene.devices.values(), *scene.twins.values())
    waiting = [name for device in devices for name in device.pending]
    for effective in scene.history.oracle.in_order.get(number, []):
        young = scene.history.landed[effective.record.message_id] > scene.world.now - older_ms
        if young or effective.record.client_message_id in waiting:
            return min(low, effective.offset)
    return low
