"""Recall and delete-for-me (pipeline.md §5): rights, the one commit path, what they do to every read, how they survive."""

import pytest

from qim.core.contract.actor import Actor
from qim.core.contract.entities import (
    CommitState,
    MembershipOp,
    MessageKind,
    MessageRecord,
    decode_stored_record,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.params import HOUR_MS
from qim.core.ports.completion import StoreReset, StoreRole, Unknown
from qim.core.ports.log import Append, AppendRefused
from qim.core.ports.store_message import MarkCommitted, ReserveAndRecord
from qim.core.ports.store_reads import ReadHistory
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, chat
from tests.core.writer.test_tiers import TIERED, trim_everything

CHAT = chat(1, 2)
RECALL, DELETE = MessageKind.RECALL, MessageKind.DELETE_FOR_ME


def talked(count: int = 3, config: WriterConfig | None = None) -> Scene:
    """A chat in which 1 said something to 2."""
    scene = Scene(config)
    for _ in range(count):
        scene.send(1, 2)
    scene.settle()
    return scene


def shown(scene: Scene, user: int, name: bytes = CHAT) -> tuple[list[int], list[int]]:
    """seqs of the history, and those of them recalled."""
    rid = scene.history(user, name)
    scene.settle()
    past = scene.past(rid)
    seqs = [decode_stored_record(row).conversation_seq for row in past.records]
    return seqs, list(past.recalled)


def last(scene: Scene) -> MessageRecord:
    """The newest effective record."""
    return scene.effective()[-1]


def test_a_recall_is_a_record_and_an_overlay() -> None:
    scene = talked()
    rid = scene.recall(1, CHAT, 2, number=50)
    scene.settle()
    sent = scene.sent(rid)
    record = last(scene)
    assert (sent.conversation_seq, sent.message_id) == (4, record.message_id)
    assert (record.kind, record.target_seq, record.sender_id) == (RECALL, 2, 1)
    assert record.body == (2).to_bytes(8, "big")
    assert (record.peer_user_id, record.recipients) == (2, ())
    for user in (1, 2):
        assert shown(scene, user) == ([1, 2, 3, 4], [2])
    again = scene.recall(1, CHAT, 2, number=50)
    scene.settle()
    assert scene.sent(again).conversation_seq == 4, "the same client_message_id, the same ack"
    assert len(scene.effective()) == 4


def test_a_delete_for_me_concerns_its_user_alone() -> None:
    scene = talked()
    rid = scene.delete(2, CHAT, 2)
    scene.settle()
    record = last(scene)
    assert scene.sent(rid).conversation_seq == 4
    assert (record.kind, record.target_seq, record.recipients) == (DELETE, 2, (2,))
    assert shown(scene, 2) == ([1, 3, 4], [])
    assert shown(scene, 1) == ([1, 2, 3], [])


def test_both_on_one_row() -> None:
    scene = talked()
    scene.delete(2, CHAT, 1)
    scene.recall(1, CHAT, 1)
    scene.settle()
    assert shown(scene, 1) == ([1, 2, 3, 5], [1])
    assert shown(scene, 2) == ([2, 3, 4, 5], [])
    assert scene.refused_after_settle(scene.delete(2, CHAT, 1)) is ErrorCode.NOT_FOUND
    rid = scene.delete(1, CHAT, 1)
    scene.settle()
    assert scene.sent(rid), "a tombstone may be put out of sight"
    assert shown(scene, 1)[0] == [2, 3, 5, 6]


def test_has_more_counts_only_what_is_shown() -> None:
    scene = talked(4)
    scene.delete(2, CHAT, 1)
    scene.delete(2, CHAT, 2)
    scene.settle()
    for limit, expected in ((2, ([5, 6], True)), (4, ([3, 4, 5, 6], False))):
        rid = scene.history(2, CHAT, 0, 0, limit)
        scene.settle()
        past = scene.past(rid)
        seqs = [decode_stored_record(row).conversation_seq for row in past.records]
        assert (seqs, past.has_more) == expected
    rid = scene.history(1, CHAT, 0, 1, 4)
    scene.settle()
    assert (len(scene.past(rid).records), scene.past(rid).has_more) == (4, False)


# ---------------------------------------------------------------- rights


def test_who_may_recall_what() -> None:
    scene = talked(1)
    group = scene.create(1, 2, 3)  # 1
    for user in (1, 2):
        scene.send(user, to=group)  # 2, 3
    scene.settle()
    cases = [
        (scene.recall(2, CHAT, 1), ErrorCode.FORBIDDEN),
        (scene.recall(3, CHAT, 1), ErrorCode.NOT_MEMBER),
        (scene.recall(1, CHAT, 2), ErrorCode.NOT_FOUND),
        (scene.recall(1, b"\x01" * 16, 1), ErrorCode.NOT_FOUND),
        (scene.recall(1, group, 1), ErrorCode.INVALID_ARGUMENT),
        (scene.recall(3, group, 2), ErrorCode.FORBIDDEN),
        (scene.recall(2, group, 2), ErrorCode.FORBIDDEN),
        (scene.delete(3, CHAT, 1), ErrorCode.NOT_MEMBER),
        (scene.delete(1, CHAT, 9), ErrorCode.NOT_FOUND),
        (scene.delete(1, group, 1), ErrorCode.INVALID_ARGUMENT),
        (scene.recall(1, CHAT, 0), ErrorCode.INVALID_ARGUMENT),
        (scene.recall(1, CHAT, 2**64), ErrorCode.INVALID_ARGUMENT),
        (scene.recall(1, b"short", 1), ErrorCode.INVALID_ARGUMENT),
        (scene.overlay(1, MessageKind.TEXT, CHAT, 1), ErrorCode.UNSUPPORTED),
        (scene.overlay(1, RECALL, CHAT, 1, client_message_id=b""), ErrorCode.INVALID_ARGUMENT),
        (scene.overlay(1, RECALL, CHAT, 1, not_after=1), ErrorCode.SEND_EXPIRED),
    ]
    scene.settle()
    assert [scene.refused(rid) for rid, _ in cases] == [code for _, code in cases]
    allowed = [scene.recall(1, group, 3), scene.recall(1, group, 2), scene.recall(1, CHAT, 1)]
    scene.settle()
    assert [scene.sent(rid).conversation_seq for rid in allowed] == [4, 5, 2]
    assert scene.refused_after_settle(scene.recall(1, CHAT, 1)) is ErrorCode.NOT_FOUND
    assert scene.refused_after_settle(scene.recall(1, CHAT, 2)) is ErrorCode.INVALID_ARGUMENT


def test_the_window_binds_the_sender_and_not_the_creator() -> None:
    config = WriterConfig(outbox_partition_count=1, recall_window_ms=HOUR_MS)
    scene = Scene(config)
    group = scene.create(1, 2)
    scene.send(2, to=group)
    scene.send(2, to=group)
    scene.settle()
    scene.advance(HOUR_MS)
    rid = scene.recall(2, group, 2)
    scene.settle()
    assert scene.sent(rid)
    scene.advance(1)
    assert scene.refused_after_settle(scene.recall(2, group, 3)) is ErrorCode.FORBIDDEN
    rid = scene.recall(1, group, 3)
    scene.settle()
    assert scene.sent(rid)


def test_former_members_hide_what_they_saw_and_recall_nothing() -> None:
    scene = Scene()
    group = scene.create(1, 2, 3)  # 1
    scene.send(3, to=group)  # 2
    scene.group(3, MembershipOp.LEAVE, to=group)  # 3
    scene.settle()
    scene.send(1, to=group)  # 4
    scene.settle()
    assert scene.refused_after_settle(scene.recall(3, group, 2)) is ErrorCode.NOT_MEMBER
    assert scene.refused_after_settle(scene.delete(3, group, 4)) is ErrorCode.NOT_FOUND
    rid = scene.delete(3, group, 2)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 5
    assert last(scene).recipients == (3,)
    assert shown(scene, 3, group) == ([1, 3], [])
    assert shown(scene, 1, group) == ([1, 2, 3, 4], [])


def test_another_tenants_user_of_the_same_number_is_a_stranger() -> None:
    scene = talked()
    stranger = Actor("other", 1, b"phone")
    rid = scene.overlay(1, DELETE, CHAT, 1, actor=stranger)
    assert scene.refused_after_settle(rid) is ErrorCode.NOT_MEMBER


def test_one_client_message_id_is_one_request() -> None:
    scene = talked()
    first = scene.recall(1, CHAT, 1, number=60)
    for other in (
        scene.recall(1, CHAT, 2, number=60),
        scene.delete(1, CHAT, 1, number=60),
        scene.send(1, 2, number=60),
    ):
        assert scene.refused(other) is ErrorCode.IDEMPOTENCY_CONFLICT
    scene.settle()
    assert scene.sent(first)
    for later in (scene.recall(1, CHAT, 2, number=60), scene.send(1, 2, number=60)):
        assert scene.refused_after_settle(later) is ErrorCode.IDEMPOTENCY_CONFLICT


# ---------------------------------------------------------------- while it is on its way


def test_it_counts_only_once_its_record_is_in_the_log() -> None:
    scene = talked()
    rid = scene.recall(1, CHAT, 2)
    append = scene.until(Append)
    assert shown(scene, 2) == ([1, 2, 3], [])
    scene.step(scene.carry_out(append))
    scene.settle()
    assert scene.sent(rid)
    assert shown(scene, 2) == ([1, 2, 3, 4], [2])


def test_two_recalls_on_their_way_and_the_log_refuses_one() -> None:
    scene = talked()
    first, second = scene.recall(1, CHAT, 2), scene.recall(1, CHAT, 2)
    append = scene.until(Append)
    while scene.inflight:
        scene.answer()
    scene.step(AppendRefused(op=append.op, index=0, why="no"))
    scene.settle()
    assert scene.refused(first) is ErrorCode.INVALID_ARGUMENT
    assert scene.sent(second)
    assert shown(scene, 2) == ([1, 2, 3, 5], [2])


@pytest.mark.parametrize("kind", [RECALL, DELETE])
def test_refused_by_the_log_it_is_lifted(kind: MessageKind) -> None:
    scene = talked()
    rid = scene.overlay(1, kind, CHAT, 2, number=70)
    append = scene.until(Append)
    scene.step(AppendRefused(op=append.op, index=0, why="no"))
    assert scene.refused_after_settle(rid) is ErrorCode.INVALID_ARGUMENT
    assert shown(scene, 1) == ([1, 2, 3], [])
    dump = scene.keyspace.dump()
    assert not [key for key in dump if key[:3] in (b"ov:", b"od:", b"wo:")]
    assert scene.commit_state(1, 70) is CommitState.REFUSED


def test_a_reservation_in_doubt_lays_it_once() -> None:
    scene = talked()
    rid = scene.recall(1, CHAT, 2)
    reserve = scene.until(ReserveAndRecord)
    scene.carry_out(reserve)
    scene.step(Unknown(op=reserve.op))
    scene.advance(100)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 4
    held = scene.keyspace.dump()[b"ov:" + CHAT][1]
    assert dict(held) == {(2).to_bytes(8, "big"): (4).to_bytes(8, "big")}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [RECALL, DELETE])
@pytest.mark.parametrize("lost", ["mark", "reserve", "all"])
def test_it_is_restored_from_its_record(kind: MessageKind, lost: str) -> None:
    scene = talked()
    before = scene.keyspace.mark()
    rid = scene.overlay(1, kind, CHAT, 2, number=80)
    if lost == "mark":
        mark = scene.until(MarkCommitted)
        scene.step(Unknown(op=mark.op))
        scene.inflight.clear()
        scene.restart_store()
    else:
        scene.settle()
        scene.restart_store(before if lost == "reserve" else -1)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    again = scene.overlay(1, kind, CHAT, 2, number=80)
    scene.settle()
    assert scene.said(rid) is not None
    assert scene.sent(again).conversation_seq == 4
    assert shown(scene, 1) == (([1, 2, 3, 4], [2]) if kind is RECALL else ([1, 3, 4], []))
    assert b"wo:" + bytes(4) not in scene.keyspace.dump()


# ---------------------------------------------------------------- the row it is to lie on


def test_a_target_in_the_archive() -> None:
    scene = talked(3, TIERED)
    scene.archive_to()
    trim_everything(scene)
    rid = scene.recall(1, CHAT, 2)
    other = scene.delete(2, CHAT, 1)
    scene.settle()
    assert (scene.sent(rid).conversation_seq, scene.sent(other).conversation_seq) == (4, 5)
    assert shown(scene, 1) == ([1, 2, 3, 4], [2])
    assert shown(scene, 2) == ([2, 3, 4, 5], [2])
    assert scene.refused_after_settle(scene.recall(1, CHAT, 2)) is ErrorCode.NOT_FOUND
    assert scene.refused_after_settle(scene.recall(1, CHAT, 9)) is ErrorCode.NOT_FOUND


def test_looking_for_targets_is_bounded() -> None:
    scene = Scene(WriterConfig(outbox_partition_count=1, queries_max=1))
    for _ in range(2):
        scene.send(1, 2)
    scene.settle()
    first = scene.recall(1, CHAT, 1)
    second = scene.recall(1, CHAT, 2)
    assert scene.refused(second) is ErrorCode.UNAVAILABLE
    scene.settle()
    assert scene.sent(first)


def test_a_reset_while_the_target_is_read_begins_the_request_anew() -> None:
    scene = talked()
    rid = scene.recall(1, CHAT, 2)
    rows = scene.until(ReadHistory)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.step(scene.carry_out(rows))
    scene.settle()
    assert scene.sent(rid).conversation_seq == 4
    assert scene.writer.idle()


def test_nobody_waits_any_more() -> None:
    scene = talked()
    rid = scene.recall(1, CHAT, 2)
    rows = scene.until(ReadHistory)
    scene.advance(scene.config.request_timeout_ms)
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE, "nothing was reserved"
    scene.step(Unknown(op=rows.op))
    scene.advance(100)
    scene.settle()
    assert scene.writer.idle()
    assert len(scene.effective()) == 3
    rid = scene.recall(1, CHAT, 2)
    scene.until(ReadHistory)
    scene.lose()
    assert scene.refused(rid) is ErrorCode.NOT_OWNER
