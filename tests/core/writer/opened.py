"""A shard that was closed in hand, and one that opens again."""

from qim.core.ports.store_message import ShardOpened
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene

SMALL = WriterConfig(
    outbox_partition_count=1,
    fetch_records_max=3,
    apply_records_max=2,
    pending_page_max=2,
    append_records_max=2,
)


def closed(config: WriterConfig | None = None) -> Scene:
    """A writer without a lease."""
    return Scene(config, started=False)


def filtering(filter_epoch: int) -> Scene:
    """A writer under epoch 1 that the store has told of its filter; no further epoch is granted."""
    scene = closed()
    scene.grants = False
    scene.hold()
    opening = scene.inflight.pop(0)
    scene.step(
        ShardOpened(
            op=opening.op,
            incarnation=b"run-1/k",
            applied=3,
            filter_epoch=filter_epoch,
            hlc_floor=b"\0" * 16,
        )
    )
    return scene


def reopened(scene: Scene) -> Scene:
    """The same world after the process died and a new one took the lease."""
    fresh = closed(scene.config)
    fresh.now, fresh.keyspace, fresh.run_id = scene.now, scene.keyspace, scene.run_id
    fresh.log, fresh.log_start, fresh.epoch = scene.log, scene.log_start, scene.epoch
    fresh.barriers, fresh.rid = scene.barriers, scene.rid
    return fresh


def opened_order(scene: Scene) -> list[str]:
    """Names of the questions OPEN asks, in order."""
    names = []
    while scene.inflight:
        names.append(type(scene.inflight[0]).__name__)
        scene.answer()
    return names
