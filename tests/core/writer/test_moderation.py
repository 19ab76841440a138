"""Before-send and after-send at the writer: who is asked, when, and what an answer does (docs: pipeline §§1.1, 1.2)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract.entities import decode_stored_record
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Refused, SendDone
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.log import Append
from qim.core.ports.moderation import (
    AskVerdict,
    FailPolicy,
    NotifySent,
    Verdict,
    VerdictGiven,
)
from qim.core.ports.store_message import LookupCommits, ReserveAndRecord
from qim.core.writer import WriterConfig
from tests.core.writer.scene import Scene, chat

ALLOW, REJECT, UNAVAILABLE = Verdict.ALLOW, Verdict.REJECT, Verdict.UNAVAILABLE


class Moderated(Scene):
    """A scene with somebody outside who is asked; ``says`` by body, ALLOW for all others."""

    def __init__(self, policy: FailPolicy = FailPolicy.CLOSED, **more: Any) -> None:
        self.asked: list[AskVerdict] = []
        self.told: list[NotifySent] = []
        self.says: dict[bytes, Any] = {}
        config = WriterConfig(outbox_partition_count=1, before_send=policy, **more)
        super().__init__(config)

    def _file(self, effect: Any) -> None:
        if isinstance(effect, NotifySent):
            self.told.append(effect)
            return
        if isinstance(effect, AskVerdict):
            self.asked.append(effect)
        super()._file(effect)

    def carry_out(self, question: Any) -> Any:
        if not isinstance(question, AskVerdict):
            return super().carry_out(question)
        said = self.says.get(question.body, ALLOW)
        if isinstance(said, Verdict):
            return VerdictGiven(op=question.op, verdict=said)
        return said(question.op)

    def store_only(self) -> None:
        """Answer whatever is not a question to the outside."""
        for _ in range(1_000):
            others = [at for at, one in enumerate(self.inflight) if type(one) is not AskVerdict]
            if not others:
                return
            self.answer(others[0])
        raise AssertionError("never settles")

    def verdict(self, body: bytes, verdict: Verdict) -> None:
        """Answer the ask about ``body``."""
        (at,) = [n for n, q in enumerate(self.inflight) if getattr(q, "body", None) == body]
        question = self.inflight.pop(at)
        self.step(VerdictGiven(op=question.op, verdict=verdict))

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.effective()]


def test_nobody_is_asked_where_nobody_is_configured() -> None:
    scene = Moderated(FailPolicy.OFF)
    rid = scene.send(1, 2)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1
    assert (scene.asked, scene.told) == ([], [])
    assert not scene.pending(LookupCommits)


def test_a_message_is_looked_up_then_asked_about_then_reserved() -> None:
    scene = Moderated()
    rid = scene.send(1, 2, number=7, body=b"hi", custom_type="")
    assert [type(question) for question in scene.inflight] == [LookupCommits]
    scene.answer()
    (ask,) = scene.inflight
    assert isinstance(ask, AskVerdict)
    assert (ask.sender_id, ask.peer_user_id, ask.conversation_id) == (1, 2, chat(1, 2))
    assert (ask.tenant_id, ask.conversation_kind, ask.body) == ("default", 1, b"hi")
    assert ask.traces == (int.from_bytes(ask.dedupe_key[:8], "big"),)
    assert scene.said(rid) is None
    scene.answer()
    assert scene.pending(ReserveAndRecord)
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1
    assert len(scene.asked) == 1
    assert scene.counts["moderation_verdicts.allow"] == 1
    assert scene.writer.idle()


def test_a_refused_message_consumes_nothing_and_may_be_asked_about_again() -> None:
    scene = Moderated()
    scene.says[b"bad"] = REJECT
    rid = scene.send(1, 2, number=7, body=b"bad")
    assert scene.refused_after_settle(rid) == ErrorCode.MODERATION_REJECTED
    assert scene.effective() == []
    again = scene.send(1, 2, number=7, body=b"bad")
    assert scene.refused_after_settle(again) == ErrorCode.MODERATION_REJECTED
    assert len(scene.asked) == 2
    assert scene.asked[0].dedupe_key == scene.asked[1].dedupe_key, "the same question"
    scene.says.clear()
    third = scene.send(1, 2, number=7, body=b"bad")
    scene.settle()
    assert scene.sent(third).conversation_seq == 1


def test_a_retry_of_an_accepted_message_is_neither_asked_about_nor_refused() -> None:
    scene = Moderated()
    first = scene.send(1, 2, number=7)
    scene.settle()
    scene.says[b"hello"] = REJECT
    again = scene.send(1, 2, number=7)
    scene.settle()
    one, other = scene.sent(first), scene.sent(again)
    assert (one.message_id, one.conversation_seq) == (other.message_id, other.conversation_seq)
    assert len(scene.asked) == 1
    assert scene.counts["duplicate_send.replayed"] == 1
    other_body = scene.send(1, 2, number=7, body=b"else")
    assert scene.refused_after_settle(other_body) == ErrorCode.IDEMPOTENCY_CONFLICT
    assert len(scene.asked) == 1


def test_a_recorded_intent_is_finished_without_asking_again() -> None:
    """Reserved, then the shard opens anew before the append: OPEN (e) finishes it, whatever the outside says now."""
    scene = Moderated()
    rid = scene.send(1, 2, number=7)
    append = scene.until(Append)
    scene.says[b"hello"] = REJECT
    scene.step(Unknown(op=append.op))
    again = scene.send(1, 2, number=7)
    scene.settle()
    assert scene.sent(rid).message_id == scene.sent(again).message_id
    assert len(scene.asked) == 1
    assert len(scene.bodies()) == 1


def test_two_requests_with_one_key_are_one_question() -> None:
    scene = Moderated()
    first = scene.send(1, 2, number=7)
    scene.store_only()
    second = scene.send(1, 2, number=7)
    other = scene.send(1, 2, number=7, body=b"else")
    assert scene.refused(other) == ErrorCode.IDEMPOTENCY_CONFLICT
    scene.settle()
    assert scene.sent(first).message_id == scene.sent(second).message_id
    assert len(scene.asked) == 1


UNJUDGED = [
    UNAVAILABLE,
    lambda op: Failed(op=op, why=FailReason.OVERLOADED),
    lambda op: Unknown(op=op),
]


@pytest.mark.parametrize("said", UNJUDGED, ids=["unavailable", "failed", "unknown"])
def test_nobody_could_judge_it(said: Any) -> None:
    closed = Moderated(FailPolicy.CLOSED)
    closed.says[b"hello"] = said
    rid = closed.send(1, 2, number=7)
    assert closed.refused_after_settle(rid) == ErrorCode.UNAVAILABLE
    answer = closed.said(rid)
    assert isinstance(answer, Refused) and answer.retry_after_ms > 0
    assert (closed.effective(), len(closed.asked)) == ([], 1), "one ask, nothing is repeated here"
    closed.says.clear()
    again = closed.send(1, 2, number=7)
    closed.settle()
    assert closed.sent(again).conversation_seq == 1

    opened = Moderated(FailPolicy.OPEN)
    opened.says[b"hello"] = said
    rid = opened.send(1, 2)
    opened.settle()
    assert opened.sent(rid).conversation_seq == 1
    assert opened.counts["moderation_failed_open"] == 1
    assert opened.counts["moderation_verdicts.unavailable"] == 1


@pytest.mark.parametrize("policy", [FailPolicy.OPEN, FailPolicy.CLOSED])
def test_a_verdict_is_a_verdict_under_either_policy(policy: FailPolicy) -> None:
    scene = Moderated(policy)
    scene.says[b"bad"] = REJECT
    good, bad = scene.send(1, 2, body=b"good"), scene.send(1, 2, body=b"bad")
    scene.settle()
    assert scene.sent(good).conversation_seq == 1
    assert scene.refused(bad) == ErrorCode.MODERATION_REJECTED
    assert "moderation_failed_open" not in scene.counts


def test_verdicts_take_effect_in_the_order_of_their_conversation() -> None:
    scene = Moderated()
    bodies = [b"first", b"second", b"third"]
    rids = [scene.send(1, 2, body=body) for body in bodies]
    elsewhere = scene.send(1, 3, body=b"other")
    scene.store_only()
    assert len(scene.pending(AskVerdict)) == 4, "asked side by side"
    scene.verdict(b"other", ALLOW)
    scene.verdict(b"third", ALLOW)
    scene.verdict(b"second", REJECT)
    scene.store_only()
    assert scene.sent(elsewhere).conversation_seq == 1, "no other conversation waits"
    assert [scene.said(rid) for rid in rids] == [None, None, None]
    scene.verdict(b"first", ALLOW)
    scene.settle()
    assert [scene.sent(rids[0]).conversation_seq, scene.sent(rids[2]).conversation_seq] == [1, 2]
    assert scene.refused(rids[1]) == ErrorCode.MODERATION_REJECTED


def test_a_fresh_open_asks_again_and_a_late_verdict_means_nothing() -> None:
    scene = Moderated()
    rid = scene.send(1, 2, body=b"hi")
    scene.store_only()
    (ask,) = scene.pending(AskVerdict)
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.store_only()
    scene.hold()
    scene.wanted.clear()
    scene.store_only()
    old, new = scene.pending(AskVerdict)
    assert (old.op, old.dedupe_key) == (ask.op, new.dedupe_key)  # type: ignore[union-attr]
    scene.inflight.remove(old)
    scene.step(VerdictGiven(op=old.op, verdict=REJECT))
    assert scene.said(rid) is None
    scene.settle()
    assert scene.sent(rid).conversation_seq == 1


def test_a_verdict_after_the_lease_is_gone() -> None:
    scene = Moderated()
    rid = scene.send(1, 2)
    scene.store_only()
    scene.lose()
    assert scene.refused(rid) == ErrorCode.NOT_OWNER
    scene.settle()
    assert scene.effective() == []


def test_a_message_judged_anew_is_not_asked_about_again() -> None:
    scene = Moderated()
    group = scene.create(1, 2, 3)
    assert scene.asked == [], "membership is not asked about"
    rid = scene.send(1, None, to=group, body=b"hi")
    scene.until(ReserveAndRecord)
    assert scene.inflight == []  # the reservation is lost with its store
    scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    scene.settle()
    assert scene.sent(rid).conversation_seq == 2
    assert [ask.peer_user_id for ask in scene.asked] == [0], "once, and of a group"
    rid = scene.send(4, None, to=group, body=b"stranger")
    assert scene.refused_after_settle(rid) == ErrorCode.NOT_MEMBER
    assert len(scene.asked) == 1, "who may not send is not asked about"


def test_overlays_are_not_asked_about() -> None:
    scene = Moderated(after_send=True)
    scene.send(1, 2)
    scene.settle()
    recall, delete = scene.recall(1, chat(1, 2), 1), scene.delete(2, chat(1, 2), 1)
    scene.settle()
    assert scene.sent(recall) and scene.sent(delete)
    assert (len(scene.asked), len(scene.told)) == (1, 1)


def test_asks_in_flight_are_bounded_and_nobody_is_bothered_in_vain() -> None:
    scene = Moderated(asks_inflight_max=2)
    rids = [scene.send(1, 2, body=b"%d" % n) for n in range(5)]
    scene.store_only()
    assert [ask.body for ask in scene.asked] == [b"0", b"1"]
    scene.verdict(b"1", ALLOW)
    assert [ask.body for ask in scene.asked] == [b"0", b"1", b"2"]
    scene.advance(scene.config.request_timeout_ms)
    assert {scene.refused(rid) for rid in rids} == {ErrorCode.UNAVAILABLE}
    scene.settle()
    assert len(scene.asked) == 3, "those nobody waits for any more are not asked about"
    assert scene.effective() == []
    assert scene.writer.idle()


# ------------------------------------------------------------ after-send


def test_a_committed_message_is_told_once_and_a_replay_is_not() -> None:
    scene = Moderated(FailPolicy.OFF, after_send=True)
    scene.create(1, 2)
    assert scene.told == []
    rid = scene.send(1, 2, number=7, body=b"hi")
    scene.settle()
    scene.send(1, 2, number=7, body=b"hi")
    scene.settle()
    (notice,) = scene.told
    record = decode_stored_record(notice.stored)
    assert (record.message_id, record.body) == (scene.sent(rid).message_id, b"hi")
    assert record.conversation_seq == 1


def test_what_an_open_finishes_is_told_too() -> None:
    scene = Moderated(FailPolicy.OFF, after_send=True)
    scene.send(1, 2)
    append = scene.until(Append)
    scene.step(Unknown(op=append.op))
    scene.settle()
    assert [decode_stored_record(one.stored).conversation_seq for one in scene.told] == [1]


# ------------------------------------------------------------ all together


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "again", "store", "judge", "reset", "wait"]),
            st.integers(0, 5),
        ),
        max_size=40,
    ),
    st.sampled_from([FailPolicy.OPEN, FailPolicy.CLOSED]),
)
@settings(max_examples=150, deadline=None)
def test_nothing_rejected_is_ever_committed(moves: list[Any], policy: FailPolicy) -> None:
    scene = Moderated(policy, asks_inflight_max=2)
    verdicts = (ALLOW, REJECT, UNAVAILABLE)
    rids: dict[int, bytes] = {}
    for what, number in moves:
        body = b"%d" % number
        scene.says[body] = verdicts[number % 3]
        if what in ("send", "again"):
            rids[scene.send(1, 2 + number % 2, number=number + 1, body=body)] = body
        elif what == "store":
            scene.store_only()
        elif what == "judge" and scene.pending(AskVerdict):
            asks = scene.pending(AskVerdict)
            ask = asks[number % len(asks)]
            scene.inflight.remove(ask)
            scene.step(scene.carry_out(ask))
        elif what == "reset":
            scene.step(StoreReset(op=None, store=StoreRole.MESSAGE))
        elif what == "wait":
            scene.advance(3_000)
    scene.settle()
    committed = scene.bodies()
    assert len(committed) == len(set(committed)), "one commit a message"
    allowed = {0, 2} if policy is FailPolicy.OPEN else {0}
    assert {int(body) % 3 for body in committed} <= allowed
    for rid, body in rids.items():
        answer = scene.said(rid)
        assert answer is not None
        if isinstance(answer, SendDone):
            assert body in committed
        elif int(body) % 3 == 1:
            assert isinstance(answer, Refused)
    assert scene.writer.idle()
