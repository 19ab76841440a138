"""Framing: whatever way the bytes are cut, the same frames come out; limits hold before anything is buffered."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frames import encode_frame
from qim.core.contract.wire import (
    FRAME_BYTES_BEFORE_AUTH_MAX,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    FrameDecoder,
    FramingError,
    RawFrame,
    encode_raw,
)
from tests.core.contract.frame_strategies import any_frame

raw_frames = st.builds(
    RawFrame,
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=300),
)


def encoded(raw: RawFrame) -> bytes:
    return encode_raw(raw.opcode, raw.body, flags=raw.flags, stream=raw.stream, request=raw.request)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


def test_header_layout() -> None:
    assert encode_raw(0x1234, b"ab", flags=0x5678, stream=0x9ABCDEF0, request=0x11223344).hex() == (
        "00000002123456789abcdef0112233446162"
    )


@given(st.lists(raw_frames, max_size=6), st.lists(st.integers(0, 5000), max_size=12))
def test_frames_come_out_however_the_bytes_are_cut(sent: list[RawFrame], cuts: list[int]) -> None:
    decoder = FrameDecoder()
    data = b"".join(encoded(raw) for raw in sent)
    got = [raw for chunk in chunks(data, cuts) for raw in decoder.feed(chunk)]
    assert got == sent
    assert decoder.pending_bytes == 0
    assert all(type(raw.body) is bytes for raw in got)


@given(any_frame)
def test_byte_by_byte(frame: object) -> None:
    data = encode_frame(frame)  # type: ignore[arg-type]
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    for at, byte in enumerate(data[:-1]):
        assert decoder.feed(bytes([byte])) == []
        assert decoder.pending_bytes == at + 1
    assert len(decoder.feed(data[-1:])) == 1


def test_nothing_in_nothing_out() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"") == []
    assert decoder.feed(bytes(HEADER_BYTES - 1)) == []
    assert decoder.feed(b"") == []


@pytest.mark.parametrize("limit", [FRAME_BYTES_BEFORE_AUTH_MAX, FRAME_BYTES_MAX])
def test_the_limit_is_inclusive_and_judged_from_the_header_alone(limit: int) -> None:
    assert len(FrameDecoder(limit).feed(encode_raw(1, bytes(limit)))) == 1
    decoder = FrameDecoder(limit)
    header = encode_raw(1, bytes(limit + 1), stream=3, request=9)[:HEADER_BYTES]
    with pytest.raises(FramingError) as caught:
        decoder.feed(header)
    error = caught.value
    assert (error.code, error.stream, error.request) == (ErrorCode.FRAME_TOO_LARGE, 3, 9)
    assert error.closes
    assert error.frames == ()


def test_auth_lifts_the_limit() -> None:
    decoder = FrameDecoder()
    decoder.set_limit(FRAME_BYTES_MAX)
    big = encode_raw(1, bytes(FRAME_BYTES_MAX))
    assert decoder.feed(big[:70_000]) == []
    assert decoder.feed(big[70_000:-1]) == []
    assert [len(raw.body) for raw in decoder.feed(big[-1:])] == [FRAME_BYTES_MAX]


def test_good_frames_before_the_bad_one_are_not_lost_and_the_stream_stays_dead() -> None:
    decoder = FrameDecoder()
    good = encode_raw(1, b"x", request=5)
    with pytest.raises(ProtocolError) as caught:
        decoder.feed(good + good + encode_raw(1, bytes(5000)) + good)
    assert isinstance(caught.value, FramingError)
    assert [raw.request for raw in caught.value.frames] == [5, 5]
    with pytest.raises(FramingError) as again:
        decoder.feed(good)
    assert again.value.frames == ()
    assert again.value.code is ErrorCode.FRAME_TOO_LARGE


@given(st.lists(st.binary(max_size=3000), max_size=20))
def test_any_bytes_give_frames_or_one_typed_error_and_never_grow_the_buffer(
    fed: list[bytes],
) -> None:
    decoder = FrameDecoder()
    for chunk in fed:
        code = ErrorCode.FRAME_TOO_LARGE
        try:
            decoder.feed(chunk)
        except ProtocolError as error:
            code = error.code
        assert code is ErrorCode.FRAME_TOO_LARGE
        assert decoder.pending_bytes <= HEADER_BYTES + FRAME_BYTES_BEFORE_AUTH_MAX
