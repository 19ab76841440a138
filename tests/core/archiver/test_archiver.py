"""HistoryArchiver by hand: batches, positions, orders without an answer (docs: pipeline §5)."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.archiver import ArchiverConfig, HistoryArchiver
from qim.core.archiver.vocabulary import SEQ_REUSED
from qim.core.contract.entities import RetentionClass
from qim.core.contract.invariants import SideStage
from qim.core.ports.archive import ReadArchivedConversations, WriteArchive
from qim.core.ports.completion import Fenced, StoreReset, StoreRole
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.log import Fetch, ReadEnds
from qim.core.ports.registry import ReadLease, Resource, Role
from qim.core.ports.store_history import CommitArchive, OpenArchive
from qim.core.retention import FOREVER_MS, RetentionPolicy
from tests.core.archiver.scene import (
    CONFIG,
    DAY_MS,
    TOPIC,
    WALL,
    Outbox,
    Scene,
    benign,
    failed,
    filled,
    running,
    unknown,
)
from tests.core.newer_format import NEWER, halted, told

# ------------------------------------------------------------ the plain way


def test_records_are_archived_before_the_position_moves() -> None:
    scene = Scene(filled(3))
    scene.grant()
    for kind in (OpenArchive, ReadArchivedConversations, ReadEnds, ReadLease, Fetch):
        (effect,) = scene.queue
        assert type(effect) is kind
        scene.queue.clear()
        scene.give(scene.answer(effect))
    assert scene.archiver.serving() == 1
    assert not scene.archiver.idle()
    (write,) = scene.taken(WriteArchive)
    assert (len(write.rows), write.through, write.traces) == (3, 3, (1, 2, 3))
    assert scene.taken(CommitArchive) == []
    assert scene.stages == [], "not before the archive has confirmed"
    scene.give(scene.answer(write))
    assert scene.stages == [(trace, SideStage.ARCHIVED) for trace in (1, 2, 3)]
    (commit,) = scene.taken(CommitArchive)
    assert (commit.from_offset, commit.to.offset, commit.to.topic_id) == (0, 3, TOPIC)
    scene.give(scene.answer(commit))
    assert scene.archiver.idle(), "a parked fetch doesn't count"
    assert (scene.offsets(), scene.watermark(), scene.rows.positions) == ([0, 1, 2], 3, {0: 3})


def test_every_try_to_open_brings_another_key() -> None:
    scene = Scene(filled(1))
    scene.grant()
    keys: list[bytes] = []
    openers: list[bytes] = []
    for outcome in (unknown, failed, unknown):
        (opening,) = scene.taken(OpenArchive)
        keys.append(opening.fresh_key)
        openers.append(opening.opener)
        scene.give(outcome(opening.op))
        scene.tick(2_000)
    assert len(set(keys)) == 3, "the same entropy each time"
    assert len(openers[0]) == 16 and openers == openers[:1] * 3


def test_rows_are_what_the_log_holds() -> None:
    scene = running(filled(2))
    first, second = scene.archived()
    assert (first.conversation_seq, second.conversation_seq) == (1, 1)
    assert first.stored == scene.outboxes[0].records[0].value[10:]
    assert first.message_id == scene.outboxes[0].records[0].key
    assert first.retained_until == WALL + 1 + CONFIG.retention.default_ms


@pytest.mark.parametrize(
    ("retention_class", "tenant", "until"),
    [
        (RetentionClass.DEFAULT, "big", 30 * DAY_MS),
        (RetentionClass.EPHEMERAL, "big", DAY_MS),
        (RetentionClass.TENANT_CUSTOM, "big", 400 * DAY_MS),
        (RetentionClass.TENANT_CUSTOM, "other", 30 * DAY_MS),
        (RetentionClass.COMPLIANCE_HOLD, "big", None),
    ],
)
def test_retention_by_class(retention_class: int, tenant: str, until: int | None) -> None:
    outbox = Outbox()
    outbox.message(1, retention_class=retention_class, tenant_id=tenant)
    policy = RetentionPolicy(tenants=(("big", 400 * DAY_MS),))
    scene = running(outbox, config=ArchiverConfig(retention=policy))
    assert scene.archived()[0].retained_until == (FOREVER_MS if until is None else WALL + 1 + until)


def test_batches_are_bounded_by_records_and_by_bytes() -> None:
    config = ArchiverConfig(batch_rows_max=4)
    scene = running(filled(10), config=config)
    assert [len(write.rows) for write in scene.written] == [4, 4, 2]
    assert [write.through for write in scene.written] == [4, 8, 10]
    outbox = Outbox()
    for number in range(1, 6):
        outbox.message(number, body=b"x" * 300)
    scene = running(outbox, config=ArchiverConfig(batch_bytes_max=700))
    assert [len(write.rows) for write in scene.written] == [1, 1, 1, 1, 1]
    scene = running(outbox, config=ArchiverConfig(batch_bytes_max=1_200))
    assert [len(write.rows) for write in scene.written] == [2, 2, 1]
    for wrong in (0, 4_097):
        with pytest.raises(AssertionError):
            HistoryArchiver(ArchiverConfig(batch_rows_max=wrong), choose=benign)


def test_the_window_bounds_what_is_fetched() -> None:
    config = ArchiverConfig(window_records_max=6, fetch_records_max=4, batch_rows_max=2)
    scene = Scene(filled(20), config=config)
    scene.grant()
    while not scene.taken(WriteArchive):
        effect = scene.queue.pop(0)
        scene.give(scene.answer(effect))
    asked = []
    while (fetches := scene.taken(Fetch)) != []:
        asked += [(fetch.offset, fetch.limit) for fetch in fetches]
        scene.give(*[scene.answer(fetch) for fetch in fetches])
    assert asked == [(4, 2)], "no more while six wait"
    small = ArchiverConfig(window_bytes_max=1)
    scene = Scene(filled(20), config=small)
    scene.grant()
    while not (writes := scene.taken(WriteArchive)):
        scene.give(scene.answer(scene.queue.pop(0)))
    assert scene.taken(Fetch) == []
    scene.give(scene.answer(writes[0]))
    assert len(scene.taken(Fetch)) == 1


def test_partitions_are_apart() -> None:
    scene = running(filled(3), filled(5))
    assert (scene.watermark(0), scene.watermark(1)) == (3, 5)
    scene.lose(0)
    scene.outboxes[0].message(9)
    scene.outboxes[1].message(9)
    scene.run()
    assert (scene.watermark(0), scene.watermark(1), scene.archiver.serving()) == (3, 6, 1)


def test_barriers_and_ineffective_records_only_move_the_position() -> None:
    outbox = Outbox()
    outbox.message(1, epoch=1)
    outbox.barrier(5)
    outbox.message(2, epoch=4)
    outbox.message(3, epoch=5)
    outbox.barrier(3)
    scene = running(outbox)
    assert (scene.offsets(), scene.watermark()) == ([0, 3], 5)
    assert scene.hot.position[0][1] == 5, "the filter as of the position"
    scene.start()
    scene.grant()
    outbox.message(4, epoch=4)
    scene.run()
    assert (scene.offsets(), scene.watermark()) == ([0, 3], 6)
    assert scene.written[-1].rows == () and scene.written[-1].through == 6


def test_a_newer_format_waits() -> None:
    outbox = filled(2)
    outbox.append(NEWER)
    outbox.message(3)
    scene = running(outbox)
    assert (scene.offsets(), scene.watermark()) == ([0, 1], 2)
    assert scene.counts["archiver_newer_format", "0"] == 1
    assert scene.warned == [told("outbox", 0, 2)]
    assert halted(scene.archiver.gauges(scene.now)) == {"0": 1}
    assert scene.taken(Fetch) == [] and scene.archiver.idle()
    assert scene.violations == []


def test_bytes_nobody_can_read_are_skipped_and_counted() -> None:
    outbox = filled(1)
    outbox.append(b"\1\1" + b"\0" * 8 + b"nonsense" * 9)
    outbox.message(2)
    scene = running(outbox)
    assert (scene.offsets(), scene.watermark()) == ([0, 2], 3)
    assert scene.counts["archiver_undecodable", "0"] == 1


def test_a_reused_seq_is_a_violation_and_both_rows_stand() -> None:
    outbox = filled(1)
    outbox.seqs.clear()
    outbox.message(3)
    scene = running(outbox)
    assert [violation.check for violation in scene.violations] == [SEQ_REUSED]
    assert (scene.offsets(), scene.watermark()) == ([0, 1], 2)


# ------------------------------------------------------------ answers that are none


@pytest.mark.parametrize("how", [failed, unknown])
@pytest.mark.parametrize(
    "kind",
    [
        OpenArchive,
        ReadArchivedConversations,
        ReadEnds,
        ReadLease,
        Fetch,
        WriteArchive,
        CommitArchive,
    ],
)
def test_every_order_is_given_again(kind: type, how: Any) -> None:
    scene = Scene(filled(3))
    scene.grant()
    for attempt in range(1, 4):
        while not any(type(effect) is kind for effect in scene.queue):
            scene.give(scene.answer(scene.queue.pop(0)))
        scene.refuse(kind, how)
        if kind is not Fetch:
            assert not any(type(effect) is kind for effect in scene.queue), "only after a while"
        at = scene.archiver.deadline()
        assert at is not None and at == scene.now + 50 * 2 ** (attempt - 1)
        scene.now = at
        scene.give()
    scene.settle()
    assert (scene.offsets(), scene.watermark(), scene.violations) == ([0, 1, 2], 3, [])


def test_an_unknown_write_is_written_again_and_nothing_behind_it() -> None:
    scene = Scene(filled(8), config=ArchiverConfig(batch_rows_max=3))
    scene.grant()
    while not (writes := scene.taken(WriteArchive)):
        scene.give(scene.answer(scene.queue.pop(0)))
    scene.answer(writes[0])
    scene.give(unknown(writes[0].op))
    scene.tick(49)
    assert scene.taken(WriteArchive) == []
    scene.tick(1)
    (again,) = scene.taken(WriteArchive)
    assert replace(again, op=0) == replace(writes[0], op=0)
    scene.give(scene.answer(again))
    scene.run()
    assert (len(scene.archived()), scene.watermark()) == (8, 8)


def test_while_a_commit_is_in_flight_writing_goes_on() -> None:
    scene = Scene(filled(6), config=ArchiverConfig(batch_rows_max=2))
    scene.grant()
    commits: list[CommitArchive] = []
    while scene.rows.positions.get(0, 0) < 6:
        commits += scene.taken(CommitArchive)
        effect = scene.queue.pop(0)
        scene.give(scene.answer(effect))
    commits += scene.taken(CommitArchive)
    assert [commit.to.offset for commit in commits] == [2]
    scene.give(scene.answer(commits[0]))
    (rest,) = scene.taken(CommitArchive)
    assert (rest.from_offset, rest.to.offset) == (2, 6)


def test_fenced_and_reset_want_a_fresh_epoch_once() -> None:
    for refusal in (
        lambda op: Fenced(op=op, epoch=70),
        lambda op: StoreReset(op=op, store=StoreRole.MESSAGE),
    ):
        scene = Scene(filled(3))
        scene.grant()
        while not (commits := scene.taken(CommitArchive)):
            scene.give(scene.answer(scene.queue.pop(0)))
        fetch = scene.taken(Fetch)
        scene.give(refusal(commits[0].op), StoreReset(op=None, store=StoreRole.MESSAGE))
        assert [want.above for want in scene.wanted] in ([70], [0])
        assert scene.archiver.serving() == 0
        scene.give(*[scene.answer(one) for one in fetch])
        assert scene.queue == [], "what is in flight for the past changes nothing"
        scene.run()
        assert (scene.watermark(), scene.archiver.serving()) == (3, 1)


def test_another_store_s_reset_and_other_roles_are_nothing_to_it() -> None:
    scene = running(filled(1))
    scene.give(StoreReset(op=None, store=StoreRole.MAILBOX))
    other = Resource(role=Role.FANOUT, number=0)
    scene.give(
        LeaseGone(resource=other),
        LeaseHeld(resource=other, epoch=9, barrier_epoch=0, barrier_offset=-1, wall=WALL),
    )
    assert (scene.wanted, scene.archiver.serving()) == ([], 1)


def test_an_epoch_below_the_fence_opens_nothing() -> None:
    scene = Scene(filled(1))
    scene.hot.fence[0] = 40
    scene.grant()
    scene.run()
    assert (scene.watermark(), scene.hot.fence[0]) == (1, 41)


def test_a_zombie_s_commit_is_fenced() -> None:
    scene = Scene(filled(2))
    scene.grant()
    while not (commits := scene.taken(CommitArchive)):
        scene.give(scene.answer(scene.queue.pop(0)))
    zombie = commits[0]
    scene.start()
    scene.grant()
    scene.outboxes[0].message(7)
    scene.run()
    assert scene.watermark() == 3
    assert type(scene.hot.commit(zombie)) is Fenced
    assert scene.watermark() == 3
