"""The client in hand: rows durable, dated, sent in order, settled once; look-ups."""

from typing import Any

import pytest

from qim.core.client.vocabulary import (
    ClientState,
    GroupChangeRequested,
    GroupSettled,
    SendQueued,
    SendSettled,
    SyncRequested,
)
from qim.core.contract.entities import MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Error,
    GroupAdd,
    GroupOk,
    Pong,
    PullHistory,
    PullMailbox,
    SendMessage,
)
from qim.core.ports.completion import Unknown
from qim.core.ports.local_store import (
    SaveAck,
    SaveNotAfter,
    SavePending,
)
from tests.core.client.hand import SEQ, WALL, Hand
from tests.core.client.said import GROUP, ack, batch, entry, hand_in, history, key, record


def test_a_row_fit_to_go_is_dated_and_stored_in_one_order() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.serve = False
    hand.send(1)
    assert [type(o) for o in hand.orders] == [SavePending]
    assert hand.orders[0].row.not_after == WALL + 5 + 3_600_000
    assert not hand.said(SendMessage)
    hand.serve_one()
    assert len(hand.said(SendMessage)) == 1
    assert [n.client_message_id for n in hand.told(SendQueued)] == [key(1)]


def test_a_row_dated_for_a_connection_that_went_is_dated_anew() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.serve = False
    hand.send(1)
    hand.hang_up()
    hand.serve_one()
    assert [type(o) for o in hand.orders] == [SaveNotAfter]
    assert hand.orders[0].rows == ((key(1), 0),)
    hand.serve = True
    hand.serve_one()
    hand.now += 3 * 3_600_000
    hand.step()
    hand.syncing(server_time=WALL + 3 * 3_600_000)
    ((send, _),) = hand.said(SendMessage)
    assert send.not_after == WALL + 4 * 3_600_000
    assert hand.store.pending[key(1)].not_after == send.not_after


@pytest.mark.parametrize(("slow_ms", "anew"), [(60_000, False), (60_001, True)])
def test_a_row_whose_storing_took_long_has_its_whole_time_yet(slow_ms: int, anew: bool) -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.serve = False
    hand.send(1)
    first = hand.orders[0].row.not_after
    hand.now += slow_ms
    hand.serve_one()
    assert [type(o) for o in hand.orders] == ([SaveNotAfter] if anew else [])
    assert len(hand.said(SendMessage)) == (not anew)
    if anew:
        hand.serve_one()
        ((send, _),) = hand.said(SendMessage)
        assert send.not_after == first + slow_ms


def test_taking_back_and_dating_anew_do_not_mix() -> None:
    """The taking back is answered last: only the order that counts lets the row go."""
    hand = hand_in(ClientState.ONLINE)
    hand.serve = False
    hand.send(1)
    hand.hang_up()
    hand.serve_one()
    (take_back,) = hand.orders
    hand.orders.clear()
    hand.serve = True
    hand.advance(1_000)
    hand.serve = False
    hand.syncing()
    (date,) = [o for o in hand.orders if isinstance(o, SaveNotAfter)]
    hand.step(hand.store.serve(take_back))
    assert not hand.said(SendMessage)
    hand.step(hand.store.serve(date))
    ((send, _),) = hand.said(SendMessage)
    assert hand.store.pending[key(1)].not_after == send.not_after


def test_dating_that_fails_is_tried_again() -> None:
    hand = Hand()
    hand.send(1)
    hand.store.fail_next += [SaveNotAfter]
    hand.online()
    assert not hand.said(SendMessage)
    hand.advance(1_000)
    assert len(hand.said(SendMessage)) == 1


def test_unknown_save_of_a_row_is_stored_once_more() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.serve = False
    hand.send(1)
    (order,) = hand.orders
    hand.orders.clear()
    hand.store.serve(order)
    hand.step(Unknown(op=order.op))
    assert not hand.orders, "not in a busy loop"
    hand.advance(500)
    assert [type(o) for o in hand.orders] == [SavePending]
    assert not hand.told(SendQueued)
    hand.serve_one()
    assert len(hand.told(SendQueued)) == 1


def test_rows_that_may_have_arrived_wait_for_the_first_sync_and_new_ones_do_not() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1, peer_user_id=2)
    ((first, _),) = hand.said(SendMessage)
    hand.hang_up()
    hand.send(2, peer_user_id=2)
    hand.send(3, peer_user_id=3)
    hand.advance(1_000)
    hand.syncing(has_offline=True)
    ((other, _),) = hand.said(SendMessage)
    assert other.client_message_id == key(3), "another conversation, never transmitted"
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ), request=request)
    ((again, _),) = hand.said(SendMessage)
    assert again == first, "same bytes, same not_after"


def test_sends_in_flight_are_bounded() -> None:
    hand = Hand(sends_inflight_max=2)
    hand.online()
    for number in range(1, 6):
        hand.send(number, peer_user_id=10 + number)
    sent = hand.said(SendMessage)
    assert len(sent) == 2
    hand.hear(ack(1), request=sent[0][1])
    hand.step()
    assert len(hand.said(SendMessage)) == 1


def test_a_window_is_refused_in_the_middle_and_keeps_its_bound() -> None:
    hand = Hand(conversation_inflight_max=3, sends_inflight_max=2)
    hand.online()
    for number in range(1, 6):
        hand.send(number)
    sent = hand.said(SendMessage)
    assert [frame.client_message_id for frame, _ in sent] == [key(1), key(2)]
    hand.hear(Error(code=ErrorCode.UNAVAILABLE, message=""), request=sent[0][1])
    assert not hand.said(SendMessage), "the head cools: nobody passes"
    hand.advance(1_000)
    assert [f.client_message_id for f, _ in hand.said(SendMessage)] == [key(1)]


def test_acks_end_rows_by_their_key_late_and_doubled_ones_too() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1)
    hand.hear(ack(1), ack(1), request=999)
    hand.hear(ack(1), ack(7))
    assert [n.code for n in hand.told(SendSettled)] == [0]
    hand.hear(GroupOk(client_message_id=key(1), conversation_id=GROUP, version=1, control_seq=1))
    assert not hand.told(GroupSettled)
    hand.advance(20_000)
    assert len(hand.told(SendSettled)) == 1


def test_nobody_answers_and_nothing_fails() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1)
    for _ in range(100):
        hand.advance(10_000)
        hand.hear(Pong(client_time=0, server_time=WALL + hand.now, watermark=SEQ))
    sends = hand.said(SendMessage)
    assert len(sends) > 10
    assert len({frame for frame, _ in sends}) == 1
    assert not hand.told(SendSettled)


def test_errors_for_rows_that_ended_meanwhile_change_nothing() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1)
    ((_, request),) = hand.said(SendMessage)
    own = entry(1, client_message_id=key(1), sender_id=1)
    hand.step(SyncRequested())
    ((_, pull),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 1, own), request=pull)
    assert [n.code for n in hand.told(SendSettled)] == [0]
    hand.hear(Error(code=ErrorCode.NOT_MEMBER, message=""), request=request)
    assert len(hand.told(SendSettled)) == 1


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INTERNAL, ErrorCode.UNAUTHENTICATED, ErrorCode.TOKEN_EXPIRED, ErrorCode.TIMEOUT_UNKNOWN, 999],
)  # fmt: skip
def test_a_refusal_that_says_nothing_of_the_row_is_not_its_end(code: int) -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1)
    ((first, request),) = hand.said(SendMessage)
    hand.hear(Error(code=code, message=""), request=request)
    hand.advance(1_000)
    ((again, _),) = hand.said(SendMessage)
    assert again == first
    assert not hand.told(SendSettled)


def test_a_row_is_not_sent_again_sooner_than_the_server_asks() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1)
    ((_, request),) = hand.said(SendMessage)
    refusal = Error(code=ErrorCode.RATE_LIMITED, message="", retry_after_ms=5_000)
    hand.hear(refusal, request=request)
    hand.advance(4_999)
    assert not hand.said(SendMessage)
    hand.advance(1)
    assert len(hand.said(SendMessage)) == 1


def test_a_foreign_copy_with_our_key_settles_nothing() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.send(1)
    hand.step(SyncRequested())
    ((_, pull),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 1, entry(1, client_message_id=key(1), sender_id=2)), request=pull)
    assert not hand.told(SendSettled)


@pytest.mark.parametrize("code", [ErrorCode.NOT_MEMBER, 999])
def test_group_changes_fail_and_retry_like_sends(code: int) -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.step(
        GroupChangeRequested(
            client_message_id=key(1),
            operation=MembershipOp.ADD,
            conversation_id=GROUP,
            members=(3,),
            wall=WALL,
        )
    )
    ((frame, request),) = hand.said(GroupAdd)
    assert frame.members == (3,)
    hand.hear(Error(code=code, message=""), request=request)
    if code == 999:
        hand.advance(1_000)
        assert len(hand.said(GroupAdd)) == 1, "a code we don't know says nothing"
    else:
        (settled,) = hand.told(GroupSettled)
        assert (settled.code, settled.conversation_id) == (code, GROUP)


def test_settling_that_is_not_stored_asks_the_server_again() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.store.fail_next += [SaveAck]
    hand.send(1)
    ((first, request),) = hand.said(SendMessage)
    hand.hear(ack(1), request=request)
    assert not hand.told(SendSettled)
    hand.advance(1_000)
    ((again, request),) = hand.said(SendMessage)
    assert again == first
    hand.hear(ack(1), request=request)
    assert len(hand.told(SendSettled)) == 1


def expired(**config: Any) -> tuple[Hand, int]:
    """A send was refused as expired; the request number of the look-up."""
    hand = Hand(**config)
    hand.online()
    hand.send(1)
    ((_, request),) = hand.said(SendMessage)
    hand.hear(Error(code=ErrorCode.SEND_EXPIRED, message=""), request=request)
    ((page, request),) = hand.said(PullHistory)
    assert (page.anchor, page.direction) == (2**64 - 1, 0)
    return hand, request


def test_look_up_reads_back_page_by_page_until_it_finds() -> None:
    hand, request = expired()
    hand.hear(history(record(8), record(9), has_more=True), request=request)
    ((page, request),) = hand.said(PullHistory)
    assert page.anchor == 8
    hand.hear(history(record(7, client_message_id=key(1))), request=request)
    (settled,) = hand.told(SendSettled)
    assert settled.coordinates is not None
    assert settled.coordinates.conversation_seq == 7


def test_look_up_ends_before_the_time_of_the_row() -> None:
    hand, request = expired()
    hand.hear(history(record(8, sent_at=WALL - 3_600_000), has_more=True), request=request)
    (settled,) = hand.told(SendSettled)
    assert (settled.coordinates, settled.code) == (None, ErrorCode.SEND_EXPIRED)


@pytest.mark.parametrize("code", [ErrorCode.UNAVAILABLE, ErrorCode.NOT_FOUND])
def test_look_up_refused(code: ErrorCode) -> None:
    hand, request = expired()
    hand.hear(Error(code=code, message=""), request=request)
    if code is ErrorCode.NOT_FOUND:
        assert [n.code for n in hand.told(SendSettled)] == [ErrorCode.SEND_EXPIRED]
    else:
        hand.advance(1_000)
        assert len(hand.said(PullHistory)) == 1
        assert not hand.told(SendSettled)


def test_one_look_up_at_a_time_and_lost_ones_start_again() -> None:
    hand = Hand()
    hand.online()
    for number in (1, 2):
        hand.send(number, peer_user_id=10 + number)
    for _, request in hand.said(SendMessage):
        hand.hear(Error(code=ErrorCode.SEND_EXPIRED, message=""), request=request)
    assert len(hand.said(PullHistory)) == 1
    hand.hang_up()
    hand.advance(1_000)
    hand.online(sync_to_seq=SEQ)
    ((_, request),) = hand.said(PullHistory)
    hand.hear(history(), request=request)
    hand.step()
    ((_, request),) = hand.said(PullHistory)
    hand.hear(history(), request=request)
    assert [n.code for n in hand.told(SendSettled)] == [ErrorCode.SEND_EXPIRED] * 2


def test_a_row_acked_while_it_is_looked_up() -> None:
    hand, request = expired()
    hand.hear(ack(1))
    hand.hear(history(record(7, client_message_id=key(1))), request=request)
    assert [n.code for n in hand.told(SendSettled)] == [0]
    hand, request = expired()
    hand.hear(ack(1))
    hand.hear(Error(code=ErrorCode.NOT_FOUND, message=""), request=request)
    assert [n.code for n in hand.told(SendSettled)] == [0]
