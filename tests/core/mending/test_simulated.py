"""The operator's procedures over what a simulated world left behind: real scripts, real codec, somebody else's driver.

The world has ended, so nobody materialises what is dispatched again: what is judged is the log, the receipts and the refusals.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.audit import OrphanKind, Verdict
from qim.core.contract.entities import NO_SOURCE
from qim.core.contract.logvalue import (
    Dispatched,
    Outboxed,
    barrier_value,
    read_dispatch,
    read_outbox,
)
from qim.core.mending.asking import Moved, NotMended
from qim.core.mending.bump import Bump
from qim.core.mending.dead_letters import listed, redriven
from qim.core.mending.dispatches import redispatched
from qim.core.mending.halts import Halt, halts
from qim.core.mending.outbox import OutboxRepair
from qim.core.ports.completion import Failed, FailReason, Fenced, Unknown
from qim.core.ports.log import Append, StoredRecord, Topic
from qim.core.ports.registry import Acquire, Denied, Release, Role
from qim.core.ports.store_operator import AmendSource
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from tests.core.mending.settled import KEY, World
from tests.core.newer_format import LATER_VERSION, NEWER


def test_a_dead_letter_of_a_world_is_found_read_and_dispatched(world: World) -> None:
    number, record = world.dead_lettered()
    assert OrphanKind.DEAD_LETTERED in {one.kind for one in world.audit().orphans}
    partitions = range(len(world.scene.log.partitions) - 2 * world.shards())
    (letter,) = world.carry_out(listed(partitions))
    assert (letter.partition, letter.offset, letter.state) == (number, record.offset, "readable")
    before = {key: one.end for key, one in world.scene.log.partitions.items()}
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=False))
    assert told.outcome == "would_dispatch"
    assert before == {key: one.end for key, one in world.scene.log.partitions.items()}
    (done,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert (done.outcome, done.shards) == ("dispatched", told.shards)
    for shard in done.shards:
        partition = world.scene.log.partitions[Topic.DISPATCH, shard]
        read = read_dispatch(partition.records[-1].value)
        assert isinstance(read, Dispatched)
        assert (read.dispatch.message_id.hex(), read.dispatch.source_partition) == (
            letter.message_id,
            NO_SOURCE,
        )
    after = world.audit()
    assert OrphanKind.DEAD_LETTERED not in {one.kind for one in after.orphans}
    assert after.verdict is not Verdict.ORPHANS, after.orphans


def test_a_letter_under_a_higher_barrier_is_nothing_to_deliver(world: World) -> None:
    number, record = world.dead_lettered()
    lease = world.scene.registry.lease(
        next(
            one
            for one in world.scene.registry.leases
            if one.role is Role.WRITER and one.number == number
        )
    )
    lease.barriers.append((1 << 63, record.offset - 1))
    (letter,) = world.carry_out(listed([number]))
    # A barrier can't stand before the first offset of all.
    assert letter.state == ("ineffective" if record.offset else "readable")
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert told.outcome == ("ineffective" if record.offset else "dispatched")


def test_an_append_of_unknown_outcome_is_repeated_and_a_store_that_fails_says_what_to_do(
    world: World,
) -> None:
    number, _ = world.dead_lettered()
    (letter,) = world.carry_out(listed([number]))
    lost = [True]

    def fate(request: Any) -> Any:
        return Unknown(op=0) if isinstance(request, Append) and lost.pop() else None

    world.fate = lambda request: fate(request) if lost else None
    (done,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert done.outcome == "dispatched"
    world.fate = lambda request: Failed(op=0, why=FailReason.UNREACHABLE)
    with pytest.raises(NotMended, match="unreachable"):
        world.carry_out(listed([number]))
    world.fate = lambda request: Unknown(op=0)
    with pytest.raises(NotMended, match="Run it again"):
        world.carry_out(listed([number]))


def test_what_the_dispatch_log_lost_is_dispatched_once_a_record(world: World) -> None:
    """Every dispatch of one message is garbled: one order mends all its shards."""
    for (topic, _), partition in world.scene.log.partitions.items():
        records = [one for one in partition.records if isinstance(read_outbox(one.value), Outboxed)]
        if topic is Topic.OUTBOX and records:
            wanted = records[0].key
    for (topic, _), partition in world.scene.log.partitions.items():
        for at, one in enumerate(partition.records):
            if topic is Topic.DISPATCH and one.key == wanted:
                partition.records[at] = replace(one, value=b"\x01\xff")
    orphans = world.audit().orphans
    assert OrphanKind.RECORD_WITHOUT_DISPATCH in {one.kind for one in orphans}
    (done,) = world.carry_out(redispatched(orphans, world.shards(), KEY, apply=True))
    assert (done.outcome, done.message_id) == ("dispatched", wanted.hex())
    left = {one.kind for one in world.audit().orphans if one.partition >= 0}
    assert OrphanKind.RECORD_WITHOUT_DISPATCH not in left


def test_a_whole_world_has_nothing_to_mend_and_a_held_lease_is_named(world: World) -> None:
    partitions = len(world.scene.log.partitions) - 2 * world.shards()
    more: dict[str, Any] = {"owner": "op", "address": "op", "fresh_key": KEY}
    for number in range(partitions):
        repair = OutboxRepair(number, world.shards(), tiered=True, **more)
        assert world.carry_out(repair.planned()).nothing()
        assert world.carry_out(repair.applied()).nothing()
    bump = Bump(0, partitions, shard_count=world.shards(), **more)
    assert world.carry_out(bump.planned()).whole
    with pytest.raises(NotMended, match="nothing is to be mended"):
        world.carry_out(bump.applied())

    def held(request: Any) -> Any:
        if isinstance(request, Acquire):
            return Denied(op=0, resource=request.resource, owner="mailbox-7", remaining_ms=4_000)
        return None

    world.fate = held
    with pytest.raises(NotMended, match="held by mailbox-7"):
        world.carry_out(bump.applied())


def test_a_lease_is_given_back_when_the_work_is_refused(world: World) -> None:
    partitions = len(world.scene.log.partitions) - 2 * world.shards()
    more: dict[str, Any] = {"owner": "op", "address": "op", "fresh_key": KEY}
    bump = Bump(0, partitions, shard_count=world.shards(), **more)
    with pytest.raises(NotMended):
        world.carry_out(bump.applied())
    taken = [one.resource for one in world.asked if isinstance(one, Acquire)]
    given = [lease for one in world.asked if isinstance(one, Release) for lease, _ in one.leases]
    assert sorted(taken) == sorted(given)


# ------------------------------------------------------------ letters of every kind


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (b"\x01\xff", "undecodable"),
        (NEWER, "newer_format"),
        (barrier_value(3), "barrier"),
    ],
)
def test_what_can_not_be_dispatched_says_why(world: World, value: bytes, state: str) -> None:
    world.spoil(b"ZADD", b"fd:" + bytes(4), b"0", (1 << 40).to_bytes(8, "big") + value)
    (letter,) = [one for one in world.carry_out(listed([0])) if one.offset == 1 << 40]
    assert letter.state == state
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert told.outcome == state
    assert not [one for one in world.asked if isinstance(one, Append)]


def test_a_version_the_store_does_not_have_is_waited_for_by_a_person(world: World) -> None:
    number, _ = world.dead_lettered()
    (letter,) = world.carry_out(listed([number]))

    def fate(request: Any) -> Any:
        if isinstance(request, ReadVersions):
            return VersionsRead(op=0, versions=(None,), applied=(0,))
        return None

    world.fate = fate
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    asked = [one for one in world.asked if isinstance(one, ReadVersions)]
    assert told.outcome == ("version_missing" if asked else "dispatched")


def test_who_moves_the_checkpoint_meanwhile_makes_us_look_again(world: World) -> None:
    number, _ = world.dead_lettered()
    (letter,) = world.carry_out(listed([number]))
    moves = [Fenced(op=0, epoch=0)] * 2

    def fate(request: Any) -> Any:
        return moves.pop() if isinstance(request, AmendSource) and moves else None

    world.fate = fate
    (done,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert (done.outcome, moves) == ("dispatched", [])
    world.fate = lambda request: Fenced(op=0, epoch=9) if isinstance(request, AmendSource) else None
    with pytest.raises(Moved):
        world.carry_out(redriven([letter], world.shards(), KEY, apply=True))


# ------------------------------------------------------------ what stands before a newer format


def put(world: World, topic: Topic, number: int, value: bytes) -> int:
    """One more record that nobody of the world has fetched; its offset."""
    partition = world.scene.log.partitions[topic, number]
    offset = partition.end
    partition.records.append(StoredRecord(offset=offset, append_time=0, key=b"", value=value))
    return offset


def test_a_record_of_a_newer_format_is_found_where_a_consumer_stands_before_it(
    world: World,
) -> None:
    partitions = range(len(world.scene.log.partitions) - 2 * world.shards())
    shards = range(world.shards())
    assert world.carry_out(halts(partitions, shards, tiered=True)) == (), "their logs end there"
    for topic, number in ((Topic.OUTBOX, 0), (Topic.DISPATCH, 1)):
        put(world, topic, number, b"hello stranger")
        assert world.carry_out(halts(partitions, shards, tiered=True)) == ()
        del world.scene.log.partitions[topic, number].records[-1]
    outbox = put(world, Topic.OUTBOX, 0, NEWER)
    dispatch = put(world, Topic.DISPATCH, 1, NEWER)
    put(world, Topic.OUTBOX, 0, NEWER)
    of_outbox = {"topic": Topic.OUTBOX, "number": 0, "offset": outbox}
    told: dict[str, Any] = {"size_bytes": len(NEWER), "version": LATER_VERSION}
    assert world.carry_out(halts(partitions, shards, tiered=True)) == (
        Halt(consumer="fanout", **of_outbox, **told),
        Halt(consumer="archiver", **of_outbox, **told),
        Halt(consumer="mailbox", topic=Topic.DISPATCH, number=1, offset=dispatch, **told),
    )
    (fanout,) = world.carry_out(halts(partitions, (), tiered=False))
    assert fanout.consumer == "fanout"


def test_what_halts_fanout_is_listed_beside_the_letters_and_not_redriven(world: World) -> None:
    offset = put(world, Topic.OUTBOX, 0, NEWER)
    (letter,) = world.carry_out(listed([0]))
    assert (letter.state, letter.offset, letter.size_bytes) == ("halting", offset, len(NEWER))
    assert f"format {LATER_VERSION}" in letter.detail
    (told,) = world.carry_out(redriven([letter], world.shards(), KEY, apply=True))
    assert told.outcome == "halting"
    assert not [one for one in world.asked if isinstance(one, Append)]
