"""What stands where an archiver had read others: which of it the archive lacks, and where nobody can say."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import pytest
from msgspec.structs import replace

from qim.core.contract.logvalue import Outboxed, read_outbox
from qim.core.mending import unarchived as module
from qim.core.mending.asking import NotMended
from qim.core.mending.outbox import OutboxRepair
from qim.core.mending.unarchived import Archived, refuse_hole, unarchived
from qim.core.ports.archive import ArchiveBodiesRead, ReadArchiveBodies
from qim.core.ports.log import EndsRead, Fetch, Fetched, StoredRecord, Topic
from qim.core.ports.store_history import ArchiveCommitted, ArchiveOpened, CommitArchive, OpenArchive
from qim.core.position import Verdict
from qim.sim.generate import generate
from qim.sim.run import run_scene
from qim.sim.scene import Kit
from tests.core.mending.settled import World
from tests.core.mending.test_outbox_repair import cut, repairing

FIRST: Final = 10
PARTITION: Final = 2
F: Final = 5
"""The greatest barrier that the archiver had passed; its position is 18, and the log ends at 20."""


Placed = dict[int, tuple[bytes, StoredRecord]]


@pytest.fixture(scope="module")
def placed(kit: Kit) -> Placed:
    """Ten records of a world, as if they stood at 10 to 19."""
    scene, _ = run_scene(generate(3, "calm"), kit)
    found: Placed = {}
    for (topic, _), partition in scene.log.partitions.items():
        for one in partition.records if topic is Topic.OUTBOX else ():
            entry = read_outbox(one.value)
            if isinstance(entry, Outboxed) and len(found) < 10:
                at = FIRST + len(found)
                found[at] = (entry.record.message_id, replace(one, offset=at))
    assert len(found) == 10
    return found


def again(
    placed: Placed,
    archive_lacks: Sequence[int],
    barriers: Sequence[tuple[int, int]],
    verdict: Verdict = Verdict.OTHER_RECORD,
) -> list[int] | None:
    """Offsets of what comes again, where the archive lacks these; None where it wasn't even asked."""
    lacks = {placed[at][0] for at in archive_lacks}
    names = {at: message_id for at, (message_id, _) in placed.items()}
    archived = Archived(offset=18, kept=18, verdict=verdict, filter_epoch=F)
    log = EndsRead(op=0, topic_id=b"t", start=FIRST, end=20)
    procedure = unarchived(PARTITION, archived, log, names, barriers)
    answer: ArchiveBodiesRead | Fetched | None = None
    try:
        while True:
            request = procedure.send(answer)
            if isinstance(request, Fetch):
                answer = fetched(placed, request)
                continue
            assert isinstance(request, ReadArchiveBodies)
            assert len(request.names) <= module.NAMES_PAGE
            stored = [None if name[2] in lacks else b"it" for name in request.names]
            answer = ArchiveBodiesRead(op=0, stored=tuple(stored))
    except StopIteration as done:
        return None if answer is None else list(done.value.values())


def fetched(placed: Placed, request: Fetch) -> Fetched:
    """Of a log that has only these."""
    span = range(request.offset, request.offset + request.limit)
    records = tuple(placed[at][1] for at in span if at in placed)
    return Fetched(op=0, topic_id=b"t", start=FIRST, end=20, records=records)


@pytest.mark.parametrize(
    ("archive_lacks", "barriers", "wanted"),
    [
        # opened anew at 14: all behind that barrier, and what is below the position alone
        ([14, 15, 17, 18, 19], [(9, F), (14, F + 1)], [14, 15, 17]),
        # one append before the barrier, of a writer that lived on
        ([12, 13, 15], [(9, F), (14, F + 1)], [12, 13, 15]),
        # what is older than a record that is archived was let go
        ([10, 12, 15], [(9, F), (14, F + 1)], [15]),
        # nobody has opened it since
        ([16, 17], [(9, F)], [16, 17]),
        ([10, 11, 16], [(9, F)], []),
        # a barrier behind the position says nothing of what stands below
        ([10, 15], [(9, F), (18, F + 1)], []),
        ([], [(9, F), (14, F + 1)], []),
    ],
)
def test_what_was_written_since_is_what_the_archive_lacks_there(
    placed: Placed,
    archive_lacks: list[int],
    barriers: list[tuple[int, int]],
    wanted: list[int],
) -> None:
    assert again(placed, archive_lacks, barriers) == wanted


def test_one_append_is_looked_for_before_the_barrier_and_no_more(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "APPEND_MOST", 2)
    monkeypatch.setattr(module, "NAMES_PAGE", 3)
    assert again(placed, range(10, 20), [(9, F), (14, F + 1)]) == [12, 13, 14, 15, 16, 17]


@pytest.mark.parametrize("verdict", [Verdict.TRUSTED, Verdict.BELOW_START])
def test_an_archive_whose_position_is_of_this_log_is_not_asked(
    placed: Placed, verdict: Verdict
) -> None:
    assert again(placed, range(10, 20), [(14, F + 1)], verdict) is None


# ------------------------------------------------------------ an archiver alone, in a settled world


def standing(world: World, **changed: Any) -> None:
    """The archiver's position is another one from now on, as if it had been written so."""

    def fate(request: Any) -> Any:
        if isinstance(request, CommitArchive):
            return ArchiveCommitted(op=0)
        if not isinstance(request, OpenArchive):
            return None
        opened = world.answer(request)
        assert isinstance(opened, ArchiveOpened) and opened.position is not None
        return replace(opened, position=replace(opened.position, **changed))

    world.fate = fate


def test_an_archive_below_the_start_of_the_log_is_refused_by_name(world: World) -> None:
    """No log has what it lacks: `nothing to do` would be a lie, and there is nothing to be done here."""
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    standing(world, offset=partition.start - 1)
    run: OutboxRepair = repairing(world, number)
    for procedure in (run.planned(), run.applied()):
        with pytest.raises(NotMended, match=f"the log begins at {partition.start}"):
            world.carry_out(procedure)


@pytest.mark.parametrize(
    ("offset", "kept", "is_one"),
    [
        (50, 50, False),  # retention has not come to it yet
        (30, 60, True),  # the hot store's position is below the start of the log
        (60, 30, True),  # an older copy of the archive has come back
        (60, 0, True),  # an empty one
        (60, 45, False),  # an older one that the log can still fill up
        (0, 30, True),  # the store is new
        (0, 0, False),  # nothing was ever archived
    ],
)
def test_what_neither_archive_nor_log_has_is_a_hole(offset: int, kept: int, is_one: bool) -> None:
    """As an archiver judges at its open: it stops there, and `nothing lost` would be a lie."""
    verdict = Verdict.BELOW_START if 0 < offset < 40 else Verdict.TRUSTED
    archived = Archived(offset=offset, kept=kept, verdict=verdict)
    log = EndsRead(op=0, topic_id=b"t", start=40, end=90)
    with pytest.raises(NotMended, match="is in neither") if is_one else nullcontext():
        refuse_hole(PARTITION, log, archived)


@pytest.mark.parametrize("begun_above", [False, True])
def test_an_archiver_alone_on_another_topic_is_put_on_this_one(
    world: World, begun_above: bool
) -> None:
    """``begun_above``: it had come less far in the other than where this one begins."""
    number = cut(world, 0)
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    stands = world.scene.archive.rows.positions[number]
    if begun_above:
        del partition.records[: -(stands // 2)]
        partition.start = partition.records[0].offset
        stands = partition.start - 1
    standing(world, topic_id=b"another topic...", offset=stands)
    plan = world.carry_out(repairing(world, number).planned())
    assert (plan.nothing(), plan.trusted) == (False, False)
    assert plan.differs_from == max(stands - 1, partition.start)
    done = world.carry_out(repairing(world, number).applied())
    assert (done.applied_repair, done.unarchived, done.republished) == (True, 0, 0)
    (put,) = [one for one in world.asked if isinstance(one, CommitArchive)]
    assert put.to.topic_id == partition.topic_id
    assert (put.from_offset, put.to.offset) == (stands, max(stands, partition.start))


def test_a_dead_letter_that_the_archive_has_is_no_reason_to_refuse(world: World) -> None:
    """It has no receipt, and is no pending record: that says nothing of the archive, which is asked itself."""
    number, _ = world.dead_lettered()
    partition = world.scene.log.partitions[Topic.OUTBOX, number]
    assert world.audit()
    del partition.records[-1:]
    done = world.carry_out(repairing(world, number).applied())
    assert (done.applied_repair, done.unarchived) == (True, 0)
