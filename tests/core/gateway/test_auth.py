"""AUTH: tokens, what AUTH_OK waits for and says, cursors refused, and answers of an AUTH given up."""

from typing import Any

import pytest

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import AuthOk
from qim.core.contract.params import DEFAULT
from qim.core.contract.rpc import AskSync, Refused, SyncAnswer
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.store_mailbox import EnterPresence, LeavePresence, PresenceLeft
from tests.core.gateway.gate import MAILBOX_SEQ, WALL, Gate, auth, token


def test_auth_ok_says_what_the_client_needs() -> None:
    gate = Gate()
    gate.entering(5, cursor=b"mine")
    (ask,) = gate.asked(AskSync)
    assert (ask.actor.user_id, ask.actor.device_id, ask.cursor) == (1, b"phone", b"mine")
    epoch = gate.presence()
    gate.tell(
        SyncAnswer(rid=ask.rid, sync_to_seq=MAILBOX_SEQ + 3, has_offline=True, cursor=b"mine")
    )
    ((frame, request),) = gate.frames_with_requests(5)
    assert isinstance(frame, AuthOk)
    assert request == 1
    assert (frame.session_epoch, frame.user_id, frame.has_offline) == (epoch, 1, True)
    assert (frame.sync_to_seq, frame.cursor) == (MAILBOX_SEQ + 3, b"mine")
    assert frame.server_time == WALL + gate.now
    assert frame.limits.body_bytes_max == DEFAULT.body_bytes_max


@pytest.mark.parametrize("order", ["presence first", "mailbox first"])
def test_auth_ok_waits_for_both(order: str) -> None:
    gate = Gate()
    gate.entering(5)
    if order == "presence first":
        gate.presence()
        assert gate.frames(5) == []
        gate.synced()
    else:
        gate.synced()
        assert gate.frames(5) == []
        gate.presence()
    assert [type(frame) for frame in gate.frames(5)] == [AuthOk]


@pytest.mark.parametrize(
    ("access_token", "code"),
    [
        ("", ErrorCode.UNAUTHENTICATED),
        ("nonsense", ErrorCode.UNAUTHENTICATED),
        (token()[:-1] + "A", ErrorCode.UNAUTHENTICATED),
        (token(device_id=b"laptop"), ErrorCode.UNAUTHENTICATED),
        (token(expires_at=WALL), ErrorCode.TOKEN_EXPIRED),
    ],
)
def test_bad_tokens(access_token: str, code: ErrorCode) -> None:
    gate = Gate()
    gate.accept(5)
    gate.say(5, auth(access_token=access_token), request=9)
    assert gate.refusal(5) == (code, 9)
    gate.say(5, auth(), request=10)
    gate.owners()
    assert gate.asked(AskSync), "a good token may follow on the same connection"


@pytest.mark.parametrize("secrets", [(b"new", b"secret"), (b"secret", b"old")])
def test_any_of_the_secrets_verifies(secrets: tuple[bytes, ...]) -> None:
    gate = Gate(token_secrets=secrets)
    gate.entering(5)
    assert gate.asked(AskSync)
    gate.accept(6)
    gate.say(6, auth(access_token=token(expires_at=WALL)))
    assert gate.refusal(6)[0] == ErrorCode.TOKEN_EXPIRED, "not blamed on the other secret"


def test_a_token_for_exactly_this_device() -> None:
    gate = Gate()
    gate.accept(5)
    gate.say(5, auth(access_token=token(device_id=b"phone")))
    gate.owners()
    assert gate.asked(AskSync)


def test_tries_are_counted_and_end() -> None:
    gate = Gate()
    gate.accept(5)
    for _ in range(3):
        assert not gate.closed
        gate.say(5, auth(access_token=""))
    assert gate.closed == [5]


@pytest.mark.parametrize(
    "code", [ErrorCode.CURSOR_EXPIRED, ErrorCode.CURSOR_INVALID, ErrorCode.CURSOR_REBASED]
)
def test_a_refused_cursor_lets_the_same_connection_try_without(code: ErrorCode) -> None:
    gate = Gate()
    gate.entering(5, cursor=b"old")
    gate.presence()
    (ask,) = gate.asked(AskSync)
    gate.tell(Refused(rid=ask.rid, code=code, message="no"))
    assert gate.refusal(5) == (code, 1)
    (leave,) = gate.take(LeavePresence)
    assert leave.session_epoch == 1
    gate.say(5, auth(), request=2)
    gate.presence()
    gate.synced()
    assert [type(frame) for frame in gate.frames(5)] == [AuthOk]


def test_a_presence_entry_of_a_given_up_auth_is_left_again() -> None:
    gate = Gate()
    gate.entering(5)
    (ask,) = gate.asked(AskSync)
    gate.tell(Refused(rid=ask.rid, code=ErrorCode.UNAVAILABLE, message="no"))
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 1)
    epoch = gate.presence()
    (leave,) = gate.take(LeavePresence)
    assert leave.session_epoch == epoch


@pytest.mark.parametrize("refused", [False, True])
def test_a_late_sync_answer_of_a_given_up_auth_is_not_taken_for_the_next(refused: bool) -> None:
    gate = Gate()
    gate.entering(5, cursor=b"old")
    (first,) = gate.asked(AskSync)
    (enter,) = gate.take(EnterPresence)
    gate.step(Failed(op=enter.op, why=FailReason.UNREACHABLE))
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 1)
    gate.say(5, auth(), request=1)
    gate.presence()
    late = SyncAnswer(rid=first.rid, sync_to_seq=1, has_offline=False, cursor=b"old")
    no = Refused(rid=first.rid, code=ErrorCode.CURSOR_EXPIRED, message="no")
    gate.tell(no if refused else late)
    assert gate.frames(5) == []
    gate.synced()
    (frame,) = gate.frames(5)
    assert frame.cursor == b"cursor"


@pytest.mark.parametrize("how", ["failed", "unknown", "reset"])
def test_no_presence_no_session(how: str) -> None:
    gate = Gate()
    gate.entering(5)
    gate.synced()
    (enter,) = gate.take(EnterPresence)
    completion: Any = {
        "failed": Failed(op=enter.op, why=FailReason.OVERLOADED),
        "unknown": Unknown(op=enter.op),
        "reset": StoreReset(op=enter.op, store=StoreRole.MAILBOX),
    }[how]
    gate.step(completion)
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 1)
    assert not gate.closed


def test_gone_before_the_entry_came_leaves_it() -> None:
    gate = Gate()
    gate.entering(5)
    gate.hang_up(5)
    epoch = gate.presence()
    (leave,) = gate.take(LeavePresence)
    assert (leave.user_id, leave.device_id, leave.session_epoch) == (1, b"phone", epoch)
    gate.step(PresenceLeft(op=leave.op))
    gate.synced()
    assert gate.node.idle()


def test_unauthenticated_connections_end_after_ten_seconds() -> None:
    gate = Gate()
    gate.accept(5)
    gate.now += 9_999
    gate.say_bytes(5, b"\0")  # a trickle of bytes buys no time
    assert gate.node.deadline() == 11_000
    gate.now += 1
    gate.step()
    assert gate.refusal(5) == (ErrorCode.UNAUTHENTICATED, 0)
    assert gate.closed == [5]
