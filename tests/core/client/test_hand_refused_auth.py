"""The client in hand: what a refused AUTH does, and a token that is somebody else's."""

import pytest

from qim.core.client.vocabulary import ClientState, StateChanged, TokenRenewed
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import Error, SendMessage
from tests.core.client.hand import WALL, Hand, auth_ok
from tests.core.client.said import state


def test_a_token_renewed_while_the_old_one_is_judged_is_tried_too() -> None:
    """BR-074: the refusal of the old one must not stop a client that has a new one."""
    hand = Hand()
    request = hand.authenticating()
    hand.step(TokenRenewed(access_token="new", wall=WALL))
    hand.hear(Error(code=ErrorCode.TOKEN_EXPIRED, message=""), request=request)
    assert state(hand) is ClientState.WAITING
    hand.advance(1_000)
    request = hand.authenticating()
    hand.hear(Error(code=ErrorCode.TOKEN_EXPIRED, message=""), request=request)
    assert state(hand) is ClientState.STOPPED, "nobody has another"
    assert len(hand.dials) == 2, "one attempt a back-off"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_ARGUMENT,
        ErrorCode.UNSUPPORTED,
        ErrorCode.MALFORMED_FRAME,
        ErrorCode.FRAME_TOO_LARGE,
    ],
    ids=lambda code: code.name,
)
def test_an_auth_no_server_takes_is_not_said_for_ever(code: ErrorCode) -> None:
    hand = Hand()
    request = hand.authenticating()
    hand.hear(Error(code=code, message="the device_id is odd"), request=request)
    last = hand.told(StateChanged)[-1]
    assert (last.state, last.reason, last.refused) == (ClientState.STOPPED, code, True)
    assert last.detail == "the device_id is odd"
    hand.advance(10**6)
    assert len(hand.dials) == 1


def test_why_a_login_waits_is_told() -> None:
    hand = Hand()
    request = hand.authenticating()
    hand.hear(Error(code=ErrorCode.UNAVAILABLE, message="no mailbox"), request=request)
    last = hand.told(StateChanged)[-1]
    assert (last.state, last.reason) == (ClientState.WAITING, ErrorCode.UNAVAILABLE)
    assert (last.refused, last.detail) == (True, "no mailbox")


def test_the_token_of_another_user_brings_nothing_of_his() -> None:
    """His messages and cursor would stand among ours, our pending rows go out in his name."""
    hand = Hand()
    hand.send(1)
    hand.hear(auth_ok(user_id=9, has_offline=True), request=hand.authenticating())
    last = hand.told(StateChanged)[-1]
    assert (last.state, last.reason, last.refused) == (
        ClientState.STOPPED,
        ErrorCode.FORBIDDEN,
        True,
    )
    assert "user 9" in last.detail
    assert "user 1" in last.detail
    assert not hand.said()
    assert hand.store.cursor is None
    hand.step(TokenRenewed(access_token="ours", wall=WALL))
    hand.online()
    assert state(hand) is ClientState.ONLINE
    assert hand.said(SendMessage)
