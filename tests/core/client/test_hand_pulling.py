"""The client in hand: the cursor, pushes, questions."""

from typing import Any

import pytest

from qim.core.client.vocabulary import (
    CaughtUp,
    ClientState,
    GroupChangeRequested,
    GroupSettled,
    HistoryArrived,
    HistoryRequested,
    MembersRequested,
    MessageApplied,
    QueryFailed,
    SendSettled,
    SyncRequested,
)
from qim.core.contract.entities import MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Auth,
    Error,
    GroupOk,
    LeaveGroup,
    MembersBatch,
    Pong,
    PullHistory,
    PullMailbox,
    PushEvents,
)
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local_store import SaveBatch, SaveHistory, SavePush
from qim.core.ports.observe import StageReached, Violation
from qim.core.ports.sockets import Dialed
from tests.core.client.hand import SEQ, WALL, Hand
from tests.core.client.said import GROUP, batch, entry, hand_in, history, key, record


def test_the_cursor_moves_only_when_the_batch_is_stored() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.serve = False
    hand.hear(batch(SEQ + 1, entry(1), has_more=True), request=request)
    assert not hand.told(MessageApplied)
    assert not hand.said(PullMailbox), "one thing after the other"
    (save,) = [o for o in hand.orders if isinstance(o, SaveBatch)]
    hand.orders.clear()
    hand.serve = True
    hand.step(Failed(op=save.op, why=FailReason.OUT_OF_MEMORY))
    hand.advance(1_000)
    ((pull, request),) = hand.said(PullMailbox)
    assert pull.cursor == b"c1", "the cursor from before"
    hand.hear(batch(SEQ + 1, entry(1)), request=request)
    assert len(hand.told(MessageApplied)) == 1
    assert [e for e in hand.others if isinstance(e, StageReached)]


def test_a_batch_stored_after_its_connection_went_counts() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.serve = False
    hand.hear(batch(SEQ + 1, entry(1)), request=request)
    (save,) = hand.orders
    hand.orders.clear()
    hand.hang_up()
    hand.serve = True
    hand.step(hand.store.serve(save))
    assert len(hand.told(MessageApplied)) == 1
    hand.advance(1_000)
    hand.step(Dialed(conn=hand.conn))
    ((auth, _),) = hand.said(Auth)
    assert auth.cursor == b"c%d" % (SEQ + 1)


def test_a_batch_behind_the_cursor_takes_nothing_back() -> None:
    """The lane's tail is being replayed there: empty, a hint, and nothing moves."""
    hand = Hand()
    hand.online(sync_to_seq=SEQ)
    hand.hear(Pong(client_time=0, server_time=WALL, watermark=SEQ + 5))
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ - 3, retry_after_ms=700), request=request)
    assert hand.store.covered == SEQ
    hand.advance(699)
    assert not hand.said(PullMailbox)
    hand.advance(1)
    assert len(hand.said(PullMailbox)) == 1


def test_an_empty_batch_below_what_is_known_is_no_busy_loop() -> None:
    hand = Hand()
    hand.online()
    hand.hear(Pong(client_time=0, server_time=WALL, watermark=SEQ + 5))
    pulls = 0
    for _ in range(600):
        for _, request in hand.said(PullMailbox):
            pulls += 1
            hand.hear(batch(SEQ), request=request)
        hand.advance(100)
    assert 5 <= pulls <= 12


def test_more_is_pulled_at_once_and_a_hint_is_respected() -> None:
    hand = Hand()
    hand.online()
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 1, entry(1), has_more=True), request=request)
    ((pull, request),) = hand.said(PullMailbox)
    assert pull.cursor == b"c%d" % (SEQ + 1)
    hand.hear(batch(SEQ + 2, entry(2), has_more=True, retry_after_ms=50), request=request)
    assert not hand.said(PullMailbox)
    hand.advance(50)
    assert len(hand.said(PullMailbox)) == 1


def test_has_more_without_progress_pauses() -> None:
    hand = Hand()
    hand.online()
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ, has_more=True), request=request)
    assert not hand.said(PullMailbox)
    hand.advance(1_000)
    assert len(hand.said(PullMailbox)) == 1


def test_a_pull_nobody_answers_ends_and_is_asked_again() -> None:
    hand = Hand()
    hand.online()
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.advance(15_000)
    hand.hear(batch(SEQ + 1, entry(1)), request=request)
    assert not hand.told(MessageApplied), "late: nobody waits for it any more"
    hand.advance(1_000)
    assert len(hand.said(PullMailbox)) == 1


def test_pushes_are_stored_once_and_lead_to_a_pull() -> None:
    hand = Hand()
    hand.online()
    hand.hear(PushEvents(entries=(entry(1), entry(2))))
    hand.hear(PushEvents(entries=(entry(1),)))
    assert [n.message.conversation_seq for n in hand.told(MessageApplied)] == [1, 2]
    assert not hand.said(PullMailbox), "it may gather some more"
    hand.advance(250)
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 2, entry(1), entry(2)), request=request)
    assert len(hand.told(MessageApplied)) == 2
    assert hand.told(CaughtUp)[-1].covered_through == SEQ + 2
    hand.hear(PushEvents(entries=(entry(2),)))
    assert len(hand.store.messages) == 2


def test_a_hint_without_a_body_is_pulled_at_once() -> None:
    hand = Hand()
    hand.online()
    hand.hear(PushEvents(entries=(entry(1, body=None),)))
    assert not hand.told(MessageApplied)
    assert len(hand.said(PullMailbox)) == 1


def test_a_pushed_tombstone_is_a_message() -> None:
    hand = Hand()
    hand.online()
    hand.hear(PushEvents(entries=(entry(1, body=None, tombstone=2),)))
    (applied,) = hand.told(MessageApplied)
    assert applied.message.tombstone == 2


def test_pushes_the_store_can_not_take_yet_are_left_to_the_pull() -> None:
    hand = Hand(pushes_unsaved_max=1)
    hand.online()
    hand.serve = False
    hand.hear(PushEvents(entries=(entry(1),)))
    hand.hear(PushEvents(entries=(entry(2),)))
    assert len([o for o in hand.orders if isinstance(o, SavePush)]) == 1
    (push,) = hand.orders
    hand.orders.clear()
    hand.step(Unknown(op=push.op))
    hand.advance(250)
    assert len(hand.said(PullMailbox)) == 1


def test_a_push_that_is_empty_or_old_is_nothing() -> None:
    hand = Hand()
    hand.online()
    hand.hear(PushEvents(entries=()), PushEvents(entries=(entry(1, seq=SEQ),)))
    hand.advance(1_000)
    assert not hand.said(PullMailbox)
    assert not hand.told(MessageApplied)


def test_pushes_before_auth_are_not_heard() -> None:
    hand = Hand()
    hand.authenticating()
    hand.hear(PushEvents(entries=(entry(1),)))
    assert not hand.told(MessageApplied)


def test_caught_up_is_said_once_and_again_when_asked() -> None:
    hand = Hand()
    hand.online()
    hand.advance(5_000)
    assert len(hand.told(CaughtUp)) == 1
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ), request=request)
    assert len(hand.told(CaughtUp)) == 2


def test_questions_of_every_end() -> None:
    hand = Hand(queries_inflight_max=1)
    hand.online()
    for ticket in (1, 2, 3, 4):
        hand.step(HistoryRequested(ticket=ticket, conversation_id=GROUP, anchor=0, direction=1))
    hand.step(MembersRequested(ticket=5, conversation_id=GROUP))
    ((_, request),) = hand.said(PullHistory)
    hand.hear(history(record(1)), request=request)
    ((_, request),) = hand.said(PullHistory)
    hand.hear(Error(code=ErrorCode.NOT_MEMBER, message="", retry_after_ms=3), request=request)
    ((_, request),) = hand.said(PullHistory)
    members = MembersBatch(
        conversation_id=GROUP,
        version=1,
        since_version=0,
        added=(),
        removed=(),
        name="",
        creator=1,
        full=True,
    )
    hand.hear(members, request=request)  # not what was asked
    hand.hang_up()
    assert [n.ticket for n in hand.told(HistoryArrived)] == [1]
    failures = [(n.ticket, n.code) for n in hand.told(QueryFailed)]
    assert failures == [
        (2, ErrorCode.NOT_MEMBER),
        (3, ErrorCode.INTERNAL),
        (4, ErrorCode.UNAVAILABLE),
        (5, ErrorCode.UNAVAILABLE),
    ]
    assert not hand.store.anchors, "a page asked by the user moves no anchor"


def test_a_page_the_store_can_not_keep_fails_the_question() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.store.fail_next += [SaveHistory]
    hand.step(HistoryRequested(ticket=1, conversation_id=GROUP, anchor=0, direction=1))
    ((_, request),) = hand.said(PullHistory)
    hand.hear(history(record(1)), request=request)
    assert [n.code for n in hand.told(QueryFailed)] == [ErrorCode.UNAVAILABLE]


@pytest.mark.parametrize(
    "query",
    [
        HistoryRequested(ticket=1, conversation_id=GROUP, anchor=-1, direction=1),
        HistoryRequested(ticket=1, conversation_id=GROUP, anchor=1 << 70, direction=1),
        HistoryRequested(ticket=1, conversation_id=GROUP, anchor=1, direction=7),
        HistoryRequested(ticket=1, conversation_id=bytes(16), anchor=1, direction=1),
        MembersRequested(ticket=1, conversation_id=b"short"),
    ],
)
def test_questions_no_server_would_take_fail_at_once(query: Any) -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.step(query)
    assert [n.code for n in hand.told(QueryFailed)] == [ErrorCode.INVALID_ARGUMENT]


def test_leave_goes_out_as_leave() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.step(
        GroupChangeRequested(
            client_message_id=key(1),
            operation=MembershipOp.LEAVE,
            conversation_id=GROUP,
            members=(),
            wall=WALL,
        )
    )
    ((frame, request),) = hand.said(LeaveGroup)
    hand.hear(
        GroupOk(
            client_message_id=key(1), conversation_id=GROUP, version=4, control_seq=9, noop=True
        ),
        request=request,
    )
    (settled,) = hand.told(GroupSettled)
    assert (settled.version, settled.control_seq, settled.noop) == (4, 9, True)
    assert frame.conversation_id == GROUP
    assert hand.store.groups == {key(1): (GROUP, 4)}


def test_a_moved_cursor_that_nothing_stands_behind_is_a_violation() -> None:
    """The client's own witness of cursor_advanced_by_push."""
    hand = hand_in(ClientState.ONLINE)
    hand.client._parts.pulling.covered += 1
    hand.step()
    (violation,) = [e for e in hand.others if isinstance(e, Violation)]
    assert violation.check == "cursor_advanced_by_push_total"


def test_a_batch_that_settles_and_can_not_be_stored_unsettles() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1)
    hand.step(SyncRequested())
    ((_, pull),) = hand.said(PullMailbox)
    hand.store.fail_next += [SaveBatch]
    own = entry(1, client_message_id=key(1), sender_id=1)
    hand.hear(batch(SEQ + 1, own), request=pull)
    assert not hand.told(SendSettled)
    hand.advance(1_000)
    for _, request in hand.said(PullMailbox):
        hand.hear(batch(SEQ + 1, own), request=request)
    assert [n.code for n in hand.told(SendSettled)] == [0]


def test_a_second_own_copy_in_a_batch_settles_once() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1)
    hand.step(SyncRequested())
    ((_, pull),) = hand.said(PullMailbox)
    own = entry(1, client_message_id=key(1), sender_id=1)
    twin = entry(2, client_message_id=key(1), sender_id=1)
    hand.hear(batch(SEQ + 2, own, twin), request=pull)
    assert len(hand.told(SendSettled)) == 1
