"""The client in hand: a conversation whose history no server can read, and values that no frame can carry."""

from typing import Any

import pytest

from qim.core.client.vocabulary import (
    ClientState,
    HistoryRequested,
    MarkReadRequested,
    QueryFailed,
    SendRefused,
    SessionsReady,
    StateSettled,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import Error, HistoryBatch, PullHistory
from qim.core.ports.local_store import LocalState
from tests.core.client.hand import Hand
from tests.core.client.said import GROUP, key, record, state
from tests.core.client.said_of_sessions import by_hand, listed, no_states, page, read_on
from tests.core.client.test_hand_rebuilding import rebuilding

TRIES = 3


def asked_history(hand: Hand) -> tuple[Any, int]:
    ((frame, request),) = hand.said(PullHistory)
    return frame.conversation_id, request


@pytest.mark.parametrize("code", [ErrorCode.INTERNAL, ErrorCode.INVALID_ARGUMENT, 999])
def test_one_conversation_nobody_can_read_hides_no_other(code: int) -> None:
    """BR-044: it stops neither the unread of the rest nor the list; what is shown of itself stays a lower bound."""
    hand = by_hand(fill_tries_max=TRIES)
    _, request = read_on(hand)
    hand.hear(page(listed(8), listed(9)), request=request)
    no_states(hand)
    for _ in range(TRIES):
        conversation_id, request = asked_history(hand)
        assert conversation_id == key(8)
        hand.hear(Error(code=code, message="a stored record can't be read"), request=request)
        no_states(hand)
        hand.advance(10_000)
    conversation_id, request = asked_history(hand)
    assert conversation_id == key(9)
    assert not hand.told(SessionsReady)
    records = (record(9, sender_id=2),)
    hand.hear(
        HistoryBatch(conversation_id=key(9), records=records, has_more=False), request=request
    )
    no_states(hand)
    assert len(hand.told(SessionsReady)) == 1
    assert hand.store.rows.conversation(key(9)).floor == 0
    assert hand.store.rows.conversation(key(8)).floor is None


@pytest.mark.parametrize("code", [ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN])
def test_a_server_that_is_away_is_waited_for(code: ErrorCode) -> None:
    hand = by_hand(fill_tries_max=TRIES)
    _, request = read_on(hand)
    hand.hear(page(listed(8), listed(9)), request=request)
    no_states(hand)
    for _ in range(TRIES + 3):
        conversation_id, request = asked_history(hand)
        assert conversation_id == key(8)
        hand.hear(Error(code=code, message=""), request=request)
        no_states(hand)
        hand.advance(14_000)


@pytest.mark.parametrize("code", [ErrorCode.INTERNAL, 999])
def test_a_rebuild_passes_nothing_over(code: int) -> None:
    """What it left out would be lost: it goes on asking, and stays a rebuild."""
    hand = rebuilding(fill_tries_max=TRIES)
    for _ in range(TRIES + 3):
        conversation_id, request = asked_history(hand)
        assert conversation_id == GROUP
        hand.hear(Error(code=code, message="a stored record can't be read"), request=request)
        no_states(hand)
        hand.advance(14_000)
    assert hand.store.state is LocalState.REBUILDING


@pytest.mark.parametrize("odd", [object(), None, 5], ids=["object", "None", "int"])
def test_a_value_that_fits_no_frame_is_refused_and_nothing_else(odd: Any) -> None:
    """The machine goes on whatever it is asked: SDKs and drivers of later days check less, or other things."""
    hand = by_hand()
    hand.send(1, body=odd)
    hand.step(HistoryRequested(ticket=7, conversation_id=odd, anchor=0, direction=1))
    hand.step(MarkReadRequested(ticket=8, conversation_id=odd, read_seq=1))
    assert [n.code for n in hand.told(SendRefused)] == [ErrorCode.INVALID_ARGUMENT]
    assert [n.code for n in hand.told(QueryFailed)] == [ErrorCode.INVALID_ARGUMENT]
    assert [n.code for n in hand.told(StateSettled)] == [ErrorCode.INVALID_ARGUMENT]
    assert all(n.message for n in hand.told(QueryFailed)), "and why"
    assert state(hand) is ClientState.ONLINE
