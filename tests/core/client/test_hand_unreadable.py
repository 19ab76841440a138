"""The client in hand: a conversation whose history no server can read."""

from typing import Any

import pytest

from qim.core.client.vocabulary import SessionsReady
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import Error, HistoryBatch, PullHistory
from tests.core.client.hand import Hand
from tests.core.client.said import key, record
from tests.core.client.said_of_sessions import by_hand, listed, no_states, page, read_on

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
