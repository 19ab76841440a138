"""The client in hand: any frame in any state, hostile bytes, the way to a gateway and back, the start."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.client.vocabulary import (
    ClientState,
    MessageApplied,
    OfflineWanted,
    OnlineWanted,
    SendRefused,
    SendSettled,
    StateChanged,
    SyncRequested,
    TokenRenewed,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    FRAMES,
    Auth,
    Error,
    GroupOk,
    Kicked,
    KickReason,
    MailboxBatch,
    OnlineReady,
    Ping,
    Pong,
    PullMailbox,
    PushEvents,
    Redirect,
    SendAck,
    SendMessage,
    SyncComplete,
    encode_frame,
)
from qim.core.contract.wire import HEADER, encode_raw
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local import DrainRequested
from qim.core.ports.local_store import (
    LoadLocal,
    LocalSaved,
    LocalState,
    MessagesSaved,
    SaveAttempt,
)
from qim.core.ports.observe import Count
from qim.core.ports.sockets import Backlog, BytesReceived, Dialed, SocketClosed
from tests.core.client.hand import SEQ, WALL, Hand
from tests.core.client.said import REACH, batch, entry, hand_in, key, state
from tests.core.client.toy_local_store import ToyLocalStore
from tests.core.contract.frame_strategies import frame_of, signals


@pytest.mark.parametrize(
    "where", [s for s in REACH if s is not ClientState.OFFLINE], ids=lambda s: s.name
)
@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.NAME)
@settings(max_examples=6)
@given(data=st.data())
def test_any_frame_in_any_state_leaves_a_client_that_stands(
    where: ClientState, kind: Any, data: st.DataObject
) -> None:
    """Unasked, misnumbered, from the wrong side: passed over, or the connection ends; nothing else happens."""
    hand = hand_in(where)
    hand.send(1)
    hand.said()
    covered, cursor = hand.store.covered, hand.store.cursor
    frame = data.draw(signals() if kind.NAME == "SIGNAL" else frame_of(kind))
    hand.hear(frame, request=data.draw(st.integers(0, 9)))
    if not isinstance(frame, MailboxBatch):
        assert (hand.store.covered, hand.store.cursor) == (covered, cursor)
    if not isinstance(frame, SendAck | GroupOk | Error):
        assert not hand.told(SendSettled)
    hand.advance(300_000)


@given(st.binary(max_size=300))
def test_hostile_bytes_end_the_connection_at_most(noise: bytes) -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.hear_bytes(noise)
    assert state(hand) in (ClientState.ONLINE, ClientState.WAITING)


def test_bytes_beyond_the_frame_limit_end_the_connection() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.hear_bytes(encode_frame(Ping(client_time=5)) + HEADER.pack(1 << 30, 1, 0, 0, 0))
    assert len(hand.said(Pong)) == 1, "the good frame in front was heard"
    assert state(hand) is ClientState.WAITING
    assert hand.closed == [1]


def test_malformed_frames_end_it_and_unknown_ones_do_not() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.hear_bytes(encode_raw(0x7777, b"\x90"))
    hand.hear_bytes(encode_raw(Auth.OPCODE, b"\x90"))
    assert state(hand) is ClientState.ONLINE
    hand.hear_bytes(encode_raw(Pong.OPCODE, b"\xc1") + encode_frame(Ping(client_time=1)))
    assert state(hand) is ClientState.WAITING
    assert not hand.said(Pong)


def test_a_frame_behind_the_one_that_ended_the_connection_is_not_heard() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.hear(Kicked(reason=KickReason.SHUTDOWN, reconnect=True), PushEvents(entries=(entry(9),)))
    assert not hand.told(MessageApplied)


def test_events_of_an_old_stream_are_not_taken_for_the_new() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.hang_up()
    hand.advance(1_000)
    assert hand.conn == 2
    hand.step(
        Dialed(conn=1),
        BytesReceived(conn=1, wall=WALL, data=encode_frame(Ping(client_time=1))),
        SocketClosed(conn=1),
        Backlog(conn=2, bytes_queued=7),
    )
    assert state(hand) is ClientState.DIALING
    assert not hand.said()


def test_auth_waits_for_stream_and_for_the_attempt_on_disk() -> None:
    hand = Hand()
    hand.serve = False
    hand.dialing()
    assert [type(order) for order in hand.orders] == [SaveAttempt]
    hand.step(Dialed(conn=1))
    assert not hand.said()
    hand.serve_one()
    ((auth, _),) = hand.said(Auth)
    assert auth.attempt == hand.store.attempt == WALL + 1_000
    assert auth.cursor is None


def test_attempts_rise_though_the_clock_goes_back() -> None:
    store = ToyLocalStore()
    store.attempt = WALL + 10**9
    hand = Hand(store)
    hand.authenticating()
    assert store.attempt == WALL + 10**9 + 1


def test_a_late_attempt_of_an_older_dial_is_not_used() -> None:
    hand = Hand()
    hand.serve = False
    hand.dialing()
    hand.hang_up()
    hand.advance(1_000)
    assert hand.conn == 2
    hand.step(Dialed(conn=2))
    hand.serve_one()
    assert not hand.said(), "the first dial's number is on disk, this one's is not yet"
    hand.serve_one()
    ((auth, _),) = hand.said(Auth)
    assert auth.attempt == hand.store.attempt


def test_dial_and_auth_have_an_end_and_pauses_grow() -> None:
    hand = Hand()
    hand.dialing()
    pauses = []
    for _ in range(12):
        hand.advance(10_000)
        assert state(hand) is ClientState.WAITING
        due = hand.client.deadline()
        assert due is not None
        pauses.append(due - hand.now)
        hand.advance(due - hand.now)
        assert state(hand) is ClientState.DIALING
    assert pauses == sorted(pauses)
    assert pauses[0] == 250
    assert pauses[-1] == 15_000
    assert {dial.address for dial in hand.dials} == {"a:1", "b:2"}
    hand.step(Dialed(conn=hand.conn))
    hand.advance(15_000)
    assert state(hand) is ClientState.WAITING


def test_jitter_is_the_choices_and_stays_within_bounds() -> None:
    hand = Hand()
    context = hand.client._context
    context.choose = lambda site, key: 2**64 - 1
    delays = [context.backoff("client.test", tries) for tries in range(10)]
    assert all(250 <= delay <= 30_000 for delay in delays)


def test_redirects_are_followed_but_not_for_ever() -> None:
    hand = Hand()
    for number in range(1, 8):
        hand.authenticating()
        hand.hear(Redirect(address=f"there:{number}"))
        if state(hand) is ClientState.WAITING:
            break
        assert hand.dials[-1].address == f"there:{number}"
    assert number == 6
    hand.advance(60_000)


@pytest.mark.parametrize("reason", list(KickReason))
@pytest.mark.parametrize("reconnect", [True, False])
def test_kicks(reason: KickReason, reconnect: bool) -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.hear(Kicked(reason=reason, reconnect=reconnect))
    final = reason in (KickReason.REPLACED, KickReason.REVOKED) or not reconnect
    assert state(hand) is (ClientState.STOPPED if final else ClientState.WAITING)
    hand.advance(1_000_000)
    assert (len(hand.dials) == 1) is final
    if final:
        assert hand.told(StateChanged)[-1].reason == reason
        hand.step(OnlineWanted(wall=WALL + hand.now))
        assert len(hand.dials) == 2


def test_a_renewed_token_is_used_and_wakes_only_who_wants_to_be_online() -> None:
    hand = Hand()
    request = hand.authenticating()
    hand.hear(Error(code=ErrorCode.TOKEN_EXPIRED, message=""), request=request)
    assert state(hand) is ClientState.STOPPED
    hand.step(OfflineWanted(), TokenRenewed(access_token="new", wall=WALL))
    assert state(hand) is ClientState.OFFLINE
    hand.step(OnlineWanted(wall=WALL), TokenRenewed(access_token="newer", wall=WALL))
    hand.step(Dialed(conn=hand.conn))
    ((auth, _),) = hand.said(Auth)
    assert auth.access_token == "newer"


def test_retry_after_of_a_refused_auth_is_respected() -> None:
    hand = Hand()
    request = hand.authenticating()
    error = Error(code=ErrorCode.RATE_LIMITED, message="", retry_after_ms=20_000)
    hand.hear(error, request=request)
    hand.advance(19_999)
    assert state(hand) is ClientState.WAITING
    hand.advance(1)
    assert state(hand) is ClientState.DIALING


def test_a_cursor_refused_without_a_cursor_is_no_reason_to_rebuild_for_ever() -> None:
    hand = Hand()
    request = hand.authenticating()
    hand.hear(Error(code=ErrorCode.CURSOR_INVALID, message=""), request=request)
    assert hand.store.state is LocalState.ONLINE
    assert state(hand) is ClientState.WAITING


def test_offline_wanted_while_it_waits_and_lost_when_not_wanted() -> None:
    hand = Hand()
    hand.dialing()
    hand.hang_up()
    assert state(hand) is ClientState.WAITING
    hand.step(OfflineWanted())
    assert state(hand) is ClientState.OFFLINE
    assert hand.client.deadline() is None
    hand.step(OfflineWanted(), DrainRequested())
    assert hand.client.idle()


def test_heartbeat_answers_and_the_servers_ping() -> None:
    hand = hand_in(ClientState.ONLINE)
    hand.advance(30_000)
    ((ping, _),) = hand.said(Ping)
    hand.hear(Pong(client_time=ping.client_time, server_time=WALL + 99_000, watermark=SEQ))
    hand.hear(Ping(client_time=77))
    ((pong, _),) = hand.said(Pong)
    assert (pong.client_time, pong.watermark) == (77, 0)
    hand.send(1)
    ((send, _),) = hand.said(SendMessage)
    assert send.not_after == WALL + 99_000 + 3_600_000, "the server's clock, not ours"
    hand.advance(69_999)
    assert state(hand) is ClientState.ONLINE
    hand.advance(30_001)
    assert ClientState.WAITING in [n.state for n in hand.told(StateChanged)]


def test_sync_complete_without_an_answer_is_said_again() -> None:
    hand = hand_in(ClientState.SYNCING)
    for _, request in hand.said(PullMailbox):
        hand.hear(batch(SEQ), request=request)
    ((_, request),) = hand.said(SyncComplete)
    hand.hear(Error(code=ErrorCode.UNAVAILABLE, message="", retry_after_ms=900), request=request)
    hand.advance(899)
    assert not hand.said(SyncComplete)
    hand.advance(1)
    ((_, request),) = hand.said(SyncComplete)
    hand.hear(OnlineReady(watermark=SEQ), request=request)
    assert state(hand) is ClientState.ONLINE


def test_commands_before_the_store_is_read_wait_for_it_in_bounds() -> None:
    hand = Hand(serve=False, unsaved_rows_max=2)
    for number in (1, 2, 3):
        hand.send(number)
    hand.step(SyncRequested())
    (refused,) = hand.told(SendRefused)
    assert (refused.client_message_id, refused.code) == (key(3), ErrorCode.QUOTA_EXCEEDED)
    assert "client_commands_dropped" in [e.name for e in hand.others if isinstance(e, Count)]
    (load,) = hand.orders
    hand.orders.clear()
    hand.step(Failed(op=load.op, why=FailReason.UNREACHABLE))
    assert not hand.orders, "not in a busy loop"
    assert not hand.client.idle()
    hand.advance(500)
    assert [type(o) for o in hand.orders] == [LoadLocal]
    hand.serve_one()
    assert [o.row.client_message_id for o in hand.orders] == [key(1), key(2)]


def test_what_the_store_answers_must_fit_what_was_ordered() -> None:
    hand = Hand(serve=False)
    (load,) = hand.orders
    with pytest.raises(AssertionError):
        hand.step(LocalSaved(op=load.op))
    hand = Hand(serve=False)
    (load,) = hand.orders
    with pytest.raises(AssertionError):
        hand.step(MessagesSaved(op=load.op, fresh=()))


def test_an_attempt_that_is_not_stored_is_no_auth() -> None:
    hand = Hand()
    hand.store.fail_next += [SaveAttempt]
    hand.dialing()
    assert state(hand) is ClientState.WAITING
    assert hand.closed == [1]
    hand.advance(1_000)
    hand.serve = False
    hand.hang_up()
    hand.advance(2_000)
    hand.orders.clear()
    assert state(hand) is ClientState.DIALING
    old = hand.conn
    hand.hang_up()
    hand.advance(5_000)
    assert hand.conn > old
    (late,) = hand.orders
    hand.step(Failed(op=late.op - 1, why=FailReason.UNREACHABLE))
    assert state(hand) is ClientState.DIALING, "an older dial's order says nothing about this one"
