"""A repair of which nobody knows how far it came, and then a dead writer's append: nobody may take that for one that means something."""

from typing import Any

import pytest

from qim.core.contract.logvalue import Outboxed, outbox_value, read_outbox
from qim.core.fanout.vocabulary import FanoutConfig
from qim.core.mending import looking
from qim.core.mending.asking import NotMended
from qim.core.mending.passed import barriers, passed_at
from qim.core.ports.completion import Unknown
from qim.core.ports.log import Append, LogRecord, Topic
from qim.core.ports.registry import Role
from qim.core.ports.store_history import ArchiveOpened, OpenArchive
from qim.core.ports.store_message import OpenShard, ShardOpened
from qim.core.ports.store_source import ReadSource
from tests.core.mending.settled import KEY, World
from tests.core.mending.test_outbox_repair import cut, repairing

LOST = 3


def test_positions_are_told_which_barriers_stand_below_them_in_the_log_as_it_is(
    world: World,
) -> None:
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    stood, dead = partition.end, epoch_of(world, Role.WRITER, number)
    last = read_outbox(partition.records[-1].value)
    assert isinstance(last, Outboxed)
    del partition.records[-LOST:]
    world.fate = done_and_unanswered(world)
    with pytest.raises(NotMended):
        world.carry_out(repairing(world, number).applied())
    world.fate = lambda request: None
    filled = epoch_of(world, Role.WRITER, number)
    assert partition.end == stood
    late = LogRecord(key=last.record.message_id, value=outbox_value(dead, last.stored))
    world.answer(Append(op=0, topic=Topic.OUTBOX, partition=number, epoch=dead, records=(late,)))
    assert world.carry_out(repairing(world, number).applied()).applied_repair
    opened = open_shard(world, number)
    assert (opened.applied, opened.filter_epoch) == (stood, filled)
    archived = open_archive(world, number)
    assert archived.position is not None
    assert (archived.position.offset, archived.filter_epoch) == (stood, filled)


def test_an_epoch_counts_for_what_stands_behind_its_barrier(world: World) -> None:
    number = cut(world, 0)
    standing = world.carry_out(barriers(number))
    for at, epoch in standing[1:]:
        assert passed_at(standing, at) < epoch == passed_at(standing, at + 1)
    assert passed_at((), 7) == 0


def test_dispatches_above_the_checkpoint_may_name_places_that_were_lost(world: World) -> None:
    """Fanout had appended them and not yet said so: nobody remembers how far it was, but its window has an end."""
    number = cut(world, LOST)
    plan = world.carry_out(repairing(world, number).applied())
    known = world.answer(ReadSource(op=0, partition=number, low=0, high=0, limit=1))
    (low, high) = known.lost[-1]
    assert low == plan.differs_from
    assert high == plan.checkpoint + FanoutConfig(shard_count=1).window_records_max


def done_and_unanswered(world: World) -> Any:
    """The first append to the outbox: it stands there, and nobody is told."""
    left = [1]

    def fate(request: Any) -> Any:
        if isinstance(request, Append) and request.topic is Topic.OUTBOX and left:
            left.pop()
            world.answer(request)
            return Unknown(op=0)
        return None

    return fate


def epoch_of(world: World, role: Role, number: int) -> int:
    leases = world.scene.registry.leases
    return next(
        lease.epoch for one, lease in leases.items() if (one.role, one.number) == (role, number)
    )


def open_shard(world: World, number: int) -> ShardOpened:
    epoch = epoch_of(world, Role.WRITER, number) + 1
    opened = world.answer(
        OpenShard(op=0, shard=number, epoch=epoch, fresh_key=looking.key_of(epoch, KEY))
    )
    assert isinstance(opened, ShardOpened)
    return opened


def open_archive(world: World, number: int) -> ArchiveOpened:
    epoch = epoch_of(world, Role.ARCHIVER, number) + 1
    opened = world.answer(
        OpenArchive(op=0, partition=number, epoch=epoch, fresh_key=looking.key_of(epoch, KEY))
    )
    assert isinstance(opened, ArchiveOpened)
    return opened
