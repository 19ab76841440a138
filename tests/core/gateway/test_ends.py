"""Silence, slow readers, too many connections, the graceful stop, answers that come too late."""

import pytest

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Error,
    Kicked,
    KickReason,
    Ping,
    Pong,
    encode_frame,
)
from qim.core.contract.params import DEFAULT
from qim.core.contract.rpc import (
    AskSync,
    AskWatermark,
    PullAnswer,
    Refused,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.contract.wire import HEADER
from qim.core.ports.completion import StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested
from qim.core.ports.network import Received, Send
from qim.core.ports.sockets import (
    Accepted,
    Backlog,
    BytesReceived,
    CloseSocket,
    SocketClosed,
    Write,
)
from qim.core.ports.store_mailbox import (
    EnterPresence,
    LeavePresence,
    PresenceEntered,
    PresenceLeft,
    PresenceRefreshed,
    RefreshPresence,
)
from tests.core.gateway.gate import (
    MAILBOX_SEQ,
    WALL,
    Gate,
    Kernel,
    pull,
    pushed,
    send,
    target,
    token,
)

# ---------------------------------------------------------------- silence and slowness


def test_silence_is_killed_after_ninety_seconds_and_any_byte_counts() -> None:
    gate = Gate()
    gate.online(5)
    gate.now += 89_000
    gate.say(5, Ping(client_time=1))
    gate.now += 89_999
    gate.step()
    assert gate.closed == []
    gate.now += 1
    gate.step()
    assert gate.kick(5) == (KickReason.IDLE, True)


def test_deadline_leads_to_the_idle_kill() -> None:
    gate = Gate()
    gate.online(5)
    for _ in range(50):
        due = gate.node.deadline()
        assert due is not None
        gate.now = max(due, gate.now)
        gate.step()
        for refresh in gate.take(RefreshPresence):
            gate.step(PresenceRefreshed(op=refresh.op, lost=()))
        if gate.closed:
            break
    assert gate.kick(5) == (KickReason.IDLE, True)
    assert gate.now == 1_000 + 90_000


def test_a_connection_ends_with_its_token_and_says_so() -> None:
    """BR-074: whoever lost the right to come in does not stay in."""
    gate = Gate()
    good_for_ms = 200_000
    heard = Pong(client_time=1, server_time=1, watermark=0)
    ending = token(expires_at=WALL + gate.now + good_for_ms)
    gate.syncing(5, access_token=ending)
    gate.online(6, user=2)
    for _ in range(3):
        gate.now += good_for_ms // 4
        gate.say(5, heard)
        gate.say(6, heard)
        assert not gate.closed
    gate.now += good_for_ms // 4
    gate.step()
    assert gate.refusal(5) == (ErrorCode.TOKEN_EXPIRED, 0)
    assert gate.closed == [5]
    assert gate.take(LeavePresence)


def small_push(number: int, epoch: int, body: bytes = b"") -> Received:
    return Received(
        source="m",
        wall=WALL,
        message=pushed(target(5, epoch, seq=number), number=number, body=body),
    )


def test_a_reader_that_takes_nothing_is_cut_by_frames() -> None:
    """BR-088."""
    gate = Gate()
    epoch = gate.online(5)
    kernel = Kernel(gate, 5, room=10_000)
    number = 0
    while not gate.closed:
        number += 1
        assert number < 2_000, "never cut: it would take all memory"
        kernel.after(gate.step(small_push(number, epoch)))
    frames = gate.frames(5)
    assert isinstance(frames[-1], Kicked)
    assert (frames[-1].reason, frames[-1].reconnect) == (KickReason.SLOW_CONSUMER, True)
    waiting = kernel.queued * len(frames) // (kernel.queued + 10_000)
    assert 256 <= waiting <= 256 + 2 * 16 * 1024 // 130, "two reports late at most"


def test_a_reader_that_takes_nothing_is_cut_by_bytes() -> None:
    gate = Gate()
    epoch = gate.online(5)
    kernel = Kernel(gate, 5, room=0)
    most = 4 * DEFAULT.batch_bytes_max + DEFAULT.outbound_bytes_max
    number = 0
    while not gate.closed:
        number += 1
        assert number < 2_000, "never cut: it would take all memory"
        kernel.after(gate.step(small_push(number, epoch, body=bytes(100 * 1024))))
    assert most <= kernel.queued <= most + 2 * 101 * 1024
    assert gate.kick(5) == (KickReason.SLOW_CONSUMER, True)


def test_a_reader_that_is_slow_but_keeps_up_is_never_cut() -> None:
    """Its queue is never empty and never moves by a whole step, so no report comes: no news is good news."""
    gate = Gate()
    epoch = gate.online(5)
    kernel = Kernel(gate, 5, room=0)
    kernel.after(gate.step(small_push(1, epoch, body=bytes(20 * 1024))))
    for number in range(2, 2_000):
        effects = gate.step(small_push(number, epoch))
        kernel.after(effects)
        kernel.drain(sum(len(e.data) for e in effects if isinstance(e, Write)))
    assert gate.closed == []
    assert kernel.queued > 16 * 1024


def test_what_a_closing_connection_says_and_reports_is_not_heard() -> None:
    gate = Gate()
    gate.online(5)
    gate.say_bytes(5, HEADER.pack(1 << 30, 1, 0, 0, 0))
    gate.frames(5)
    effects = gate.step(
        Backlog(conn=5, bytes_queued=5),
        BytesReceived(conn=5, wall=WALL, data=encode_frame(Ping(client_time=1))),
        Backlog(conn=99, bytes_queued=5),
    )
    assert not [e for e in effects if isinstance(e, CloseSocket)]
    gate.hang_up(5)
    gate.hang_up(5)


# ---------------------------------------------------------------- bounds and the stop


def test_too_many_connections_are_turned_away() -> None:
    gate = Gate(connections_max=2)
    for conn in (1, 2, 3):
        gate.accept(conn)
    assert gate.closed == [3]
    gate.hang_up(1)
    gate.accept(4)
    assert gate.closed == [3]


def test_reconnect_storm_leaves_nothing_behind() -> None:
    """BR-091."""
    gate = Gate()
    for conn in range(1, 5_001):
        gate.step(Accepted(conn=conn, peer="storm"))
        gate.hang_up(conn)
    assert gate.node.idle()
    gate.now += 20_000
    gate.step()
    assert gate.node.deadline() is None


def test_stop_answers_what_is_in_flight_and_takes_no_more() -> None:
    gate = Gate()
    gate.online(5, user=1)
    gate.online(6, user=2)
    gate.say(5, send(), request=8)
    gate.owners()
    gate.say(6, pull(), request=9)
    gate.take(LeavePresence)
    gate.step(DrainRequested())
    assert not gate.node.idle()
    assert gate.closed == []
    gate.accept(7)
    assert gate.closed == [7]
    gate.say(5, send(2), request=10)
    assert gate.refusal(5) == (ErrorCode.UNAVAILABLE, 10)
    (ask,) = [s.message for s in gate.take(Send) if hasattr(s.message, "cursor")]
    gate.tell(
        PullAnswer(
            rid=ask.rid,
            entries=(),
            covered_through_seq=MAILBOX_SEQ,
            has_more=False,
            cursor=b"c",
            retry_after_ms=0,
        )
    )
    frames = gate.frames(6)
    assert [type(f).__name__ for f in frames] == ["MailboxBatch", "Kicked"]
    assert frames[-1].reason == KickReason.SHUTDOWN
    gate.now += 5_000
    gate.step()
    assert [type(f).__name__ for f in gate.frames(5)] == ["Error", "Kicked"]
    gate.hang_up(5)
    gate.hang_up(6)
    for leave in gate.take(LeavePresence):
        gate.step(PresenceLeft(op=leave.op))
    gate.step(DrainRequested())
    assert gate.node.idle()


def test_errors_of_entering_connections_at_the_stop() -> None:
    gate = Gate()
    gate.entering(5)
    gate.step(DrainRequested())
    frames = gate.frames(5)
    assert isinstance(frames[-1], Kicked)
    (enter,) = gate.take(EnterPresence)
    gate.step(PresenceEntered(op=enter.op, refused=False, session_epoch=8, replaced=None))
    (leave,) = gate.take(LeavePresence)
    assert leave.session_epoch == 8
    assert not any(isinstance(frame, Error) for frame in frames)


def test_a_store_nobody_has_opened_is_not_asked_in_a_busy_loop() -> None:
    """It answers StoreReset to every refresh until a mailbox opens it."""
    gate = Gate()
    gate.online(5)
    gate.step(StoreReset(op=None, store=StoreRole.MAILBOX))
    rounds = 0
    until = gate.now + 10_000
    while gate.now < until:
        for refresh in gate.take(RefreshPresence):
            rounds += 1
            gate.step(StoreReset(op=refresh.op, store=StoreRole.MAILBOX))
        gate.now += 10
        gate.step()
    assert 9 <= rounds <= 11


def test_the_message_stores_reset_is_not_our_concern() -> None:
    gate = Gate()
    gate.online(5)
    gate.step(StoreReset(op=None, store=StoreRole.MESSAGE))
    assert not gate.take(RefreshPresence)


def test_more_than_the_bound_in_one_step_is_cut_by_the_first_report() -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.step(*(small_push(n, epoch, body=bytes(100 * 1024)) for n in range(1, 20)))
    assert gate.closed == []
    gate.step(Backlog(conn=5, bytes_queued=1_900_000))
    assert gate.kick(5) == (KickReason.SLOW_CONSUMER, True)


def test_cut_for_slowness_while_it_is_refused_for_bad_bytes() -> None:
    gate = Gate()
    epoch = gate.online(5)
    gate.step(Backlog(conn=5, bytes_queued=1_000_000))
    for number in range(1, 256):
        gate.step(small_push(number, epoch))
    assert gate.closed == []
    gate.say_bytes(5, HEADER.pack(1 << 30, 1, 0, 0, 0))
    frames = gate.frames(5)
    assert [type(frame) for frame in frames[-2:]] == [Error, Kicked]
    assert gate.closed == [5]


def test_gone_in_the_step_that_ends_it() -> None:
    gate = Gate()
    gate.online(5)
    bad = BytesReceived(conn=5, wall=WALL, data=HEADER.pack(1 << 30, 1, 0, 0, 0))
    effects = gate.step(bad, SocketClosed(conn=5))
    assert not [e for e in effects if isinstance(e, Write | CloseSocket)]


def test_an_answer_that_fits_no_order_is_our_own_bug() -> None:
    gate = Gate()
    gate.entering(5)
    (enter,) = gate.take(EnterPresence)
    with pytest.raises(AssertionError):
        gate.node.step(gate.now, [PresenceLeft(op=enter.op)])


def test_late_answers_about_watermarks_and_cursors_reach_nobody() -> None:
    gate = Gate()
    gate.entering(5)
    (ask,) = gate.asked(AskSync)
    gate.hang_up(5)
    gate.tell(SyncAnswer(rid=ask.rid, sync_to_seq=1, has_offline=False, cursor=b""))
    gate.tell(SyncAnswer(rid=ask.rid, sync_to_seq=1, has_offline=False, cursor=b""))
    gate.tell(WatermarkAnswer(rid=ask.rid, watermarks=(1,)))
    assert gate.counts["gateway_answers_ignored"] == 2
    gate.take(EnterPresence)
    gate.readying(6)
    gate.hang_up(6)
    gate.watermark()
    gate.readying(7)
    (ask2,) = gate.asked(AskWatermark)
    gate.hang_up(7)
    gate.tell(Refused(rid=ask2.rid, code=ErrorCode.UNAVAILABLE, message="no"))
    gate.entering(8)
    (ask3,) = gate.asked(AskSync)
    gate.hang_up(8)
    gate.tell(Refused(rid=ask3.rid, code=ErrorCode.UNAVAILABLE, message="no"))
    assert [gate.frames(conn) for conn in (5, 6, 7, 8)] == [[], [], [], []]


def test_a_refused_entry_of_a_given_up_auth_needs_no_leaving() -> None:
    gate = Gate()
    gate.entering(5)
    gate.hang_up(5)
    gate.presence(refused=True)
    assert not gate.take(LeavePresence)
    gate.entering(6)
    gate.hang_up(6)
    (enter,) = gate.take(EnterPresence)
    gate.step(Unknown(op=enter.op))
    assert gate.frames(6) == []
