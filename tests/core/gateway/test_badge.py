"""The badge in AUTH_OK: waited for, not for long, and never another AUTH's."""

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import AuthOk
from qim.core.contract.rpc import AskSync, Refused
from qim.core.contract.rpc_session import AskSessionList
from tests.core.gateway.gate import Gate, auth
from tests.core.gateway.services import listed, row


def entering() -> Gate:
    gate = Gate()
    gate.sessions = True
    gate.entering(5)
    gate.presence()
    return gate


def test_auth_ok_waits_for_the_badge() -> None:
    gate = entering()
    gate.synced()
    assert gate.frames(5) == []
    (ask,) = gate.asked(AskSessionList)
    gate.tell(listed(ask, row(1), badge=42))
    (frame,) = gate.frames(5)
    assert isinstance(frame, AuthOk)
    assert frame.badge == 42


def test_the_badge_may_come_first() -> None:
    gate = entering()
    (ask,) = gate.asked(AskSessionList)
    gate.tell(listed(ask, badge=42))
    gate.tell(listed(ask, badge=43))
    gate.synced()
    (frame,) = gate.frames(5)
    assert frame.badge == 42


def test_the_wait_for_the_badge_has_an_end() -> None:
    gate = entering()
    gate.synced()
    (ask,) = gate.asked(AskSessionList)
    due = gate.node.deadline()
    assert due == gate.now + 250
    gate.now = due
    gate.step()
    (frame,) = gate.frames(5)
    assert (frame.badge, gate.counts["gateway_badges_unknown"]) == (0, 1)
    gate.tell(listed(ask, badge=42))
    assert gate.frames(5) == [], "the late answer is nobody's"


def test_a_refused_badge_is_no_reason_to_wait() -> None:
    gate = entering()
    gate.synced()
    (ask,) = gate.asked(AskSessionList)
    gate.tell(Refused(rid=ask.rid, code=ErrorCode.UNAVAILABLE, message="opening"))
    (frame,) = gate.frames(5)
    assert frame.badge == 0


def test_the_badge_of_an_auth_given_up_is_not_the_next_ones() -> None:
    gate = entering()
    (first,) = gate.asked(AskSessionList)
    (sync,) = gate.asked(AskSync)
    gate.tell(Refused(rid=sync.rid, code=ErrorCode.CURSOR_EXPIRED, message="old"))
    assert gate.refusal(5) == (ErrorCode.CURSOR_EXPIRED, 1)
    gate.effects.clear()
    gate.say(5, auth(attempt=2), request=2)
    gate.tell(listed(first, badge=42))
    gate.presence()
    gate.synced()
    assert gate.frames(5) == []
    gate.now += 250
    gate.step()
    (frame,) = gate.frames(5)
    assert frame.badge == 0


def test_a_connection_that_went_takes_its_badge_along() -> None:
    gate = entering()
    waits_until = gate.now + 250
    assert gate.node.deadline() == waits_until
    gate.hang_up(5)
    assert gate.node.deadline() != waits_until, "nobody is to be woken for it"
