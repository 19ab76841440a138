"""Random, truncated and mutated bytes under any opcode: a frame or a ProtocolError, never another exception."""

import contextlib
from collections.abc import Callable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.core.contract.errors import ERROR_MEANINGS, ErrorCode, ProtocolError
from qim.core.contract.frames import (
    FRAMES,
    WireFrame,
    decode_client_frame,
    decode_frame,
    decode_server_frame,
    encode_frame,
)
from qim.core.contract.wire import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    FrameDecoder,
    FramingError,
    RawFrame,
)
from tests.core.contract.frame_strategies import any_frame

REFUSALS = (ErrorCode.MALFORMED_FRAME, ErrorCode.UNSUPPORTED, ErrorCode.INVALID_ARGUMENT)

opcodes = st.one_of(st.sampled_from([kind.OPCODE for kind in FRAMES]), st.integers(0, 2**16 - 1))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(),
    st.binary(max_size=40),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


def outcome(decode: Callable[[RawFrame], WireFrame], raw: RawFrame) -> WireFrame | ProtocolError:
    try:
        return decode(raw)
    except ProtocolError as error:
        return error


def judge(raw: RawFrame) -> None:
    """Any of the three decoders ends in one of two ways, and an error names the frame's own request."""
    for decode in (decode_frame, decode_client_frame, decode_server_frame):
        got = outcome(decode, raw)
        if isinstance(got, ProtocolError):
            assert got.code in REFUSALS
            assert (got.request, got.stream) == (raw.request, raw.stream)
            assert got.client_message_id is None or len(got.client_message_id) == 16
            assert got.closes is (got.code is ErrorCode.MALFORMED_FRAME)
        else:
            assert raw.opcode == got.OPCODE
            assert encode_frame(got)  # what was accepted can be sent on


@settings(max_examples=400)
@given(opcodes, st.integers(0, 15), st.binary(max_size=200))
def test_random_bodies(opcode: int, flags: int, body: bytes) -> None:
    judge(RawFrame(opcode, flags, 1, 2, body))


@settings(max_examples=400)
@given(opcodes, st.lists(values, max_size=14))
def test_well_formed_messagepack_of_any_shape(opcode: int, fields: list[object]) -> None:
    judge(RawFrame(opcode, 0, 1, 2, msgspec.msgpack.encode(fields)))


@settings(max_examples=400)
@given(any_frame, st.data())
def test_real_frames_with_one_field_replaced(frame: WireFrame, data: st.DataObject) -> None:
    fields = msgspec.msgpack.decode(encode_frame(frame)[HEADER_BYTES:])
    if fields:
        fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(values)
    judge(RawFrame(frame.OPCODE, 0, 1, 2, msgspec.msgpack.encode(fields)))


@settings(max_examples=400)
@given(any_frame, st.data())
def test_real_frames_truncated_or_with_flipped_bytes(frame: WireFrame, data: st.DataObject) -> None:
    whole = bytearray(encode_frame(frame, request=2, stream=1))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    kept = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    judge(RawFrame(frame.OPCODE, 0, 1, 2, kept[HEADER_BYTES:]))
    with contextlib.suppress(FramingError):
        for raw in FrameDecoder(FRAME_BYTES_MAX).feed(kept):
            judge(raw)


def test_every_refusal_has_a_meaning() -> None:
    assert all(code in ERROR_MEANINGS for code in REFUSALS)
