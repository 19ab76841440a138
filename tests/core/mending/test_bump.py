"""A mailbox shard begun anew, over what simulated worlds left behind: again, after a stop anywhere, and for its session alone."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.contract import routing
from qim.core.contract.entities import encode_receipt
from qim.core.contract.logvalue import Dispatched, read_dispatch
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.mending import source
from qim.core.mending.asking import NotMended
from qim.core.mending.bump import Bump, BumpPlan
from qim.core.ports.completion import Fenced, Unknown
from qim.core.ports.log import Append, Fetch, LogRecord, Position, Topic
from qim.core.ports.registry import RaiseEpoch, Resource, Role
from qim.core.ports.store_mailbox import ReadShardState, TrimMailbox
from qim.core.ports.store_operator import (
    AmendSource,
    BumpShard,
    ProjectionRestarted,
    RestartProjection,
)
from qim.core.ports.store_session import (
    DispatchesProjected,
    OpenSession,
    ProjectDispatches,
    SessionOpened,
)
from qim.core.ports.store_source import CommitSource, ReadSource
from tests.core.mending.settled import KEY, World


def bump(world: World, number: int, *, force: bool = False) -> Bump:
    partitions = len(world.scene.log.partitions) - 2 * world.shards()
    more: dict[str, Any] = {"owner": "op", "address": "op", "fresh_key": KEY}
    return Bump(number, partitions, shard_count=world.shards(), force=force, **more)


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


def test_a_copy_that_came_while_receipts_were_read_lowers_no_floor(world: World) -> None:
    """Fanout goes on for other shards' bumps: it stands behind the end that the log had when it was judged."""
    number = max(range(world.shards()), key=lambda one: log_end(world, one))
    stored = world.scene.log.partitions[Topic.DISPATCH, number].records[0]
    read = read_dispatch(stored.value)
    assert isinstance(read, Dispatched)
    partition, at = read.dispatch.source_partition, read.dispatch.source_offset
    left = [partition]

    def again() -> None:
        copy = LogRecord(key=stored.key, value=stored.value)
        append = Append(op=0, topic=Topic.DISPATCH, partition=number, epoch=0, records=(copy,))
        (place,) = world.answer(append).offsets
        receipt = world.carry_out(source.evidence(partition)).receipts[at]
        shards = tuple(
            replace(one, offset=place) if one.shard == number else one for one in receipt.shards
        )
        world.carry_out(source.put_receipts(partition, KEY, (replace(receipt, shards=shards),)))

    def fate(request: Any) -> Any:
        if isinstance(request, ReadSource) and request.partition in left:
            left.clear()
            again()
        if isinstance(request, Fetch) and request.topic is Topic.DISPATCH:
            # A page ends where it likes: here it is one record long.
            return world.answer(replace(request, limit=1))
        return None

    world.fate = fate
    world.carry_out(bump(world, number, force=True).applied())
    assert not left
    (bumping,) = [one for one in world.asked if isinstance(one, BumpShard)]
    assert bumping.unsettled == ()


@pytest.mark.parametrize("behind", [True, False])
def test_what_the_projection_had_not_read_is_in_the_lists_before_its_receipts_go(
    world: World, behind: bool
) -> None:
    """A device that rebuilds is done with the list as the bump leaves it: what fanout brings again comes after that."""
    (number, *_) = lose_dispatches(world)
    if behind:
        epoch = world.scene.registry.lease(Resource(role=Role.SESSION, number=number)).epoch
        incarnation = session(world, number).incarnation
        restart = RestartProjection(
            op=0, shard=number, epoch=epoch, incarnation=incarnation, shard_epoch=1
        )
        assert isinstance(world.answer(restart), ProjectionRestarted)
    world.carry_out(bump(world, number).applied())
    projecting = [one for one in world.asked if isinstance(one, ProjectDispatches)]
    given = {
        (row.user_id, row.conversation_id): row.conversation_seq
        for one in projecting
        for row in one.rows
    }
    wanted: dict[tuple[int, bytes], int] = {}
    for message in world.scene.history.oracle.messages.values():
        for user_id in message.audience:
            name = (user_id, message.record.conversation_id)
            if behind and routing.shard(user_id, world.shards()) == number:
                wanted[name] = max(wanted.get(name, 0), message.record.conversation_seq)
    assert given == wanted
    assert bool(wanted) is behind
    if behind:
        asked = [type(one) for one in world.asked]
        assert asked.index(ProjectDispatches) < asked.index(AmendSource)


def test_what_came_to_the_place_of_what_a_projection_had_read_is_in_the_lists(world: World) -> None:
    """It is read at that place never, and after the bump only where the log does not lose it again."""
    number = max(range(world.shards()), key=lambda one: log_end(world, one))
    log = world.scene.log.partitions[Topic.DISPATCH, number]
    (stored,) = log.slice(log.end - 1, 1, 1)
    read = read_dispatch(stored.value)
    assert isinstance(read, Dispatched)
    partition, at = read.dispatch.source_partition, read.dispatch.source_offset
    receipt = world.carry_out(source.evidence(partition)).receipts[at]
    shards = tuple(
        replace(one, offset=log.start) if one.shard == number else one for one in receipt.shards
    )
    world.carry_out(source.put_receipts(partition, KEY, (replace(receipt, shards=shards),)))
    world.carry_out(bump(world, number, force=True).applied())
    projecting = [one for one in world.asked if isinstance(one, ProjectDispatches)]
    given = [row.conversation_id for one in projecting for row in one.rows]
    assert read.dispatch.conversation_id in given


def test_what_a_projection_may_never_have_read_where_it_had_stood_is_in_the_lists(
    world: World,
) -> None:
    """It lagged when the log lost its tail, and read what stands there instead."""
    number = max(range(world.shards()), key=lambda one: log_end(world, one))
    records = world.scene.log.partitions[Topic.DISPATCH, number].records
    lost = read_dispatch(records[-1].value)
    assert isinstance(lost, Dispatched)
    records[-1] = replace(records[-1], value=records[0].value)
    world.carry_out(bump(world, number, force=True).applied())
    projecting = [one for one in world.asked if isinstance(one, ProjectDispatches)]
    given = [(row.conversation_id, row.conversation_seq) for one in projecting for row in one.rows]
    wanted = (lost.dispatch.conversation_id, lost.dispatch.conversation_seq)
    assert dict.fromkeys(given) == {wanted: None}


def test_a_log_that_is_made_anew_amid_a_bump_is_judged_again(world: World) -> None:
    """The shard would begin at an offset of the log before, and stand as it did; the run said that it was done."""
    number = max(range(world.shards()), key=lambda one: log_end(world, one))
    log = world.scene.log.partitions[Topic.DISPATCH, number]
    left = [RaiseEpoch]

    def fate(request: Any) -> None:
        if type(request) in left:
            left.clear()
            world.scene.log.recreate(log, 3)

    world.scene.log.lose_tail(log, 1, refill=False)
    world.fate = fate
    with pytest.raises(NotMended, match="run it again"):
        world.carry_out(bump(world, number, force=True).applied())
    assert not left
    assert epochs(world, number) == (1, 1)
    world.carry_out(bump(world, number, force=True).applied())
    assert epochs(world, number) == (2, 2)


def log_end(world: World, number: int) -> int:
    return int(world.scene.log.partitions[Topic.DISPATCH, number].end)
