"""Frames: any split gives the same payloads; hostile bytes give one typed error, a bounded buffer and a closed stream."""

import asyncio
import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.adapters.rpc import ProcessRole, RpcLimits
from qim.adapters.rpc.frames import (
    HELLO_BYTES_MAX,
    RPC_VERSION,
    Control,
    FrameReader,
    HostileBytes,
    clock_frame,
    control_kind,
    frame,
    hello_frame,
    read_clock,
    read_hello,
    read_message,
    read_sorry,
    sorry_frame,
)
from qim.adapters.rpc.incoming import dialable
from qim.core.contract.rpc import encode_message
from tests.adapters.rpc.raw import RawConnection
from tests.adapters.rpc.stage import Process, ask

LIMIT = 5_000


@given(
    payloads=st.lists(st.binary(min_size=1, max_size=LIMIT), max_size=8),
    cuts=st.lists(st.integers(0, 40_000), max_size=12),
)
def test_any_split_gives_the_same_payloads(payloads: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(frame, payloads))
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    reader = FrameReader(LIMIT)
    found = [got for a, b in itertools.pairwise(places) for got in reader.feed(data[a:b])]
    assert found == payloads


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_any_bytes_give_payloads_or_one_error(chunks: list[bytes]) -> None:
    reader = FrameReader(100)
    code = ""
    try:
        for chunk in chunks:
            for payload in reader.feed(chunk):
                assert 0 < len(payload) <= 100
            assert len(reader._rest) < 104, "less than one frame waits"
    except HostileBytes as error:
        code = error.code
    assert code in {"", "frame_length"}


@pytest.mark.parametrize("length", [0, LIMIT + 1, 2**32 - 1])
def test_a_length_that_lies_is_refused_before_its_bytes(length: int) -> None:
    with pytest.raises(HostileBytes):
        FrameReader(LIMIT).feed(length.to_bytes(4, "big"))


@given(st.binary(min_size=1, max_size=80))
def test_any_payload_is_understood_or_hostile(payload: bytes) -> None:
    for read in (control_kind, read_hello, read_sorry, read_clock, read_message):
        with contextlib.suppress(HostileBytes):
            read(payload)


def test_words_of_connections_there_and_back() -> None:
    reader = FrameReader(HELLO_BYTES_MAX)
    said = (
        hello_frame(Control.HELLO, "gateway", "host:1")
        + sorry_frame("wrong_role", "no\udcff" + "x" * 5_000)
        + clock_frame(Control.PING, 2**64 - 1)
    )
    hello, sorry, ping = reader.feed(said)
    found = read_hello(hello)
    assert (found.version, found.role, found.address) == (RPC_VERSION, "gateway", "host:1")
    assert read_sorry(sorry).code == "wrong_role" and len(read_sorry(sorry).reason) == 400
    assert read_clock(ping) == 2**64 - 1 and control_kind(ping) is Control.PING


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("127.0.0.1:7000", True),
        ("gateway-1.example.org:65535", True),
        ("[::1]:7000", True),
        ("::1:7000", False),
        ("host", False),
        (":7000", False),
        ("host:0", False),
        ("host:65536", False),
        ("host:+1", False),
        ("ho st:1", False),
        ("höst:1", False),
        ("0.0.0.0:7000", False),
        ("[::]:7000", False),
        ("", False),
    ],
)
def test_an_address_that_can_be_dialled(address: str, good: bool) -> None:
    assert dialable(address) is good


HELLO = hello_frame(Control.HELLO, "gateway", "127.0.0.1:9")
HOSTILE = st.one_of(
    st.binary(min_size=1, max_size=300),
    st.binary(min_size=1, max_size=300).map(frame),
    st.binary(min_size=1, max_size=300).map(lambda data: HELLO + data),
    st.binary(min_size=1, max_size=300).map(lambda data: HELLO + frame(data)),
    st.binary(max_size=40).map(lambda data: HELLO + frame(b"\xc1" + data)),
    st.tuples(st.integers(0, 200), st.integers(0, 255)).map(
        lambda at: _changed(HELLO + frame(encode_message(ask(1))), *at)
    ),
)


def _changed(data: bytes, at: int, value: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([value]) + data[at + 1 :]


@settings(max_examples=25)
@given(st.lists(HOSTILE, min_size=1, max_size=12))
def test_hostile_bytes_close_their_stream_and_no_other(said: list[bytes]) -> None:
    """Whatever strangers say, who speaks properly is heard; every refusal is logged with a code and counted."""
    limits = RpcLimits(hello_seconds_max=0.02, silent_seconds_max=10.0)

    async def scenario() -> None:
        async with Process(ProcessRole.WRITER, limits=limits) as writer:
            good = await RawConnection.dial(writer.address)
            assert await good.greet("gateway", "127.0.0.1:9") is Control.WELCOME
            strangers = []
            for data in said:
                stranger = await RawConnection.dial(writer.address)
                await stranger.send(data)
                strangers.append(stranger)
            await good.send(frame(encode_message(ask(77))))
            while not any(event.message == ask(77) for event in writer.heard):
                await writer.until_heard(len(writer.heard) + 1)
            refused = [
                line for line in writer.told.lines if line[1] in {"hostile bytes", "refused"}
            ]
            assert all(line[2]["code"] and line[2]["why"] for line in refused)
            assert writer.told.total("rpc_refused") == len(refused)
            for stranger in [good, *strangers]:
                stranger.close()

    asyncio.run(scenario())
