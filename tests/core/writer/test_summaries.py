"""Unread, head and last activity from the rows history shows (pipeline.md §4): the window, the seam, many in one ask."""

import pytest

from qim.core.contract.entities import (
    EMPTY_ID,
    ConversationKind,
    MembershipOp,
    decode_stored_record,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.params import DAY_MS, DEFAULT
from qim.core.contract.routing import writer_shard
from qim.core.contract.rpc_session import Summary
from qim.core.ports.archive import ReadArchive
from qim.core.ports.completion import StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested
from qim.core.ports.log import Append
from qim.core.ports.store_reads import ReadHistory
from qim.core.retention import RetentionPolicy
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, chat
from tests.core.writer.test_tiers import TIERED, trim_everything

CHAT = chat(1, 2)


def talked(count: int, config: WriterConfig | None = None) -> Scene:
    """A chat of 1 and 2 in which 1 spoke."""
    scene = Scene(config)
    for _ in range(count):
        scene.send(1, 2)
    scene.settle()
    return scene


def seq_of(head: bytes) -> int:
    return decode_stored_record(head).conversation_seq if head else 0


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(
    ("count", "read_seq", "window", "unread", "exact"),
    [
        (0, 0, 5, 0, True),
        (1, 0, 5, 1, True),
        (5, 0, 5, 5, True),
        (6, 0, 5, 5, False),
        (6, 1, 5, 5, True),
        (20, 14, 5, 5, False),
        (20, 15, 5, 5, True),
        (20, 20, 5, 0, True),
        (20, 99, 5, 0, True),
        (20, 2**64 - 1, 5, 0, True),
        (3, 0, 1, 1, False),
        (200, 0, 200, 200, True),
        (201, 0, 200, 200, False),
    ],
)
def test_the_window(
    cold: bool, count: int, read_seq: int, window: int, unread: int, exact: bool
) -> None:
    scene = talked(count, TIERED)
    if cold and count:
        scene.archive_to()
        trim_everything(scene)
    summary = scene.summary(2, CHAT, read_seq, window)
    assert (summary.unread, summary.unread_exact) == (unread, exact)
    assert seq_of(summary.head) == count
    assert summary.known is (count > 0)
    own = scene.summary(1, CHAT, read_seq, window)
    assert own.unread == (0 if exact else window), "one's own are never unread"
    assert own.unread_exact is exact


def test_what_it_says_of_each_kind_of_conversation() -> None:
    scene = talked(1)
    scene.send(3, 3)
    group = scene.create(1, 2)
    first = scene.summary(2, CHAT)
    record = scene.effective()[0]
    assert first == Summary(
        conversation_id=CHAT,
        known=True,
        conversation_kind=ConversationKind.SINGLE,
        peer_user_id=1,
        unread=1,
        unread_exact=True,
        head=first.head,
        last_activity_id=record.last_activity_id,
        valid_until=record.sent_at + DEFAULT.default_retention_ms,
    )
    assert seq_of(first.head) == 1
    assert scene.summary(1, CHAT).peer_user_id == 2
    assert scene.summary(3, chat(3, 3)).peer_user_id == 3
    founded = scene.summary(2, group)
    assert (founded.conversation_kind, founded.peer_user_id) == (ConversationKind.GROUP, 0)
    assert (founded.unread, seq_of(founded.head)) == (0, 1), "control is shown and never unread"
    for user, name in ((3, CHAT), (3, group), (1, b"\x01" * 16)):
        nothing = scene.summary(user, name)
        assert (nothing.known, nothing.head, nothing.last_activity_id) == (False, b"", EMPTY_ID)
    rid = scene.summarise(1, (CHAT, 0), tenant_id="other")
    scene.settle()
    assert scene.summaries(rid)[0].known is False


def test_overlays_neither_count_nor_show() -> None:
    scene = talked(4)
    scene.recall(1, CHAT, 4)  # 5
    scene.delete(2, CHAT, 3)  # 6
    scene.settle()
    theirs, mine = scene.summary(2, CHAT), scene.summary(1, CHAT)
    assert (theirs.unread, seq_of(theirs.head)) == (2, 2)
    assert (mine.unread, seq_of(mine.head)) == (0, 3)
    activities = [record.last_activity_id for record in scene.effective()]
    assert theirs.last_activity_id == activities[5]
    assert mine.last_activity_id == activities[4], "what 2 hides is no activity for 1"
    # window: 1..6 are visible for 2, so a window of 5 is exceeded although only two count
    assert (scene.summary(2, CHAT, 0, 5).unread, scene.summary(2, CHAT, 1, 5).unread) == (5, 1)


def test_a_head_below_everything_unread() -> None:
    scene = talked(4)
    for seq in (3, 4):
        scene.recall(1, CHAT, seq)  # 5, 6
    scene.settle()
    summary = scene.summary(2, CHAT, 2)
    assert (summary.unread, summary.unread_exact, seq_of(summary.head)) == (0, True, 2)
    saturated = scene.summary(2, CHAT, 0, 3)
    assert (saturated.unread, saturated.unread_exact, seq_of(saturated.head)) == (3, False, 2)
    all_gone = [scene.recall(1, CHAT, seq) for seq in (1, 2)]
    scene.settle()
    assert all(scene.sent(rid).conversation_seq for rid in all_gone)
    nothing = scene.summary(2, CHAT)
    assert (nothing.unread, nothing.head) == (0, b"")
    assert nothing.last_activity_id == scene.effective()[-1].last_activity_id


def test_a_recall_on_its_way_changes_nothing_yet() -> None:
    scene = talked(3)
    scene.recall(1, CHAT, 3)
    append = scene.until(Append)
    assert (scene.summary(2, CHAT).unread, seq_of(scene.summary(2, CHAT).head)) == (3, 3)
    scene.step(scene.carry_out(append))
    scene.settle()
    assert (scene.summary(2, CHAT).unread, seq_of(scene.summary(2, CHAT).head)) == (2, 2)


def test_intervals() -> None:
    scene = Scene()
    group = scene.create(1, 2)  # 1
    scene.send(1, to=group)  # 2
    scene.settle()
    for op in (MembershipOp.ADD, MembershipOp.REMOVE):
        scene.group(1, op, (3,), to=group)  # 3, 5
        scene.settle()
        scene.send(1, to=group)  # 4, 6
        scene.settle()
    left = scene.summary(3, group)
    assert (left.unread, seq_of(left.head)) == (1, 5)
    assert scene.summary(3, group, 4).unread == 0
    scene.group(1, MembershipOp.ADD, (3,), to=group)  # 7
    scene.send(1, to=group)  # 8
    scene.settle()
    back = scene.summary(3, group)
    assert (back.unread, seq_of(back.head)) == (2, 8)
    assert scene.summary(3, group, 5).unread == 1


def test_what_who_has_left_is_shown_holds_no_longer_than_the_answer() -> None:
    """A recall goes to the members of its time; the one who left isn't told, and must not go on being shown the body."""
    scene = Scene()
    group = scene.create(1, 2)  # 1
    scene.send(1, to=group)  # 2
    scene.settle()
    assert scene.summary(2, group).valid_until > scene.wall()
    scene.group(1, MembershipOp.REMOVE, (2,), to=group)  # 3
    scene.settle()
    before = scene.summary(2, group)
    assert (before.unread, seq_of(before.head), before.valid_until) == (1, 3, 0)
    scene.recall(1, group, 2)
    scene.settle()
    after = scene.summary(2, group)
    assert (after.unread, seq_of(after.head), after.valid_until) == (0, 3, 0)


def test_expiry_lowers_unread_by_what_it_removed() -> None:
    config = WriterConfig(outbox_partition_count=1, retention=RetentionPolicy(default_ms=DAY_MS))
    scene = talked(3, config)
    scene.advance(DAY_MS // 2)
    scene.send(1, 2)
    scene.settle()
    assert scene.summary(2, CHAT).unread == 4
    sent = [record.sent_at for record in scene.effective()]
    assert scene.summary(2, CHAT).valid_until == sent[0] + DAY_MS
    assert scene.summary(2, CHAT, 1).valid_until == sent[1] + DAY_MS
    assert scene.summary(2, CHAT, 9).valid_until == sent[3] + DAY_MS, "the head alone"
    scene.advance(DAY_MS // 2)
    assert scene.summary(2, CHAT).unread == 1
    scene.advance(DAY_MS)
    gone = scene.summary(2, CHAT)
    assert (gone.known, gone.unread, gone.head, gone.last_activity_id) == (True, 0, b"", EMPTY_ID)


# ---------------------------------------------------------------- many at once


def test_a_thousand_in_a_few_scripts_and_in_order() -> None:
    scene = Scene(WriterConfig(outbox_partition_count=1, tiered=True))
    peers = range(2, 1002)
    for peer in peers:
        scene.send(peer, 1)
        if peer % 100 == 0:
            scene.settle()
    scene.settle()
    scene.inflight.clear()
    rid = scene.summarise(1, *[(chat(1, peer), peer % 2) for peer in peers])
    scripts = 0
    while scene.inflight:
        assert len(scene.pending(ReadHistory)) <= scene.config.reads_inflight_max
        scripts += 1
        scene.answer()
    assert scripts == 16
    summaries = scene.summaries(rid)
    assert [s.peer_user_id for s in summaries] == list(peers)
    assert [s.unread for s in summaries] == [1 - peer % 2 for peer in peers]


def test_some_cold_some_hot_some_unknown() -> None:
    config = WriterConfig(
        outbox_partition_count=1, tiered=True, history_items_max=2, reads_inflight_max=2
    )
    scene = Scene(config)
    for peer in range(2, 9):
        for _ in range(peer):
            scene.send(peer, 1)
    scene.settle()
    scene.archive_to()
    trim_everything(scene)
    for peer in range(2, 9, 3):
        scene.send(peer, 1)
    scene.settle()
    rid = scene.summarise(1, *[(chat(1, peer), 1) for peer in range(2, 11)])
    for _ in range(10_000):
        if not scene.inflight:
            break
        flights = len(scene.pending(ReadHistory)) + len(scene.pending(ReadArchive))
        assert flights <= 2
        scene.answer(len(scene.inflight) - 1)
    summaries = scene.summaries(rid)
    assert [s.unread for s in summaries] == [2, 2, 3, 5, 5, 6, 8, 0, 0]
    assert [s.known for s in summaries] == [True] * 7 + [False] * 2


def test_refusals() -> None:
    scene = Scene(WriterConfig(outbox_partition_count=2, summary_items_max=2), started=False)
    bad = [
        scene.summarise(1),
        scene.summarise(1, (CHAT, 0), (CHAT, 0), (CHAT, 0)),
        scene.summarise(1, (CHAT, 0), window=0),
        scene.summarise(1, (CHAT, 0), window=201),
        scene.summarise(1, (CHAT, -1)),
        scene.summarise(1, (b"short", 0)),
    ]
    names = [chat(1, peer) for peer in range(2, 30)]
    other = next(n for n in names if writer_shard(n, 2) != writer_shard(CHAT, 2))
    bad.append(scene.summarise(1, (CHAT, 0), (other, 0)))
    assert [scene.refused(rid) for rid in bad] == [ErrorCode.INVALID_ARGUMENT] * len(bad)
    assert scene.refused(scene.summarise(1, (CHAT, 0))) is ErrorCode.NOT_OWNER


def test_opening_draining_resets_and_doubts() -> None:
    scene = talked(1)
    rid = scene.summarise(2, (CHAT, 0))
    rows = scene.until(ReadHistory)
    scene.step(Unknown(op=rows.op))
    scene.advance(100)
    scene.settle()
    assert scene.summaries(rid)[0].unread == 1
    rid = scene.summarise(2, (CHAT, 0))
    rows = scene.until(ReadHistory)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE
    assert scene.refused(scene.summarise(2, (CHAT, 0))) is ErrorCode.UNAVAILABLE
    scene.step(scene.carry_out(rows))
    scene.settle()
    scene.step(DrainRequested())
    assert scene.refused(scene.summarise(2, (CHAT, 0))) is ErrorCode.UNAVAILABLE
    assert scene.writer.idle()
