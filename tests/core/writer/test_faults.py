"""The commit pipeline under Unknown, Failed, Fenced, StoreReset, and leases that go (pipeline.md §1.3-5)."""

import pytest

from qim.core.contract.entities import CommitState, MembershipOp, MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import request_digest
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.log import Append
from qim.core.ports.store_message import (
    CommitsFound,
    Existing,
    LookupCommits,
    MarkCommitted,
    MarkedCommitted,
    MarkLost,
    MembershipChange,
    ReserveAndRecord,
    Reserved,
    WriteHeads,
)
from qim.core.ports.store_reads import ReadMembership
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, chat

LATER_MS = 5_000


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_reservation_is_retried_with_the_same_ids(applied: bool) -> None:
    scene = Scene()
    rids = [scene.send(1, 2), scene.send(2, 1)]
    reserve = scene.until(ReserveAndRecord)
    assert isinstance(reserve, ReserveAndRecord)
    if applied:
        scene.carry_out(reserve)
    scene.step(Unknown(op=reserve.op))
    assert not scene.inflight  # nothing goes on before it is settled
    scene.advance(100)
    again = scene.inflight[0]
    assert isinstance(again, ReserveAndRecord)
    assert again.items == reserve.items
    assert (again.epoch, again.incarnation) == (reserve.epoch, reserve.incarnation)
    scene.settle()
    assert [scene.sent(rid).conversation_seq for rid in rids] == [1, 2]
    assert len(scene.effective()) == 2


def test_an_unknown_membership_change_is_retried_with_the_same_ids() -> None:
    scene = Scene()
    rid = scene.group(1, MembershipOp.CREATE, (2, 3))
    change = scene.until(MembershipChange)
    assert isinstance(change, MembershipChange)
    scene.carry_out(change)
    scene.step(Unknown(op=change.op))
    scene.advance(100)
    again = scene.inflight[0]
    assert isinstance(again, MembershipChange)
    assert (again.item, again.membership) == (change.item, change.membership)
    scene.settle()
    assert scene.grouped(rid).version == 1
    member = scene.send(3, to=scene.grouped(rid).conversation_id)
    scene.settle()
    assert scene.sent(member).conversation_seq == 2


def test_a_reservation_in_doubt_for_too_long_is_settled_by_open() -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=1)
    reserve = scene.until(ReserveAndRecord)
    scene.carry_out(reserve)
    scene.now += scene.config.reserve_settle_ms
    scene.step(Unknown(op=reserve.op))
    assert scene.counts["shard_refresh.reserve_unsettled"] == 1
    assert scene.refused(rid) is ErrorCode.TIMEOUT_UNKNOWN
    scene.settle()
    assert scene.commit_state(1, 1) is CommitState.COMMITTED


def test_the_next_reservation_runs_beside_the_append() -> None:
    scene = Scene()
    first = scene.send(1, 2)
    append = scene.until(Append)
    second = scene.send(1, 2)
    assert scene.pending(ReserveAndRecord)
    scene.answer()
    assert not scene.inflight  # reserved, and its append waits for the one in flight
    scene.step(scene.carry_out(append))
    scene.settle()
    assert [scene.sent(rid).conversation_seq for rid in (first, second)] == [1, 2]


def test_records_of_two_reservations_go_out_in_one_append_in_order() -> None:
    scene = Scene()
    scene.send(1, 2)
    append = scene.until(Append)
    for _ in range(3):
        scene.send(1, 2)
        scene.answer()
    assert not scene.pending(Append)
    scene.step(scene.carry_out(append))
    batches = scene.pending(Append)
    assert len(batches) == 1
    assert isinstance(batches[0], Append)
    assert len(batches[0].records) == 3
    scene.settle()
    assert [r.conversation_seq for r in scene.effective()] == [1, 2, 3, 4]


def test_a_mark_waits_for_the_mark_before_it() -> None:
    scene = Scene()
    scene.send(1, 2)
    mark = scene.until(MarkCommitted)
    scene.send(1, 2)
    while not isinstance(scene.inflight[0], WriteHeads | MarkCommitted):
        scene.answer()
        if not scene.inflight:
            break
    assert not scene.pending(MarkCommitted)
    scene.step(Unknown(op=mark.op))
    scene.advance(100)
    assert len(scene.pending(MarkCommitted)) == 1
    scene.settle()
    assert scene.counts["messages"] == 2


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_mark_is_retried(applied: bool) -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=1)
    mark = scene.until(MarkCommitted)
    if applied:
        scene.carry_out(mark)
    scene.step(Unknown(op=mark.op))
    assert scene.said(rid) is None
    scene.advance(100)
    scene.settle()
    assert scene.sent(rid)
    assert scene.epoch == 1


def test_a_lost_mark_is_handled_as_store_reset() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    mark = scene.until(MarkCommitted)
    scene.step(MarkLost(op=mark.op, index=0))
    assert scene.counts["shard_refresh.mark_lost"] == 1
    assert scene.said(rid) is None
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1
    assert len(scene.effective()) == 1


def test_fenced_asks_for_an_epoch_above_and_lease_gone_is_never_called_failed() -> None:
    scene = Scene()
    scene.grants = False
    sent = scene.send(1, 2)
    waiting = scene.send(3, 4)
    mark = scene.until(MarkCommitted)
    scene.step(Fenced(op=mark.op, epoch=9))
    assert [wanted.above for wanted in scene.wanted] == [9]
    queued = scene.send(5, 6)
    scene.lose()
    assert scene.refused(sent) is ErrorCode.TIMEOUT_UNKNOWN
    assert scene.refused(waiting) is ErrorCode.TIMEOUT_UNKNOWN
    assert scene.refused(queued) is ErrorCode.NOT_OWNER
    assert not scene.writer.idle()  # the log still owes an answer to an append
    scene.settle()
    assert scene.writer.idle()


def test_a_failed_append_is_appended_again_under_the_same_epoch() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    append = scene.until(Append)
    scene.step(Failed(op=append.op, why=FailReason.UNREACHABLE))
    scene.send(3, 4)
    scene.advance(100)
    scene.settle()
    assert scene.sent(rid)
    assert scene.epoch == 1
    assert len(scene.effective()) == 2


def test_a_store_that_surely_fails_makes_sends_unavailable() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    for _ in range(scene.config.unavailable_after_attempts + 1):
        reserve = scene.until(ReserveAndRecord)
        scene.step(Failed(op=reserve.op, why=FailReason.OUT_OF_MEMORY))
        due = scene.writer.deadline()
        if due is not None:
            scene.advance(due - scene.now)
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE
    assert scene.counts["op_failed.out_of_memory"] == scene.config.unavailable_after_attempts + 1
    assert scene.writer.idle()


def test_one_attempt_in_doubt_and_nobody_is_told_that_it_failed() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    reserve = scene.until(ReserveAndRecord)
    scene.carry_out(reserve)
    scene.step(Unknown(op=reserve.op))
    for _ in range(scene.config.unavailable_after_attempts + 3):
        scene.advance(2_000)
        again = scene.until(ReserveAndRecord)
        scene.step(Failed(op=again.op, why=FailReason.OUT_OF_MEMORY))
    assert scene.refused(rid) is ErrorCode.TIMEOUT_UNKNOWN
    scene.advance(LATER_MS)
    scene.settle()
    assert len(scene.effective()) == 1


def test_a_request_times_out_and_its_work_goes_on() -> None:
    scene = Scene()
    rid = scene.send(1, 2, number=1)
    append = scene.until(Append)
    scene.advance(scene.config.request_timeout_ms)
    assert scene.refused(rid) is ErrorCode.TIMEOUT_UNKNOWN
    scene.step(scene.carry_out(append))
    scene.settle()
    assert scene.commit_state(1, 1) is CommitState.COMMITTED
    again = scene.send(1, 2, number=1)
    scene.settle()
    assert scene.sent(again).conversation_seq == 1


def test_a_request_that_never_left_times_out_as_unavailable_and_is_dropped() -> None:
    scene = Scene(started=False)
    scene.hold()
    rid = scene.send(1, 2, number=1)
    assert scene.writer.deadline() == scene.now + scene.config.request_timeout_ms
    scene.advance(scene.config.request_timeout_ms)
    assert scene.refused(rid) is ErrorCode.UNAVAILABLE
    scene.settle()
    assert scene.effective() == []
    assert scene.writer.idle()


@pytest.mark.parametrize("state", [CommitState.RECORDED, CommitState.COMMITTED])
def test_another_request_under_the_same_key_is_a_conflict(state: CommitState) -> None:
    scene = Scene()
    rid = scene.send(1, to=b"\x07" * 16, number=3)
    question = scene.until(LookupCommits)
    other = Existing(
        state=state,
        request_digest=b"other digest 16b",
        message_id=b"m" * 16,
        conversation_id=chat(1, 2),
        conversation_seq=9,
        last_activity_id=b"a" * 16,
        sent_at=0,
        version=0,
        stored=b"",
    )
    scene.step(CommitsFound(op=question.op, commits=(other,)))
    assert scene.refused(rid) is ErrorCode.IDEMPOTENCY_CONFLICT


@pytest.mark.parametrize("kind", [ReserveAndRecord, LookupCommits])
def test_a_recorded_intent_with_another_message_id_waits_for_open(kind: type) -> None:
    """It is appended by OPEN (e) alone, else it would be appended twice (§1.1)."""
    lookup = kind is LookupCommits
    scene = Scene()
    fields = {"not_after": scene.wall() - 1} if lookup else {}
    rid = scene.send(1, 2, number=1, **fields)
    question = scene.until(kind)
    stray = Existing(
        state=CommitState.RECORDED,
        request_digest=request_digest("default", 1, chat(1, 2), MessageKind.TEXT, "", b"hello"),
        message_id=b"m" * 16,
        conversation_id=chat(1, 2),
        conversation_seq=1,
        last_activity_id=b"a" * 16,
        sent_at=0,
        version=0,
        stored=b"",
    )
    if lookup:
        scene.step(CommitsFound(op=question.op, commits=(stray,)))
    else:
        scene.step(Reserved(op=question.op, results=(stray,)))
    assert not scene.pending(Append)
    assert scene.counts["shard_refresh.stray_intent"] == 1
    scene.settle()
    if lookup:
        assert scene.refused(rid) is ErrorCode.SEND_EXPIRED
    else:
        assert scene.sent(rid).conversation_seq == 1
        assert len(scene.effective()) == 1


def test_heads_are_best_effort() -> None:
    scene = Scene()
    scene.send(1, 2)
    heads = scene.until(WriteHeads)
    scene.send(1, 2)
    scene.settle()
    assert not scene.pending(WriteHeads)
    scene.step(Unknown(op=heads.op))
    assert scene.counts["heads_dropped"] == 1
    assert scene.pending(WriteHeads)
    scene.settle()
    small = Scene(WriterConfig(outbox_partition_count=1, heads_max=1))
    for peer in (2, 3, 4):
        small.send(1, peer)
    small.settle()
    assert small.counts["heads_dropped"] >= 1


def test_store_reset_of_one_op_reopens_its_shard() -> None:
    scene = Scene()
    rid = scene.send(1, to=b"\x07" * 16)
    load = scene.until(ReadMembership)
    scene.step(StoreReset(op=load.op, store=StoreRole.MESSAGE))
    assert scene.counts["shard_refresh.store_reset"] == 1
    scene.settle()
    assert scene.refused(rid) is ErrorCode.NOT_FOUND


def test_answers_of_an_earlier_generation_mean_nothing() -> None:
    scene = Scene()
    rid = scene.send(1, 2)
    mark = scene.until(MarkCommitted)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.step(MarkedCommitted(op=mark.op))
    assert scene.said(rid) is None
    scene.settle()
    assert scene.sent(rid)


def test_a_reservation_cut_off_by_a_reset_is_never_called_undone() -> None:
    """It goes round again; while the store refuses it nobody knows whether its first reservation stands."""
    scene = Scene()
    rid = scene.send(1, 2)
    reserve = scene.until(ReserveAndRecord)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.step(Unknown(op=reserve.op))
    scene.grants = False
    scene.hold()
    while scene.said(rid) is None:
        again = scene.until(ReserveAndRecord)
        scene.step(Failed(op=again.op, why=FailReason.OUT_OF_MEMORY))
        due = scene.writer.deadline() or scene.now
        scene.advance(max(0, due - scene.now))
    assert scene.refused(rid) is ErrorCode.TIMEOUT_UNKNOWN
    assert scene.counts["op_failed.out_of_memory"] == scene.config.unavailable_after_attempts + 1
