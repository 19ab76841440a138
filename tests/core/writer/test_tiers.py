"""History over hot store and archive as one: pages across the seam, trims under a page, retention, pace of trimming."""

import pytest

from qim.core.contract.entities import MembershipOp, RetentionClass, decode_stored_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.params import DAY_MS, HOUR_MS
from qim.core.ports.archive import ReadArchive
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.store_history import TrimHot
from qim.core.ports.store_reads import ReadHistory
from qim.core.retention import FOREVER_MS, RetentionPolicy, retained_until
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, chat

OLDER, NEWER, AROUND = HistoryDirection
CHAT = chat(1, 2)
TIERED = WriterConfig(outbox_partition_count=1, tiered=True, trim_rows_max=4, history_rows_max=3)


def trimmed(count: int, keep: int, config: WriterConfig = TIERED) -> Scene:
    """A chat of ``count`` messages of which only the newest ``keep`` are hot."""
    scene = Scene(config)
    for _ in range(count - keep):
        scene.send(1, 2)
    scene.settle()
    scene.archive_to()
    scene.advance(config.hot_window_ms + 1)
    scene.settle()
    for _ in range(keep):
        scene.send(1, 2)
    scene.settle()
    for _ in range(20):
        due = scene.writer.deadline()
        assert due is not None
        scene.advance(max(0, due - scene.now))
        scene.settle()
        if hot_seqs(scene) == list(range(count - keep + 1, count + 1)):
            return scene
    raise AssertionError(hot_seqs(scene))


def hot_seqs(scene: Scene, conversation_id: bytes = CHAT) -> list[int]:
    """What stands in the hot store."""
    rows = scene.keyspace.dump().get(b"h:" + conversation_id)
    if rows is None:
        return []
    return sorted(int.from_bytes(row[:8], "big") for row in rows[1])  # type: ignore[union-attr,arg-type,index,misc]


def trim_everything(scene: Scene, *, strict: bool = True) -> None:
    """As if the hot window had passed at once, in the middle of whatever the machine is doing."""
    scene.advance(0)
    marker = scene.keyspace.dump()[b"qim:incarnation"][1]
    assert isinstance(marker, bytes)
    trim = TrimHot(
        op=1,
        shard=0,
        epoch=scene.epoch,
        incarnation=scene.run_id + b"/" + marker,
        before_wall=scene.wall() + 1,
        limit=1000,
    )
    scene.carry_out(trim)
    assert hot_seqs(scene) == [] or not strict


def page(
    scene: Scene, user: int, anchor: int, direction: int, limit: int, name: bytes = CHAT
) -> tuple[list[int], bool, bool]:
    """seqs, has_more, has_more_newer."""
    rid = scene.history(user, name, anchor, direction, limit)
    scene.settle()
    past = scene.past(rid)
    seqs = [decode_stored_record(row).conversation_seq for row in past.records]
    return seqs, past.has_more, past.has_more_newer


@pytest.mark.parametrize("keep", [0, 1, 4, 9, 10])
@pytest.mark.parametrize(
    ("anchor", "direction", "limit", "seqs", "more", "newer"),
    [
        (0, OLDER, 3, [8, 9, 10], True, False),
        (0, OLDER, 10, list(range(1, 11)), False, False),
        (0, OLDER, 9, list(range(2, 11)), True, False),
        (7, OLDER, 3, [4, 5, 6], True, False),
        (4, OLDER, 3, [1, 2, 3], False, False),
        (1, OLDER, 3, [], False, False),
        (0, NEWER, 3, [1, 2, 3], True, False),
        (0, NEWER, 10, list(range(1, 11)), False, False),
        (4, NEWER, 4, [5, 6, 7, 8], True, False),
        (6, NEWER, 4, [7, 8, 9, 10], False, False),
        (10, NEWER, 3, [], False, False),
        (6, AROUND, 4, [5, 6, 7, 8], True, True),
        (1, AROUND, 4, [1, 2, 3], False, True),
        (10, AROUND, 4, [9, 10], True, False),
        (5, AROUND, 1, [5], True, True),
        (10, AROUND, 1, [10], True, False),
        (5, AROUND, 500, list(range(1, 11)), False, False),
        (2**64 - 1, OLDER, 2, [9, 10], True, False),
        (2**64 - 1, AROUND, 2, [10], True, False),
    ],
)
def test_pages_across_the_seam(
    keep: int, anchor: int, direction: int, limit: int, seqs: list[int], more: bool, newer: bool
) -> None:
    scene = trimmed(10, keep)
    assert page(scene, 2, anchor, direction, limit) == (seqs, more, newer)


@pytest.mark.parametrize("direction", [OLDER, NEWER])
@pytest.mark.parametrize("size", [1, 2, 5, 11, 12])
def test_paging_is_complete_and_never_repeats(direction: int, size: int) -> None:
    scene = trimmed(11, 5)
    seen: list[int] = []
    anchor, more = 0, True
    while more:
        seqs, more, _ = page(scene, 1, anchor, direction, size)
        seen += seqs if direction == NEWER else list(reversed(seqs))
        anchor = seqs[-1] if direction == NEWER else seqs[0]
    expected = list(range(1, 12))
    assert seen == (expected if direction == NEWER else expected[::-1])


@pytest.mark.parametrize("direction", [OLDER, NEWER])
@pytest.mark.parametrize("passed", range(4))
def test_a_trim_under_a_page_leaves_no_hole(direction: int, passed: int) -> None:
    """The floor moves after the page's ``passed``-th read; what was hot is then cold, and none is missed or doubled."""
    scene = trimmed(12, 8)
    scene.archive_to()
    rid = scene.history(1, CHAT, 0, direction, 100)
    for _ in range(1 + passed):
        scene.answer()
    trim_everything(scene)
    scene.settle()
    seqs = [decode_stored_record(row).conversation_seq for row in scene.past(rid).records]
    assert seqs == list(range(1, 13))


def test_intervals_hold_below_the_floor_too() -> None:
    scene = Scene(TIERED)
    group = scene.create(1, 2)  # 1
    scene.send(1, to=group)  # 2
    scene.settle()
    for op in (MembershipOp.ADD, MembershipOp.REMOVE, MembershipOp.ADD):
        scene.group(1, op, (3,), to=group)  # 3, 5, 7
        scene.settle()
        scene.send(1, to=group)  # 4, 6, 8
        scene.settle()
    scene.archive_to()
    scene.advance(TIERED.hot_window_ms + HOUR_MS)
    for _ in range(4):
        scene.settle()
        scene.advance(TIERED.trim_pause_ms)
    scene.settle()
    assert hot_seqs(scene, group) == []
    assert page(scene, 3, 0, OLDER, 100, group)[0] == [3, 4, 5, 7, 8]
    assert page(scene, 3, 0, OLDER, 3, group) == ([5, 7, 8], True, False)
    assert page(scene, 3, 0, NEWER, 3, group) == ([3, 4, 5], True, False)
    assert page(scene, 3, 5, NEWER, 2, group) == ([7, 8], False, False)
    assert page(scene, 3, 6, AROUND, 4, group) == ([4, 5, 7, 8], True, False)


def test_the_archive_is_asked_only_below_the_floor() -> None:
    scene = trimmed(8, 4)
    page(scene, 1, 0, OLDER, 3)
    assert scene.archive.reads == []
    page(scene, 1, 0, OLDER, 4)
    assert [(ask.low, ask.high, ask.limit) for ask in scene.archive.reads] == [(0, 5, 1)]


def test_without_an_archive_nothing_is_asked_of_it_or_trimmed() -> None:
    scene = Scene(WriterConfig(outbox_partition_count=1))
    scene.send(1, 2)
    scene.settle()
    scene.archive_to()
    scene.advance(100 * DAY_MS)
    assert scene.writer.deadline() is None
    assert not scene.pending(TrimHot)


def test_reads_of_the_archive_are_asked_again_and_given_up_when_nobody_waits() -> None:
    scene = trimmed(6, 2)
    rid = scene.history(1, CHAT, 0, OLDER, 10)
    ask = scene.until(ReadArchive)
    scene.step(Failed(op=ask.op, why=FailReason.UNREACHABLE))
    scene.advance(100)
    ask = scene.until(ReadArchive)
    scene.step(Unknown(op=ask.op))
    scene.advance(200)
    scene.settle()
    assert len(scene.past(rid).records) == 6
    rid = scene.history(1, CHAT, 0, OLDER, 10)
    ask = scene.until(ReadArchive)
    scene.advance(scene.config.request_timeout_ms)
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE
    scene.step(Failed(op=ask.op, why=FailReason.UNREACHABLE))
    rid = scene.history(1, CHAT, 0, OLDER, 10)
    ask = scene.until(ReadArchive)
    scene.advance(scene.config.request_timeout_ms)
    scene.step(scene.carry_out(ask))
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE
    assert scene.writer.idle()


# ---------------------------------------------------------------- pace of trimming


def test_trimming_goes_on_while_there_is_more_and_then_rests() -> None:
    scene = Scene(TIERED)
    for _ in range(10):
        scene.send(1, 2)
    scene.settle()
    scene.archive_to()
    scene.advance(TIERED.hot_window_ms + 1)
    left = []
    for _ in range(4):
        scene.settle()
        left.append(len(hot_seqs(scene)))
        scene.advance(TIERED.trim_pause_ms)
    assert left == [6, 2, 0, 0]
    assert not scene.pending(TrimHot)
    scene.advance(TIERED.trim_every_ms)
    assert len(scene.pending(TrimHot)) == 1


def test_only_what_is_old_and_archived_goes() -> None:
    scene = Scene(TIERED)
    scene.send(1, 2)
    scene.settle()
    scene.archive_to()
    scene.send(1, 2)
    scene.settle()
    scene.advance(TIERED.hot_window_ms - HOUR_MS)
    scene.settle()
    assert hot_seqs(scene) == [1, 2]
    scene.advance(2 * HOUR_MS)
    scene.settle()
    assert hot_seqs(scene) == [2], "the second is old but not archived"


def test_a_look_that_fails_is_followed_by_the_next_and_a_shard_that_left_is_forgotten() -> None:
    scene = Scene(TIERED)
    scene.advance(TIERED.trim_pause_ms)
    look = scene.until(TrimHot)
    scene.step(Failed(op=look.op, why=FailReason.OVERLOADED))
    scene.advance(TIERED.trim_every_ms)
    look = scene.until(TrimHot)
    scene.step(Unknown(op=look.op))
    scene.lose()
    scene.advance(TIERED.trim_every_ms)
    assert not scene.inflight
    assert scene.writer.deadline() is None
    scene.hold()
    scene.settle()
    scene.advance(TIERED.trim_pause_ms)
    assert scene.pending(TrimHot)


def test_a_shard_that_opened_anew_waits_its_own_time() -> None:
    scene = Scene(TIERED)
    scene.advance(TIERED.trim_pause_ms // 2)
    scene.lose()
    scene.hold()
    scene.settle()
    scene.advance(TIERED.trim_pause_ms // 2)
    assert not scene.pending(TrimHot)
    scene.advance(TIERED.trim_pause_ms // 2)
    assert scene.pending(TrimHot)


# ---------------------------------------------------------------- retention


def test_how_long_each_class_is_kept() -> None:
    policy = RetentionPolicy(default_ms=10, ephemeral_ms=5, tenants=(("t", 7), ("u", 8)))
    kept = [
        retained_until(policy, tenant, kind, 100)
        for tenant, kind in (
            ("t", RetentionClass.DEFAULT),
            ("t", RetentionClass.EPHEMERAL),
            ("u", RetentionClass.TENANT_CUSTOM),
            ("v", RetentionClass.TENANT_CUSTOM),
            ("t", RetentionClass.COMPLIANCE_HOLD),
            ("t", 77),
        )
    ]
    assert kept == [110, 105, 108, 110, FOREVER_MS, 110]


def test_what_has_run_out_is_shown_nowhere() -> None:
    config = WriterConfig(outbox_partition_count=1, retention=RetentionPolicy(default_ms=DAY_MS))
    scene = Scene(config)
    classes = (RetentionClass.DEFAULT, RetentionClass.COMPLIANCE_HOLD, RetentionClass.DEFAULT)
    for retention in classes:
        scene.send(1, 2, retention_class=retention)
    scene.settle()
    assert scene.summary(2, CHAT).unread == 3
    scene.advance(DAY_MS - 1)
    assert page(scene, 2, 0, OLDER, 10)[0] == [1, 2, 3]
    scene.advance(1)
    assert page(scene, 2, 0, OLDER, 10) == ([2], False, False)
    assert page(scene, 2, 0, NEWER, 1) == ([2], False, False), "nothing visible stands beyond"
    summary = scene.summary(2, CHAT)
    assert summary.unread == 1
    assert decode_stored_record(summary.head).conversation_seq == 2
    assert scene.refused_after_settle(scene.recall(1, CHAT, 3)) is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("gone", [(1, 2, 3), (4,), (1, 2, 3, 4, 5), (2, 5)])
def test_what_the_archive_has_let_go_is_not_missed(gone: tuple[int, ...]) -> None:
    scene = trimmed(8, 3)
    for seq in gone:
        del scene.archive.rows[CHAT][seq]
    left = [seq for seq in range(1, 9) if seq not in gone]
    assert page(scene, 1, 0, OLDER, 100) == (left, False, False)
    assert page(scene, 1, 0, NEWER, 100) == (left, False, False)
    assert page(scene, 1, 0, NEWER, len(left) - 1) == (left[:-1], True, False)
    assert scene.summary(2, CHAT).unread == len(left)


def test_a_page_read_in_pieces_is_bounded_by_bytes() -> None:
    config = WriterConfig(outbox_partition_count=1, history_bytes_max=10, tiered=True)
    scene = Scene(config)
    for _ in range(5):
        scene.send(1, 2)
    scene.settle()
    assert page(scene, 1, 0, OLDER, 3) == ([3, 4, 5], True, False)
    assert page(scene, 1, 0, NEWER, 5) == ([1, 2, 3, 4, 5], False, False)
    rid = scene.history(1, CHAT, 0, OLDER, 2)
    scene.step(scene.carry_out(scene.until(ReadHistory)))  # who may see what
    reply = scene.carry_out(scene.until(ReadHistory))
    assert len(reply.pages[0].stored) == 1  # type: ignore[union-attr]
    scene.step(reply)
    scene.settle()
    assert len(scene.past(rid).records) == 2
