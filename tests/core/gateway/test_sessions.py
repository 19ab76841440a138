"""AUTH, presence, who replaces whom, ONLINE_READY and PONG."""

from typing import Any

import pytest

from qim.core.contract.entities import PresenceEntry
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    AuthOk,
    KickReason,
    OnlineReady,
    Ping,
    Pong,
    SyncComplete,
    encode_frame,
)
from qim.core.contract.params import DEFAULT, Parameters
from qim.core.contract.rpc import (
    AskSync,
    AskWatermark,
    Kick,
    Refused,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from qim.core.ports.sockets import (
    BytesReceived,
)
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    PresenceLeft,
    PresenceRefreshed,
    RefreshPresence,
)
from tests.core.gateway.gate import (
    MAILBOX_SEQ,
    WALL,
    Gate,
    auth,
    token,
)


def entry(gateway: str, conn: int, epoch: int, attempt: int = 1) -> PresenceEntry:
    return PresenceEntry(
        user_id=1,
        device_id=b"phone",
        gateway=gateway,
        conn=conn,
        session_epoch=epoch,
        attempt=attempt,
        expires_at=WALL,
    )


# ---------------------------------------------------------------- AUTH


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


def test_any_of_the_secrets_verifies() -> None:
    gate = Gate(token_secrets=(b"new", b"secret"))
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


# ---------------------------------------------------------------- presence


def test_presence_is_left_by_epoch_when_the_stream_ends() -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.hang_up(5)
    (leave,) = gate.take(LeavePresence)
    assert (leave.session_epoch, leave.device_id) == (epoch, b"phone")
    gate.step(Unknown(op=leave.op))
    assert gate.node.idle()


def test_presence_is_refreshed_in_batches_well_before_it_ends() -> None:
    gate = Gate(refresh_batch_max=2)
    for conn in range(1, 6):
        gate.online(conn, user=conn)
    gate.now += DEFAULT.presence_refresh_ms
    assert gate.node.deadline() is not None
    gate.step()
    refreshes = gate.take(RefreshPresence)
    assert [len(r.holds) for r in refreshes] == [2, 2, 1]
    assert [h.conn for r in refreshes for h in r.holds] == [1, 2, 3, 4, 5]
    assert {r.gateway for r in refreshes} == {"gw-1"}
    gate.step(PresenceRefreshed(op=refreshes[0].op, lost=(1,)))
    assert gate.kick(2) == (KickReason.REPLACED, False)
    gate.step(Failed(op=refreshes[1].op, why=FailReason.UNREACHABLE))
    gate.step(Unknown(op=refreshes[2].op))
    assert gate.closed == [2]
    assert gate.counts["gateway_presence_refresh_failed"] == 2


def test_refreshes_in_flight_are_bounded() -> None:
    gate = Gate(refresh_batch_max=1)
    for conn in range(1, 8):
        gate.online(conn, user=conn)
    gate.now += DEFAULT.presence_refresh_ms
    gate.step()
    first = gate.take(RefreshPresence)
    assert len(first) == 4
    gate.step(PresenceRefreshed(op=first[0].op, lost=()))
    assert len(gate.take(RefreshPresence)) == 1


def test_lost_entry_of_a_connection_that_entered_again_is_not_its_end() -> None:
    gate = Gate()
    gate.online(5)
    gate.now += DEFAULT.presence_refresh_ms
    gate.step()
    (refresh,) = gate.take(RefreshPresence)
    gate.hang_up(5)
    gate.online(6)
    gate.step(PresenceRefreshed(op=refresh.op, lost=(0,)))
    assert gate.closed == []


@pytest.mark.parametrize("told_by", ["adapter", "op"])
def test_store_reset_refreshes_everybody_at_once(told_by: str) -> None:
    gate = Gate()
    gate.online(5, user=1)
    gate.online(6, user=2)
    gate.take(LeavePresence)
    op = None
    if told_by == "op":
        gate.hang_up(6)
        (leave,) = gate.take(LeavePresence)
        op = leave.op
    gate.step(StoreReset(op=op, store=StoreRole.MAILBOX))
    (refresh,) = gate.take(RefreshPresence)
    assert [h.conn for h in refresh.holds] == ([5, 6] if op is None else [5])


# ---------------------------------------------------------------- replaced


def test_replaced_here_reads_why_before_the_close() -> None:
    gate = Gate()
    old = gate.online(5)
    gate.entering(6, attempt=2)
    gate.presence(replaced=entry("gw-1", 5, old))
    assert gate.kick(5) == (KickReason.REPLACED, False)
    gate.synced()
    assert [type(frame) for frame in gate.frames(6)] == [AuthOk]
    assert gate.closed == [5]


def test_replaced_elsewhere_gets_a_kick_at_its_address() -> None:
    gate = Gate()
    gate.entering(6, attempt=2)
    gate.presence(replaced=entry("gw-2", 5, 40))
    (kick,) = gate.asked(Kick)
    assert (kick.conn, kick.session_epoch, kick.reason) == (5, 40, KickReason.REPLACED)
    assert (kick.user_id, kick.device_id) == (1, b"phone")


def test_the_own_older_entry_is_no_reason_to_end() -> None:
    gate = Gate()
    gate.entering(6)
    gate.presence(replaced=entry("gw-1", 6, 40))
    gate.synced()
    assert [type(frame) for frame in gate.frames(6)] == [AuthOk]


def test_lower_attempt_than_the_live_entrys_is_refused_as_replaced() -> None:
    gate = Gate()
    gate.entering(5)
    gate.presence(refused=True)
    assert gate.kick(5) == (KickReason.REPLACED, False)
    assert not gate.take(LeavePresence), "a stale close never touches a newer entry"


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_epoch": 99},
        {"user_id": 2},
        {"device_id": b"laptop"},
        {"conn": 6},
    ],
)
def test_a_kick_means_exactly_one_session(wrong: dict[str, Any]) -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.online(6, user=3)
    exact = {"conn": 5, "user_id": 1, "device_id": b"phone", "session_epoch": epoch, "reason": 1}
    gate.tell(Kick(**(exact | wrong)))
    assert gate.closed == []
    gate.tell(Kick(**exact))
    assert gate.kick(5) == (KickReason.REPLACED, False)


def test_revoked_is_final_and_an_unknown_reason_too() -> None:
    gate = Gate()
    for conn, reason, told in ((5, KickReason.REVOKED, 2), (6, 200, KickReason.REPLACED)):
        epoch = gate.online(conn, user=conn)
        gate.tell(
            Kick(conn=conn, user_id=conn, device_id=b"phone", session_epoch=epoch, reason=reason)
        )
        assert gate.kick(conn) == (told, False)


def test_two_devices_of_a_user_stand_beside_each_other() -> None:
    gate = Gate()
    gate.online(5, device=b"phone")
    gate.online(6, device=b"laptop")
    assert gate.closed == []


# ---------------------------------------------------------------- READY, PING


def test_online_ready_carries_the_watermark_asked_after_sync_complete() -> None:
    gate = Gate()
    gate.readying(5)
    gate.watermark(MAILBOX_SEQ + 9)
    ((frame, request),) = gate.frames_with_requests(5)
    assert isinstance(frame, OnlineReady)
    assert (frame.watermark, request) == (MAILBOX_SEQ + 9, 2)


def test_no_watermark_no_ready_but_another_try() -> None:
    gate = Gate()
    gate.readying(5)
    (ask,) = gate.asked(AskWatermark)
    gate.tell(Refused(rid=ask.rid, code=ErrorCode.UNAVAILABLE, message="no"))
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 2)
    gate.say(5, SyncComplete(sync_to_seq=MAILBOX_SEQ), request=3)
    gate.watermark()
    ((frame, request),) = gate.frames_with_requests(5)
    assert isinstance(frame, OnlineReady)
    assert request == 3


def test_pings_of_one_shard_are_one_question() -> None:
    gate = Gate(parameters=Parameters(shard_count=1))
    for conn in range(1, 5):
        gate.online(conn, user=conn)
    pings = [
        BytesReceived(conn=conn, wall=WALL, data=encode_frame(Ping(client_time=conn), request=conn))
        for conn in range(1, 5)
    ]
    gate.step(*pings)
    (ask,) = gate.asked(AskWatermark)
    assert ask.users == (1, 2, 3, 4)
    gate.say(1, Ping(client_time=70), request=70)
    ((pong, request),) = gate.frames_with_requests(1)
    assert (pong.client_time, request) == (70, 70), "a second PING doesn't wait"
    gate.tell(WatermarkAnswer(rid=ask.rid, watermarks=(11, MAILBOX_SEQ + 2, 13, 14)))
    ((pong, request),) = gate.frames_with_requests(2)
    assert isinstance(pong, Pong)
    assert (pong.client_time, pong.watermark, request) == (2, MAILBOX_SEQ + 2, 2)
    assert pong.server_time == WALL + gate.now
    assert gate.frames(1)[0].watermark == MAILBOX_SEQ, "never below what is known"


def test_a_watermark_question_is_bounded_and_goes_on() -> None:
    gate = Gate(parameters=Parameters(shard_count=1), watermark_users_max=2)
    for conn in range(1, 6):
        gate.online(conn, user=conn)
    gate.step(
        *(
            BytesReceived(conn=conn, wall=WALL, data=encode_frame(Ping(client_time=conn)))
            for conn in range(1, 6)
        )
    )
    sizes = []
    for _ in range(3):
        (ask,) = gate.asked(AskWatermark)
        sizes.append(len(ask.users))
        gate.tell(Refused(rid=ask.rid, code=ErrorCode.UNAVAILABLE, message="no"))
    assert sizes == [2, 2, 1]
    assert all(isinstance(gate.frames(conn)[0], Pong) for conn in range(1, 6))


def test_a_misfit_watermark_answer_is_as_good_as_none() -> None:
    gate = Gate()
    gate.online(5)
    gate.say(5, Ping(client_time=1))
    gate.watermark(1, 2, 3)
    assert gate.frames(5)[0].watermark == MAILBOX_SEQ


def test_ping_of_a_closed_connection_is_forgotten() -> None:
    gate = Gate()
    gate.online(5)
    gate.say(5, Ping(client_time=1))
    gate.hang_up(5)
    gate.watermark()
    assert gate.frames(5) == []
