"""A mailbox shard begun anew, over what simulated worlds left behind: again, after a stop anywhere, and for its session alone."""

from typing import Any

import pytest

from qim.core.contract.entities import encode_receipt
from qim.core.contract.logvalue import Dispatched, read_dispatch
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.mending import source
from qim.core.mending.asking import NotMended
from qim.core.mending.bump import Bump, BumpPlan
from qim.core.ports.completion import Fenced, Unknown
from qim.core.ports.log import Position, Topic
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_mailbox import ReadShardState, TrimMailbox
from qim.core.ports.store_operator import AmendSource, BumpShard, RestartProjection
from qim.core.ports.store_session import (
    DispatchesProjected,
    OpenSession,
    ProjectDispatches,
    SessionOpened,
)
from qim.core.ports.store_source import CommitSource
from tests.core.mending.settled import KEY, World


def bump(world: World, number: int, *, force: bool = False) -> Bump:
    partitions = len(world.scene.log.partitions) - 2 * world.shards()
    more: dict[str, Any] = {"owner": "op", "address": "op", "fresh_key": KEY}
    return Bump(number, partitions, force=force, **more)


def lose_dispatches(world: World) -> list[int]:
    """The topic is made anew; the shards that stood in it."""
    for (topic, _), partition in world.scene.log.partitions.items():
        if topic is Topic.DISPATCH:
            world.scene.log.recreate(partition, 2)
    stood = [
        number
        for number in range(world.shards())
        if not world.carry_out(bump(world, number).planned()).whole
    ]
    assert stood, "nobody stood anywhere: choose another seed"
    return stood


def epochs(world: World, number: int) -> tuple[int, int]:
    """shard_epoch of the mailbox and of the session."""
    state = world.answer(ReadShardState(op=0, shard=number))
    return split_mailbox_seq(state.min_watermark + 1)[0], session(world, number).shard_epoch


def session(world: World, number: int) -> SessionOpened:
    """Opened under the epoch that stands."""
    epoch = world.scene.registry.lease(Resource(role=Role.SESSION, number=number)).epoch
    opened = world.answer(OpenSession(op=0, shard=number, epoch=epoch, fresh_key=KEY))
    assert isinstance(opened, SessionOpened)
    return opened


def redone(plan: BumpPlan) -> list[tuple[int, int, int]]:
    return [one for one in plan.redo if one[1] != one[2]]


def test_a_second_bump_lets_fanout_dispatch_nothing_again(world: World) -> None:
    """Receipts of what the first one settled name offsets of a log that is gone."""
    stood = lose_dispatches(world)
    for number in stood:
        world.carry_out(bump(world, number).applied())
    for number in stood:
        again = world.carry_out(bump(world, number, force=True).planned())
        assert (again.shard_epoch, again.new_shard_epoch) == (2, 3)
        assert redone(again) == []


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("kind", [AmendSource, TrimMailbox, BumpShard, RestartProjection])
def test_a_bump_cut_off_anywhere_is_finished_by_the_next(
    world: World, kind: type, carried_out: bool
) -> None:
    """The first request of this kind gets no answer; nobody knows whether it was carried out."""
    (number, *_) = lose_dispatches(world)
    left = [kind]

    def fate(request: Any) -> Any:
        if type(request) not in left:
            return None
        left.clear()
        if carried_out:
            world.answer(request)
        return Unknown(op=0)

    world.fate = fate
    try:
        world.carry_out(bump(world, number).applied())
    except NotMended:
        if not world.carry_out(bump(world, number).planned()).whole:
            assert world.carry_out(bump(world, number).applied()).applied
    assert world.carry_out(bump(world, number).planned()).whole
    assert epochs(world, number) == (2, 2), "and not once more"


def test_a_session_that_alone_had_read_what_is_lost_is_seen(world: World) -> None:
    """Its mailbox was behind: by that one's position nothing is missing, and the session would stand still for ever."""
    number = max(range(world.shards()), key=lambda one: log_end(world, one))
    partition = world.scene.log.partitions[Topic.DISPATCH, number]
    assert world.carry_out(bump(world, number).planned()).whole
    epoch = world.scene.registry.lease(Resource(role=Role.SESSION, number=number)).epoch
    opened = session(world, number)
    assert opened.dispatch is not None
    beyond = Position(partition.topic_id, partition.end + 3, b"d" * 16)
    request = ProjectDispatches(
        op=0,
        shard=number,
        epoch=epoch,
        incarnation=opened.incarnation,
        from_offset=opened.dispatch.offset,
        to=beyond,
        rows=(),
    )
    assert isinstance(world.answer(request), DispatchesProjected)
    assert not world.carry_out(bump(world, number).planned()).whole
    assert world.carry_out(bump(world, number).applied()).applied
    assert epochs(world, number) == (2, 2)


def test_no_commit_under_way_comes_after_the_look_at_the_receipts(world: World) -> None:
    """It names what stood when it was sent: where the log lost that since, its receipt would pass for a dispatch that stands."""
    number = max(range(world.shards()), key=lambda one: log_end(world, one))
    log = world.scene.log.partitions[Topic.DISPATCH, number]
    (stored,) = log.slice(log.end - 1, 1, 1)
    read = read_dispatch(stored.value)
    assert isinstance(read, Dispatched)
    partition, low = read.dispatch.source_partition, read.dispatch.source_offset
    held = world.carry_out(source.evidence(partition))
    stood = world.carry_out(source.opened(partition, KEY))
    world.carry_out(source.put_back(partition, KEY, low))
    under_way = CommitSource(
        op=0,
        partition=partition,
        epoch=stood.epoch,
        incarnation=stood.incarnation,
        from_offset=low,
        to=stood.position,
        filter_epoch=stood.filter_epoch,
        receipts=tuple((at, encode_receipt(one)) for at, one in held.receipts.items() if at >= low),
        dead_letters=(),
    )
    world.scene.log.lose_tail(log, 1, refill=False)
    plan = world.carry_out(bump(world, number, force=True).applied())
    assert (partition, low, low) in plan.redo, "of what no receipt tells nothing is to be redone"
    answer = world.answer(under_way)
    assert isinstance(answer, Fenced)
    assert answer.epoch > stood.epoch
    assert world.carry_out(source.opened(partition, KEY)).position.offset == low


def log_end(world: World, number: int) -> int:
    return int(world.scene.log.partitions[Topic.DISPATCH, number].end)
