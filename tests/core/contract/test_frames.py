"""Every frame survives the wire, every bound is refused with its code, and new fields don't disturb old readers."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract import frames
from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import FRAMES, Signal, WireFrame, decode_frame, encode_frame
from qim.core.contract.wire import FRAME_BYTES_MAX, Flag, FrameDecoder, RawFrame
from tests.core.contract.frame_strategies import FRAME_STRATEGIES
from tests.core.contract.golden import SAMPLES, send_message

ID = bytes(range(1, 17))
OTHER = bytes(range(17, 33))
NIL = bytes(16)
U32 = st.integers(0, 2**32 - 1)


def raw_of(frame: WireFrame, **header: int) -> RawFrame:
    (raw,) = FrameDecoder(FRAME_BYTES_MAX).feed(encode_frame(frame, **header))
    return raw


def refused(raw: RawFrame) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode_frame(raw)
    return caught.value


def with_body(kind: type[WireFrame], fields: object, *, request: int = 7) -> RawFrame:
    return RawFrame(kind.OPCODE, 0, kind.STREAM, request, msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.NAME)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), request_id=U32, stream=U32)
def test_a_frame_comes_back_as_it_was(
    kind: type[WireFrame], data: st.DataObject, request_id: int, stream: int
) -> None:
    frame = data.draw(FRAME_STRATEGIES[kind])
    raw = raw_of(frame, stream=stream, request=request_id)
    assert (raw.opcode, raw.stream, raw.request, raw.flags) == (
        kind.OPCODE,
        stream,
        request_id,
        kind.FLAGS,
    )
    back = decode_frame(raw)
    assert type(back) is kind
    assert back == frame


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.NAME)
def test_unknown_trailing_fields_are_ignored_and_defaults_fill_short_ones(
    kind: type[WireFrame],
) -> None:
    frame = SAMPLES[f"{kind.NAME}.full"]
    fields = msgspec.msgpack.decode(encode_frame(frame)[16:])
    assert decode_frame(with_body(kind, [*fields, "from", ["the", {"future": 1}]])) == frame
    required = [field.required for field in msgspec.structs.fields(kind)]
    least = len(required) - (required[::-1].index(True) if True in required else len(required))
    short = decode_frame(with_body(kind, fields[:least]))
    assert short == kind(
        **{field.name: getattr(frame, field.name) for field in msgspec.structs.fields(kind)[:least]}
    )
    if least:
        assert refused(with_body(kind, fields[: least - 1])).code is ErrorCode.MALFORMED_FRAME


def test_opcodes_are_those_of_the_contract() -> None:
    table = {kind.NAME: kind.OPCODE for kind in FRAMES}
    assert table == {
        "PING": 0x01, "PONG": 0x02,
        "AUTH": 0x10, "AUTH_OK": 0x11, "SYNC_COMPLETE": 0x12, "ONLINE_READY": 0x13, "KICKED": 0x14, "REDIRECT": 0x15,
        "SEND_MESSAGE": 0x20, "SEND_ACK": 0x21,
        "PULL_MAILBOX": 0x30, "MAILBOX_BATCH": 0x31, "PUSH_EVENTS": 0x32,
        "PULL_SESSION_LIST": 0x40, "SESSION_LIST_BATCH": 0x41, "MARK_READ": 0x42, "PULL_HISTORY": 0x43,
        "HISTORY_BATCH": 0x44, "SET_STATE": 0x45, "STATE_SYNC": 0x46, "STATE_BATCH": 0x47, "READ_BY": 0x48,
        "RECALL": 0x49, "DELETE_FOR_ME": 0x4A,
        "CREATE_GROUP": 0x50, "GROUP_ADD": 0x51, "GROUP_REMOVE": 0x52, "LEAVE_GROUP": 0x53,
        "GROUP_OK": 0x54, "MEMBERS": 0x55, "MEMBERS_BATCH": 0x56,
        "ROOM_JOIN": 0x60, "ROOM_STATE": 0x61, "ROOM_EVENT": 0x62, "ROOM_LEAVE": 0x63,
        "SIGNAL": 0x70, "OK": 0x7E, "ERROR": 0x7F,
    }  # fmt: skip
    assert list(table.values()) == sorted(table.values())


def test_flags_of_answers_and_errors() -> None:
    assert raw_of(frames.Ok()).flags == Flag.RESPONSE
    assert raw_of(frames.Error(code=3, message="no")).flags == Flag.RESPONSE | Flag.ERROR
    assert raw_of(frames.PushEvents(entries=())).flags == 0
    assert raw_of(frames.Ok(), flags=0).flags == 0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"client_message_id": NIL}, "client_message_id must not be zero"),
        ({"client_message_id": b"short"}, "length >= 16"),
        ({"client_message_id": bytes(17)}, "length <= 16"),
        ({"conversation_id": NIL}, "conversation_id must not be zero"),
        ({"conversation_id": b"x" * 15}, "length >= 16"),
        ({"conversation_id": None, "peer_user_id": None}, "one of conversation_id and peer_user_id"),
        ({"peer_user_id": 0}, ">= 1"),
        ({"kind": 0}, ">= 1"),
        ({"kind": 99}, "<="),
        ({"custom_type": "x" * 65}, "length <= 64"),
        ({"custom_type": "é" * 33}, "custom_type has 66 bytes"),
        ({"body": bytes(frames.BODY_BYTES_MAX + 1)}, "length <= 131072"),
        ({"retention_class": 4}, "<= 3"),
        ({"retention_class": -1}, ">= 0"),
        ({"not_after": -1}, ">= 0"),
    ],
)  # fmt: skip
def test_a_bad_value_is_the_requests_own_fault(values: dict[str, object], says: str) -> None:
    bad = msgspec.structs.replace(send_message(), **values)
    error = refused(raw_of(bad, request=99))
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert says in error.message
    assert not error.closes
    assert (error.request, error.stream) == (99, 1)
    key = bad.client_message_id
    assert error.client_message_id == (key if len(key) == 16 else None)
    answer = frames.error_frame(error, retry_after_ms=5)
    assert decode_frame(raw_of(answer)) == answer
    assert (answer.code, answer.retry_after_ms) == (ErrorCode.INVALID_ARGUMENT, 5)


def test_bounds_themselves_are_legal() -> None:
    largest = msgspec.structs.replace(
        send_message(), body=bytes(frames.BODY_BYTES_MAX), custom_type="é" * 32, not_after=2**64 - 1
    )
    assert decode_frame(raw_of(largest)) == largest
    every_byte = bytes(range(256))
    odd = msgspec.structs.replace(
        send_message(),
        body=every_byte,
        custom_type="\x00",
        client_message_id=every_byte[240:],
        peer_user_id=2**64 - 1,
    )
    assert decode_frame(raw_of(odd)) == odd
    both = msgspec.structs.replace(send_message(), conversation_id=OTHER, peer_user_id=8)
    assert decode_frame(raw_of(both)) == both


@pytest.mark.parametrize(
    ("conversation_id", "peer_user_id"),
    [(None, None), (ID, 3), (NIL, None)],
    ids=["none", "both", "zero"],
)
def test_a_signal_names_exactly_one_other_side(
    conversation_id: bytes | None, peer_user_id: int | None
) -> None:
    signal = Signal(
        conversation_id=conversation_id, peer_user_id=peer_user_id, custom_type="typing", body=b""
    )
    assert refused(raw_of(signal)).code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("kind", [k for k in FRAMES if "conversation_id" in k.__struct_fields__ and k.DIRECTION == "c→s"],
                         ids=lambda kind: kind.NAME)  # fmt: skip
def test_a_client_never_names_the_zero_conversation(kind: type[WireFrame]) -> None:
    frame = msgspec.structs.replace(SAMPLES[f"{kind.NAME}.full"], conversation_id=NIL)
    assert refused(raw_of(frame)).message == "conversation_id must not be zero"


@pytest.mark.parametrize("kind", [k for k in FRAMES if {"client_message_id", "not_after"} <= set(k.__struct_fields__)],
                         ids=lambda kind: kind.NAME)  # fmt: skip
def test_a_committing_request_never_has_the_zero_key(kind: type[WireFrame]) -> None:
    frame = msgspec.structs.replace(SAMPLES[f"{kind.NAME}.full"], client_message_id=NIL)
    assert refused(raw_of(frame)).message == "client_message_id must not be zero"


def test_1001_members_are_a_matter_of_the_group_and_not_of_the_frame() -> None:
    create = frames.CreateGroup(client_message_id=ID, not_after=1, members=tuple(range(1, 1002)))
    assert decode_frame(raw_of(create)) == create
    too_many = frames.CreateGroup(client_message_id=ID, not_after=1, members=(1,) * 65537)
    assert refused(raw_of(too_many)).code is ErrorCode.MALFORMED_FRAME


def test_a_bad_value_inside_an_array_is_the_requests_own_fault_too() -> None:
    error = refused(with_body(frames.CreateGroup, [ID, 1, [5, 0], "name"]))
    assert (error.code, error.client_message_id) == (ErrorCode.INVALID_ARGUMENT, ID)
    assert not error.closes
    malformed = refused(with_body(frames.CreateGroup, [ID, 1, [5, "0"], "name"]))
    assert malformed.code is ErrorCode.MALFORMED_FRAME


@pytest.mark.parametrize("flags", [Flag.COMPRESSED, Flag.MORE_FRAGMENTS, 16, 0x8000])
def test_compression_fragments_and_reserved_bits_are_unsupported(flags: int) -> None:
    error = refused(raw_of(frames.Ping(client_time=1), flags=int(flags), request=4))
    assert (error.code, error.request, error.closes) == (ErrorCode.UNSUPPORTED, 4, False)


@pytest.mark.parametrize("opcode", [0, 3, 0x16, 0x57, 0x7D, 0x80, 0xFFFF])
def test_an_unknown_opcode_is_unsupported(opcode: int) -> None:
    error = refused(RawFrame(opcode, 0, 3, 8, b"\x90"))
    assert (error.code, error.stream, error.request) == (ErrorCode.UNSUPPORTED, 3, 8)


@pytest.mark.parametrize("kind", FRAMES, ids=lambda kind: kind.NAME)
def test_each_side_takes_only_what_the_other_may_send(kind: type[WireFrame]) -> None:
    raw = raw_of(SAMPLES[f"{kind.NAME}.full"])
    for decode, refuses in (
        (frames.decode_client_frame, "s→c"),
        (frames.decode_server_frame, "c→s"),
    ):
        if refuses == kind.DIRECTION:
            with pytest.raises(ProtocolError) as caught:
                decode(raw)
            assert caught.value.code is ErrorCode.UNSUPPORTED
        else:
            assert decode(raw) == SAMPLES[f"{kind.NAME}.full"]


def test_the_two_sides_together_are_all_frames() -> None:
    from typing import get_args

    client, server = set(get_args(frames.ClientFrame)), set(get_args(frames.ServerFrame))
    assert client | server == set(FRAMES)
    for kind in FRAMES:
        sides = {"c→s": (True, False), "s→c": (False, True), "both": (True, True)}[kind.DIRECTION]
        assert (kind in client, kind in server) == sides, kind.NAME


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "nothing"),
        (b"\xc1", "a byte MessagePack never uses"),
        (b"\x80", "a map"),
        (b"\x98", "an array cut short"),
        (b"\xdd\xff\xff\xff\xff", "an array of four billion"),
        (b"\xa5abc", "a string cut short"),
        (msgspec.msgpack.encode([1, 2, 3, 4, 5, 6, 7, 8]), "integers for bytes"),
        (msgspec.msgpack.encode([]), "no fields"),
        (msgspec.msgpack.encode([ID, ID, None, 1, b"\xff\xfe", b"", 0, 0]), "bytes for text"),
        (b"\x98" + msgspec.msgpack.encode(ID) * 2 + b"\xc0\x01\xa2\xff\xfe" + b"\xc4\x00\x00\x00", "text that is no UTF-8"),
        (msgspec.msgpack.encode([ID, ID, None, True, "", b"", 0, 0]), "a boolean for an integer"),
        (b"\x99" + encode_frame(send_message())[17:] + b"\x91" * 200_000, "nesting without end"),
        (b"\x98" + msgspec.msgpack.encode(NIL[:3]) + b"\x91" * 200_000, "nesting behind a bad value"),
        (encode_frame(send_message())[16:] + b"\x00", "a byte too many"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bytes_that_are_no_such_frame_are_malformed(body: bytes, what: str) -> None:
    error = refused(RawFrame(frames.SendMessage.OPCODE, 0, 1, 5, body))
    assert error.code is ErrorCode.MALFORMED_FRAME, what
    assert error.closes
    assert error.request == 5
    assert "SEND_MESSAGE" in error.message


def test_remaining_fields_leave_out_key_and_window_only() -> None:
    add = frames.GroupAdd(client_message_id=ID, not_after=1, conversation_id=OTHER, members=(3, 4))
    retry = msgspec.structs.replace(add, client_message_id=OTHER, not_after=9)
    assert (
        frames.remaining_fields(add)
        == frames.remaining_fields(retry)
        == msgspec.msgpack.encode([OTHER, [3, 4]])
    )
    assert frames.remaining_fields(
        msgspec.structs.replace(add, members=(4, 3))
    ) != frames.remaining_fields(add)
