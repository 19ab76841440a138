"""Legality: every state × every frame, hostile bytes included, and what the table promises about each."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    FRAMES,
    Auth,
    ClientFrame,
    Error,
    Ping,
    SendMessage,
    SyncComplete,
    encode_frame,
)
from qim.core.contract.wire import HEADER, Flag, encode_raw
from qim.core.gateway.table import CLIENT_FRAMES, TABLE, Action, ConnectionState
from tests.core.contract.frame_strategies import frame_of, signals
from tests.core.gateway.gate import MAILBOX_SEQ, Gate, auth

CONN = 5
REQUEST = 77
REFUSED = {
    Action.REFUSE_UNAUTHENTICATED: ErrorCode.UNAUTHENTICATED,
    Action.REFUSE_STATE: ErrorCode.INVALID_ARGUMENT,
    Action.REFUSE_UNSUPPORTED: ErrorCode.UNSUPPORTED,
}


def gate_in(state: ConnectionState) -> Gate:
    gate = Gate()
    match state:
        case ConnectionState.AUTHENTICATING:
            gate.accept(CONN)
        case ConnectionState.ENTERING:
            gate.entering(CONN)
        case ConnectionState.SYNCING:
            gate.syncing(CONN)
        case ConnectionState.READYING:
            gate.readying(CONN)
        case ConnectionState.ONLINE:
            gate.online(CONN)
        case ConnectionState.CLOSING:
            gate.online(CONN)
            gate.say_bytes(CONN, HEADER.pack(1 << 30, 1, 0, 0, 0))
    gate.frames(CONN)
    return gate


def example(kind: type[ClientFrame]) -> st.SearchStrategy[Any]:
    return signals() if kind.NAME == "SIGNAL" else frame_of(kind)


def test_the_table_is_total() -> None:
    assert set(TABLE) == set(ConnectionState)
    wanted = {frame for frame in FRAMES if frame.DIRECTION != "s→c"}
    for row in TABLE.values():
        assert set(row) == wanted == set(CLIENT_FRAMES)


@pytest.mark.parametrize("state", list(ConnectionState), ids=lambda state: state.name)
@pytest.mark.parametrize("kind", CLIENT_FRAMES, ids=lambda kind: kind.NAME)
@settings(max_examples=8)
@given(data=st.data())
def test_every_frame_in_every_state(
    state: ConnectionState, kind: type[ClientFrame], data: st.DataObject
) -> None:
    gate = gate_in(state)
    frame = data.draw(example(kind))
    before = [*gate.closed]
    gate.say(CONN, frame, request=REQUEST)
    action = TABLE[state][kind]
    answers = gate.frames_with_requests(CONN)
    if action in REFUSED:
        ((answer, request),) = answers
        assert isinstance(answer, Error)
        assert (answer.code, request) == (REFUSED[action], REQUEST)
        assert answer.client_message_id == getattr(frame, "client_message_id", None)
    elif action is Action.IGNORE:
        assert not answers
    elif answers:
        # Done at once: only a refusal of what the frame says is possible here.
        ((answer, request),) = answers
        assert isinstance(answer, Error)
        assert request == REQUEST
    assert gate.closed == before


@pytest.mark.parametrize("state", list(ConnectionState)[:-1], ids=lambda state: state.name)
@pytest.mark.parametrize(
    "kind", [f for f in FRAMES if f.DIRECTION == "s→c"], ids=lambda kind: kind.NAME
)
def test_server_frames_from_a_client_are_unsupported(state: ConnectionState, kind: Any) -> None:
    gate = gate_in(state)
    gate.say_bytes(CONN, encode_raw(kind.OPCODE, b"\x90", request=REQUEST))
    assert gate.refusal(CONN) == (ErrorCode.UNSUPPORTED, REQUEST)
    assert CONN not in gate.closed


@pytest.mark.parametrize(
    ("opcode", "flags"),
    [(0x7777, 0), (0, 0), (Ping.OPCODE, Flag.COMPRESSED), (Ping.OPCODE, Flag.MORE_FRAGMENTS)],
)
def test_unknown_opcodes_and_flags_stay_a_matter_of_one_request(opcode: int, flags: int) -> None:
    gate = gate_in(ConnectionState.ONLINE)
    gate.say_bytes(CONN, encode_raw(opcode, b"\x91\x01", flags=flags, request=REQUEST))
    assert gate.refusal(CONN) == (ErrorCode.UNSUPPORTED, REQUEST)
    assert CONN not in gate.closed


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x90", b"\x91\xa1a", b"\x91" * 2000])
@pytest.mark.parametrize("state", list(ConnectionState)[:-1], ids=lambda state: state.name)
def test_malformed_frames_get_one_error_and_a_close(state: ConnectionState, body: bytes) -> None:
    gate = gate_in(state)
    bad = encode_raw(Ping.OPCODE, body, request=REQUEST)
    gate.say_bytes(CONN, bad + bad + encode_frame(Ping(client_time=1)))
    assert gate.refusal(CONN) == (ErrorCode.MALFORMED_FRAME, REQUEST)
    assert gate.closed == [CONN]


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (ConnectionState.AUTHENTICATING, 4 * 1024),
        (ConnectionState.ENTERING, 4 * 1024),
        (ConnectionState.SYNCING, 512 * 1024),
        (ConnectionState.ONLINE, 512 * 1024),
    ],
)
def test_frames_beyond_the_limit_close(state: ConnectionState, limit: int) -> None:
    gate = gate_in(state)
    gate.say_bytes(CONN, HEADER.pack(limit + 1, Ping.OPCODE, 0, 0, REQUEST))
    assert gate.refusal(CONN) == (ErrorCode.FRAME_TOO_LARGE, REQUEST)
    assert gate.closed == [CONN]


def test_the_good_frames_in_front_of_bad_bytes_are_heard() -> None:
    gate = gate_in(ConnectionState.AUTHENTICATING)
    bad = HEADER.pack(1 << 30, 1, 0, 0, 0)
    gate.say_bytes(CONN, encode_frame(Ping(client_time=1), request=3) + bad)
    codes = [frame.code for frame in gate.frames(CONN)]
    assert codes == [ErrorCode.UNAUTHENTICATED, ErrorCode.FRAME_TOO_LARGE]


@pytest.mark.parametrize("excess", [1, 64 * 1024])
def test_an_oversized_body_refuses_its_request_alone(excess: int) -> None:
    """BR-085: within the frame limit the connection stays up."""
    gate = gate_in(ConnectionState.ONLINE)
    frame = SendMessage(
        client_message_id=bytes(15) + b"\x01",
        conversation_id=None,
        peer_user_id=2,
        kind=1,
        custom_type="",
        body=bytes(128 * 1024 + excess),
        retention_class=0,
        not_after=0,
    )
    gate.say(CONN, frame, request=REQUEST)
    assert gate.refusal(CONN) == (ErrorCode.INVALID_ARGUMENT, REQUEST)
    assert CONN not in gate.closed


@given(st.binary(max_size=200), st.lists(st.integers(1, 50), max_size=5))
def test_hostile_bytes_trouble_nobody_else(noise: bytes, cuts: list[int]) -> None:
    """BR-086: whatever comes and however it is cut, the node stands and the neighbour is served."""
    gate = gate_in(ConnectionState.ONLINE)
    gate.accept(6)
    at = 0
    for cut in [*cuts, len(noise)]:
        gate.say_bytes(6, noise[at : at + cut])
        at += cut
    assert sum(frame.code in (1, 2) for frame in gate.frames(6)) <= 1
    assert gate.closed in ([], [6])
    gate.say(CONN, Ping(client_time=9), request=REQUEST)
    gate.watermark()
    assert len(gate.frames(CONN)) == 1


@given(st.data())
def test_mutated_frames_are_answered_or_close(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(CLIENT_FRAMES))
    wire = bytearray(encode_frame(data.draw(example(kind)), request=REQUEST))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    state = data.draw(st.sampled_from(list(ConnectionState)[:-1]))
    gate = gate_in(state)
    gate.say_bytes(CONN, bytes(wire))
    closing = [frame for frame in gate.frames(CONN) if getattr(frame, "code", 0) in (1, 2)]
    assert bool(closing) == (CONN in gate.closed)


def test_a_second_auth_is_refused_and_the_session_stands() -> None:
    gate = gate_in(ConnectionState.ONLINE)
    gate.say(CONN, auth(2), request=REQUEST)
    assert gate.refusal(CONN) == (ErrorCode.INVALID_ARGUMENT, REQUEST)
    gate.say(CONN, Ping(client_time=9))
    gate.watermark()
    assert len(gate.frames(CONN)) == 1


def test_sync_complete_below_what_was_given_is_refused() -> None:
    gate = gate_in(ConnectionState.SYNCING)
    gate.say(CONN, SyncComplete(sync_to_seq=MAILBOX_SEQ - 1), request=REQUEST)
    assert gate.refusal(CONN) == (ErrorCode.INVALID_ARGUMENT, REQUEST)


def test_auth_is_what_before_auth_admits() -> None:
    for state in (ConnectionState.AUTHENTICATING, ConnectionState.ENTERING):
        allowed = [k for k, action in TABLE[state].items() if action is Action.AUTHENTICATE]
        assert allowed in ([], [Auth])
