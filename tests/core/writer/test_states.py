"""Stages × events of a shard, swept: each cell says where the shard stands afterwards, as seen from outside."""

from collections.abc import Callable

import pytest

from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Refused
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import LeaseHeld
from qim.core.ports.log import EndsRead, ReadEnds
from qim.core.writer.shard import TRANSITIONS, ShardStage
from tests.core.writer.outside import SHARD
from tests.core.writer.scene import Scene

STAGES = tuple(ShardStage)
CLOSED, OPENING, SERVING, REFRESHING, STOPPED = STAGES


def brought_to(stage: ShardStage) -> Scene:
    """A shard that stands there; leases are granted by hand."""
    scene = Scene(started=False)
    scene.grants = False
    if stage is CLOSED:
        return scene
    scene.hold()
    if stage is STOPPED:
        ends = scene.until(ReadEnds)
        scene.step(EndsRead(op=ends.op, topic_id=b"t", start=5, end=9))
        return scene
    scene.answer()
    if stage is OPENING:
        return scene
    while scene.inflight:
        scene.answer()
    if stage is REFRESHING:
        scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    return scene


def standing(scene: Scene) -> ShardStage:
    """Where the shard stands, told from what it does and says."""
    if scene.writer.serving():
        return SERVING
    said = scene.said(scene.send(1, 2))
    if isinstance(said, Refused):
        return CLOSED if said.code == ErrorCode.NOT_OWNER else STOPPED
    return REFRESHING if scene.wanted else OPENING


def higher(scene: Scene) -> None:
    scene.wanted.clear()
    scene.hold()


def lower(scene: Scene) -> None:
    scene.step(
        LeaseHeld(resource=SHARD, epoch=0, barrier_epoch=0, barrier_offset=-1, wall=scene.wall())
    )


def gone(scene: Scene) -> None:
    scene.lose()


def reset(scene: Scene) -> None:
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))


def answered(scene: Scene) -> None:
    while scene.inflight:
        scene.answer()


def later(scene: Scene) -> None:
    scene.advance(60_000)


CELLS: dict[Callable[[Scene], None], tuple[ShardStage, ...]] = {
    # from       CLOSED  OPENING     SERVING     REFRESHING  STOPPED
    higher: (OPENING, OPENING, OPENING, OPENING, OPENING),
    lower: (CLOSED, OPENING, SERVING, REFRESHING, STOPPED),
    gone: (CLOSED, CLOSED, CLOSED, CLOSED, CLOSED),
    reset: (CLOSED, REFRESHING, REFRESHING, REFRESHING, STOPPED),
    answered: (CLOSED, SERVING, SERVING, REFRESHING, STOPPED),
    later: (CLOSED, OPENING, SERVING, REFRESHING, STOPPED),
}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.value)
def test_a_scene_stands_where_it_was_brought(stage: ShardStage) -> None:
    assert standing(brought_to(stage)) is stage


@pytest.mark.parametrize("event", CELLS, ids=lambda event: event.__name__)
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.value)
def test_every_stage_meets_every_event(event: Callable[[Scene], None], stage: ShardStage) -> None:
    scene = brought_to(stage)
    event(scene)
    after = CELLS[event][STAGES.index(stage)]
    assert standing(scene) is after
    assert after is stage or after in TRANSITIONS[stage]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.value)
def test_whatever_was_asked_is_answered_once_the_lease_is_gone(stage: ShardStage) -> None:
    scene = brought_to(stage)
    rids = [scene.send(1, 2), scene.send(3, 4), scene.history(1, b"\x01" * 16)]
    scene.lose()
    assert all(isinstance(scene.said(rid), Refused) for rid in rids)
