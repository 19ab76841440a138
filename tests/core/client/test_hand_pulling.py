"""The client in hand: the cursor, pushes, rebuild, questions."""

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
    HistoryBatch,
    LeaveGroup,
    MembersBatch,
    OnlineReady,
    Pong,
    PullHistory,
    PullMailbox,
    PushEvents,
    SyncComplete,
)
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local_store import (
    LocalState,
    SaveBatch,
    SaveHistory,
    SavePush,
    SaveState,
)
from qim.core.ports.observe import StageReached, Violation
from qim.core.ports.sockets import Dialed
from tests.core.client.hand import SEQ, WALL, Hand, auth_ok
from tests.core.client.said import GROUP, batch, entry, hand_in, history, key, record, state
from tests.core.client.toy_local_store import ToyLocalStore


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


def rebuilding(**config: Any) -> Hand:
    """REBUILDING, online, the mailbox part done; one conversation with anchor 3."""
    store = ToyLocalStore()
    store.cursor, store.covered = b"c-old", SEQ - 50
    store.anchors = {GROUP: 3}
    hand = Hand(store, **config)
    request = hand.authenticating()
    hand.hear(Error(code=ErrorCode.CURSOR_EXPIRED, message=""), request=request)
    assert (store.state, store.cursor) == (LocalState.REBUILDING, None)
    hand.advance(1_000)
    request = hand.authenticating()
    hand.online_after(request)
    return hand


def test_history_part_of_the_rebuild() -> None:
    hand = rebuilding()
    ((page, request),) = hand.said(PullHistory)
    assert (page.anchor, page.direction) == (3, 1)
    hand.hear(history(record(4), record(5), has_more=True), request=request)
    assert hand.store.anchors == {GROUP: 5}
    ((page, request),) = hand.said(PullHistory)
    assert page.anchor == 5
    hand.hear(Error(code=ErrorCode.UNAVAILABLE, message=""), request=request)
    hand.advance(1_000)
    ((page, request),) = hand.said(PullHistory)
    hand.store.fail_next += [SaveHistory]
    hand.hear(history(record(6)), request=request)
    hand.advance(2_000)
    ((page, request),) = hand.said(PullHistory)
    assert page.anchor == 5
    hand.hear(history(record(6)), request=request)
    assert hand.store.state is LocalState.ONLINE
    assert hand.store.anchors == {GROUP: 6}
    assert len(hand.told(CaughtUp)) == 1


def test_nobody_is_told_that_all_is_here_while_history_is_to_come() -> None:
    hand = rebuilding()
    assert not hand.told(CaughtUp)
    ((_, request),) = hand.said(PullHistory)
    hand.hear(history(), request=request)
    assert len(hand.told(CaughtUp)) == 1


@pytest.mark.parametrize("code", [ErrorCode.NOT_MEMBER, ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN])
def test_a_conversation_that_is_not_ours_any_more_is_passed_over(code: ErrorCode) -> None:
    hand = rebuilding()
    ((_, request),) = hand.said(PullHistory)
    hand.hear(Error(code=code, message=""), request=request)
    assert hand.store.state is LocalState.ONLINE


def test_anchors_are_read_page_by_page_and_failures_retried() -> None:
    from qim.core.ports.local_store import ReadAnchors

    store = ToyLocalStore()
    store.state = LocalState.REBUILDING
    store.target = SEQ
    store.anchors = {key(n): n for n in range(1, 6)}
    store.fail_next += [ReadAnchors]
    hand = Hand(store, anchors_page=2)
    hand.online()
    seen = []
    for _ in range(40):
        hand.advance(500)
        for page, request in hand.said(PullHistory):
            seen.append(page.conversation_id)
            hand.hear(
                HistoryBatch(conversation_id=page.conversation_id, records=(), has_more=True),
                request=request,
            )
    assert seen == [key(n) for n in range(1, 6)]
    assert store.state is LocalState.ONLINE


def test_a_page_from_before_the_cut_moves_nothing_on() -> None:
    hand = rebuilding()
    ((_, request),) = hand.said(PullHistory)
    hand.serve = False
    hand.hear(history(record(4)), request=request)
    (save,) = [o for o in hand.orders if isinstance(o, SaveHistory)]
    hand.orders.clear()
    hand.hang_up()
    hand.serve = True
    hand.step(hand.store.serve(save))
    assert hand.store.state is LocalState.REBUILDING
    assert hand.store.anchors == {GROUP: 4}


def test_a_moved_cursor_that_nothing_stands_behind_is_a_violation() -> None:
    """The client's own witness of cursor_advanced_by_push."""
    hand = hand_in(ClientState.ONLINE)
    hand.client._parts.pulling.covered += 1
    hand.step()
    (violation,) = [e for e in hand.others if isinstance(e, Violation)]
    assert violation.check == "cursor_advanced_by_push_total"


def test_the_state_of_a_rebuild_is_stored_before_anything_else() -> None:
    store = ToyLocalStore()
    store.cursor, store.covered = b"c-old", SEQ - 50
    hand = Hand(store)
    request = hand.authenticating()
    store.fail_next += [SaveState]
    hand.hear(Error(code=ErrorCode.CURSOR_REBASED, message=""), request=request)
    hand.advance(300)
    hand.step(Dialed(conn=hand.conn))
    assert not hand.said(Auth)
    hand.advance(200)
    ((auth, _),) = hand.said(Auth)
    assert auth.cursor is None
    assert store.state is LocalState.REBUILDING


def test_a_rebuild_whose_target_is_overtaken_saves_the_newest() -> None:
    """An older order that failed is not repeated over a newer one."""
    store = ToyLocalStore()
    store.state = LocalState.REBUILDING
    hand = Hand(store, serve=False)
    hand.serve_one()
    hand.dialing()
    hand.serve_one()
    request = hand.authenticating()
    hand.hear(auth_ok(), request=request)
    (target,) = [o for o in hand.orders if isinstance(o, SaveState)]
    assert (target.rebuild_target, target.drop_cursor) == (SEQ, False)
    hand.orders.clear()
    hand.serve = True
    ((_, pull),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ), request=pull)
    ((_, ready),) = hand.said(SyncComplete)
    hand.hear(OnlineReady(watermark=SEQ), request=ready)
    assert store.state is LocalState.ONLINE
    hand.step(Failed(op=target.op, why=FailReason.UNREACHABLE))
    hand.advance(1_000)
    assert store.state is LocalState.ONLINE


def test_unwanted_pages_that_can_not_be_stored_change_nothing() -> None:
    hand = rebuilding()
    ((_, request),) = hand.said(PullHistory)
    hand.serve = False
    hand.hear(history(record(4)), request=request)
    (save,) = [o for o in hand.orders if isinstance(o, SaveHistory)]
    hand.orders.clear()
    hand.hang_up()
    hand.step(Failed(op=save.op, why=FailReason.UNREACHABLE))
    assert state(hand) is ClientState.WAITING


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
