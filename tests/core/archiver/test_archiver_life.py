"""HistoryArchiver's life by hand: where it starts, what it expires, how it drains (docs: pipeline §5)."""

from typing import Any

import pytest
from msgspec.structs import replace

from qim.core.archiver import ArchiverConfig
from qim.core.archiver.vocabulary import ARCHIVE_HOLE, POSITION_MISMATCH
from qim.core.contract.entities import RetentionClass
from qim.core.ports.archive import ExpireArchive, WriteArchive
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.local import DrainRequested
from qim.core.ports.log import Fetch, OutOfRange
from qim.core.retention import RetentionPolicy
from tests.core.archiver.scene import (
    CONFIG,
    DAY_MS,
    TOPIC,
    WALL,
    Outbox,
    Scene,
    failed,
    filled,
    running,
    unknown,
)

# ------------------------------------------------------------ where it starts


def test_a_restart_goes_on_at_the_position() -> None:
    scene = running(filled(4))
    scene.written.clear()
    scene.start()
    scene.grant()
    scene.outboxes[0].message(9)
    scene.run()
    assert [row.outbox_offset for write in scene.written for row in write.rows] == [4]


def test_a_store_that_came_back_empty_is_told_again() -> None:
    scene = running(filled(4))
    scene.hot.empty()
    scene.give(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.run()
    assert (scene.watermark(), scene.offsets(), scene.violations) == (4, [0, 1, 2, 3], [])


def test_after_retention_an_empty_store_starts_at_the_log_s_start_with_its_barrier() -> None:
    outbox = filled(2)
    outbox.barrier(5)
    outbox.message(3, epoch=5)
    scene = running(outbox)
    scene.barriers[0] = [(5, 2)]
    outbox.retain(3)
    outbox.message(8, epoch=4)
    outbox.message(4, epoch=5)
    scene.hot.empty()
    scene.give(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.run()
    assert (scene.watermark(), scene.offsets(), scene.violations) == (6, [0, 1, 3, 5], [])


@pytest.mark.parametrize("held", [False, True])
def test_a_hole_stops_the_partition_and_names_the_range(held: bool) -> None:
    scene = running(filled(6))
    scene.outboxes[0].retain(4)
    scene.rows.positions[0] = 2
    if not held:
        scene.hot.empty()
    scene.start()
    scene.grant()
    scene.run()
    (violation,) = scene.violations
    assert (violation.check, "[2, 4)" in violation.detail) == (ARCHIVE_HOLE, True)
    assert (scene.archiver.serving(), scene.archiver.idle(), scene.queue) == (0, True, [])


def test_a_lost_archive_file_is_filled_up_before_the_watermark_moves() -> None:
    outbox = filled(3)
    outbox.barrier(5)
    outbox.message(7, epoch=4)
    outbox.message(8, epoch=5)
    scene = running(outbox, config=ArchiverConfig(batch_rows_max=2))
    scene.rows.conversations.clear()
    scene.rows.facts.clear()
    scene.rows.positions.clear()
    scene.hot.moves.clear()
    scene.start()
    scene.grant()
    outbox.message(9, epoch=5)
    scene.run()
    assert (scene.offsets(), scene.hot.moves) == ([0, 1, 2, 5, 6], [(0, 7)])
    assert scene.hot.position[0][1] == 5
    assert scene.epoch == 2, "no position was ordered that the store had to fence"


def test_positions_that_are_not_this_log_s_stop_it() -> None:
    def spoil_topic(scene: Scene) -> None:
        scene.outboxes[0].topic_id = b"n" * 16

    def spoil_record(scene: Scene) -> None:
        last = scene.outboxes[0].records[-1]
        scene.outboxes[0].records[-1] = replace(last, value=last.value + b"!")

    def spoil_end(scene: Scene) -> None:
        del scene.outboxes[0].records[3:]

    def spoil_archive(scene: Scene) -> None:
        scene.hot.empty()
        scene.rows.positions[0] = 9

    for spoil in (spoil_topic, spoil_record, spoil_end, spoil_archive):
        scene = running(filled(4))
        spoil(scene)
        scene.start()
        scene.grant()
        scene.run()
        assert [v.check for v in scene.violations] == [POSITION_MISMATCH], spoil.__name__
        assert scene.archiver.serving() == 0


def test_a_log_that_changes_under_it_stops_it() -> None:
    scene = running(filled(2))
    scene.outboxes[0].topic_id = b"n" * 16
    scene.outboxes[0].message(3)
    scene.run()
    assert [v.check for v in scene.violations] == [POSITION_MISMATCH]
    scene = running(filled(2))
    scene.outboxes[0].message(3)
    scene.outboxes[0].message(4)
    scene.outboxes[0].retain(4)
    scene.run()
    assert [v.check for v in scene.violations] == [POSITION_MISMATCH]
    scene = running(filled(2))
    scene.outboxes[0].message(3)
    (fetch,) = scene.taken(Fetch)
    answer = scene.answer(fetch)
    scene.give(replace(answer, records=(replace(answer.records[0], offset=5),)))
    assert [v.check for v in scene.violations] == [POSITION_MISMATCH]


def test_a_log_that_grew_again_over_what_was_read_stops_the_partition() -> None:
    scene = running(filled(2))
    log = scene.outboxes[0]
    log.records[-1] = replace(log.records[-1], value=b"another")
    log.message(3)
    scene.run()
    assert [v.check for v in scene.violations] == [POSITION_MISMATCH]
    assert "OTHER_RECORD" in scene.violations[0].detail


@pytest.mark.parametrize("empty", [False, True])
def test_retention_between_ends_and_predecessor_is_judged_again(empty: bool) -> None:
    scene = running(filled(4))
    scene.start()
    scene.grant()
    while not (fetch := scene.taken(Fetch)):
        scene.give(scene.answer(scene.queue.pop(0)))
    assert (fetch[0].offset, fetch[0].limit) == (3, 1)
    scene.outboxes[0].retain(4)
    if empty:
        scene.outboxes[0].start = 3
        scene.give(replace(scene.answer(fetch[0]), records=()))
        scene.outboxes[0].start = 4
    else:
        gone = OutOfRange(op=fetch[0].op, topic_id=TOPIC, start=4, end=4)
        scene.give(gone)
    scene.run()
    assert (scene.archiver.serving(), scene.violations) == (1, [])


def test_a_predecessor_that_could_not_be_read_is_asked_for_again() -> None:
    scene = running(filled(4))
    scene.start()
    scene.grant()
    while not (fetch := scene.taken(Fetch)):
        scene.give(scene.answer(scene.queue.pop(0)))
    scene.give(failed(fetch[0].op))
    scene.settle()
    assert (scene.archiver.serving(), scene.violations) == (1, [])


# ------------------------------------------------------------ expiry, drain, gauges


def expiring(age_ms: int) -> Scene:
    outbox = Outbox()
    for number in range(1, 6):
        outbox.message(number, retention_class=RetentionClass.EPHEMERAL)
    outbox.message(6, retention_class=RetentionClass.COMPLIANCE_HOLD)
    config = ArchiverConfig(
        retention=RetentionPolicy(ephemeral_ms=1_000), expire_rows_max=2, clock_apart_max_ms=DAY_MS
    )
    scene = Scene(outbox, config=config)
    scene.wall = WALL + age_ms
    scene.start()
    scene.grant()
    scene.run()
    return scene


def test_expiry_goes_on_until_nothing_is_due() -> None:
    scene = expiring(10_000)
    scene.tick(CONFIG.expire_every_ms - 1)
    assert scene.taken(ExpireArchive) == []
    scene.tick(1)
    removed = []
    while asked := scene.taken(ExpireArchive):
        assert asked[0].before_wall == WALL + 10_000 + CONFIG.expire_every_ms
        removed.append(scene.answer(asked[0]).removed)
        scene.rows.expire(0, 0)
        scene.give(replace(scene.answer(asked[0]), removed=removed[-1], more=len(removed) < 3))
        scene.give()
    assert len(removed) == 3
    assert [row.outbox_offset for row in scene.archived()] == [5]
    assert scene.archiver.deadline() == scene.now + CONFIG.expire_every_ms


@pytest.mark.parametrize("how", [failed, unknown])
def test_expiry_without_an_answer_is_asked_again(how: Any) -> None:
    scene = expiring(10_000)
    scene.tick(CONFIG.expire_every_ms)
    for wait in (50, 100, 200):
        scene.refuse(ExpireArchive, how)
        assert scene.archiver.deadline() == scene.now + wait
        scene.tick(wait)
    assert len(scene.taken(ExpireArchive)) == 1


@pytest.mark.parametrize("age_ms", [2 * DAY_MS, -2 * DAY_MS])
def test_no_expiry_while_clocks_are_far_apart(age_ms: int) -> None:
    scene = expiring(age_ms)
    scene.tick(3 * CONFIG.expire_every_ms)
    assert scene.taken(ExpireArchive) == []


def test_no_expiry_by_who_archives_nothing() -> None:
    scene = Scene(Outbox())
    scene.tick(3 * CONFIG.expire_every_ms)
    assert scene.queue == []


def test_a_drain_finishes_and_fetches_no_more() -> None:
    scene = Scene(filled(6), config=ArchiverConfig(batch_rows_max=2, fetch_records_max=4))
    scene.grant()
    while not any(isinstance(effect, WriteArchive) for effect in scene.queue):
        scene.give(scene.answer(scene.queue.pop(0)))
    scene.give(DrainRequested())
    assert not scene.archiver.idle()
    fetches = scene.taken(Fetch)
    scene.run()
    assert (scene.watermark(), scene.archiver.idle()) == (4, True)
    scene.give(*[failed(fetch.op) for fetch in fetches])
    scene.tick(10_000)
    assert scene.queue == []


def test_a_drain_during_expiry_ends_with_its_answer() -> None:
    scene = expiring(10_000)
    scene.tick(CONFIG.expire_every_ms)
    scene.give(DrainRequested())
    assert not scene.archiver.idle()
    (asked,) = scene.taken(ExpireArchive)
    scene.give(scene.answer(asked))
    assert scene.archiver.idle() and scene.archiver.deadline() is None


def test_gauges_name_lag_and_window() -> None:
    scene = running(filled(3))
    scene.outboxes[0].message(4)
    scene.outboxes[0].message(5)
    (fetch,) = scene.taken(Fetch)
    scene.give(scene.answer(fetch))

    def gauges() -> dict[tuple[str, str], int]:
        return {(one.name, one.label): one.value for one in scene.archiver.gauges(scene.now)}

    assert gauges()["archiver_lag_records", "0"] == 2
    assert gauges()["queue_depth", "archiver.window"] == 2
    assert gauges()["queue_capacity", "archiver.window"] == scene.config.window_records_max
    scene.run()
    assert gauges()["archiver_lag_records", "0"] == 0
    assert gauges()["queue_depth", "archiver.window"] == 0
