"""Two TLS streams back to back over a pipe of memory: any split, any flipped bit, ends of every kind, and both directions."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qim.adapters.tls.client_facing import ClientFacingTls
from qim.adapters.tls.faults import handshake_fault
from qim.adapters.tls.stream import TlsStream
from qim.client import client_tls_from_environment
from tests.adapters.tls.chain import chain

CLIENT = client_tls_from_environment(chain().environment["client"])
SERVER = ClientFacingTls.from_environment(chain().environment["gateway"])


class Raw:
    """A transport that keeps what is written until the test carries it over."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = self.aborted = self.ended = False
        self.reading = True
        self.limits: tuple[int | None, int | None] | None = None

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.aborted
        self.sent += data

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 7) if name == "peername" else default


class Inner(asyncio.Protocol):
    """The plaintext side."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.heard = bytearray()
        self.lost: list[Exception | None] = []
        self.paused: list[bool] = []
        self.eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self.transport is None
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None and not self.lost
        self.heard += data

    def eof_received(self) -> bool:
        self.eof = True
        return False

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.transport is not None
        self.lost.append(exc)


class End:
    """One end: its stream, its plaintext and the faults it was told."""

    def __init__(self, *, server_side: bool, seconds: float = 30.0) -> None:
        assert CLIENT is not None and SERVER is not None
        self.inner, self.raw, self.faults = Inner(), Raw(), list[BaseException]()
        self.faulted = asyncio.Event()
        self.stream = TlsStream(
            SERVER.server_context() if server_side else CLIENT.context,
            self.inner,
            self._fault,
            server_side=server_side,
            handshake_seconds=seconds,
            server_name=None if server_side else "localhost",
            alpn="qim/1",
        )

    def _fault(self, error: BaseException) -> None:
        self.faults.append(error)
        self.faulted.set()

    def begin(self) -> None:
        self.stream.connection_made(self.raw)  # type: ignore[arg-type]

    def end(self) -> None:
        """As the loop does when a stream was closed or aborted."""
        self.stream.connection_lost(None)


class Pair:
    """Both ends, and bytes carried between them in pieces of ``sizes``, again and again."""

    def __init__(self, sizes: tuple[int, ...] = (65_536,)) -> None:
        self.client, self.server = End(server_side=False), End(server_side=True)
        self._sizes = sizes
        self._turn = 0

    def begin(self) -> "Pair":
        self.server.begin()
        self.client.begin()
        return self

    def settle(self, change: Callable[[bytes], bytes] = bytes) -> None:
        """Until nothing is under way."""
        while self.client.raw.sent or self.server.raw.sent:
            for a, b in ((self.client, self.server), (self.server, self.client)):
                size = self._sizes[self._turn % len(self._sizes)]
                self._turn += 1
                piece, a.raw.sent = bytes(a.raw.sent[:size]), a.raw.sent[size:]
                if piece and not b.raw.is_closing():
                    b.stream.data_received(change(piece))


def in_loop(work: Callable[[], None]) -> None:
    """The stream arms its timer on a running loop."""

    async def main() -> None:
        work()

    asyncio.run(main())


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 3_000), min_size=1, max_size=6).map(tuple),
    up=st.lists(st.binary(max_size=40_000), max_size=4),
    down=st.lists(st.binary(max_size=40_000), max_size=4),
)
def test_any_split_carries_the_same_bytes(
    sizes: tuple[int, ...], up: list[bytes], down: list[bytes]
) -> None:
    def work() -> None:
        pair = Pair(sizes).begin()
        pair.settle()
        assert pair.client.inner.transport is pair.client.stream
        assert pair.server.inner.transport is pair.server.stream
        for data in up:
            pair.client.stream.write(data)
        for data in down:
            pair.server.stream.write(data)
        pair.settle()
        assert bytes(pair.server.inner.heard) == b"".join(up)
        assert bytes(pair.client.inner.heard) == b"".join(down)
        assert not pair.client.faults and not pair.server.faults

    in_loop(work)


@settings(max_examples=60)
@given(at=st.integers(0, 5_000), bit=st.integers(0, 7), inside=st.booleans())
def test_a_flipped_bit_is_never_taken_for_words(at: int, bit: int, inside: bool) -> None:
    """In the handshake or behind it: one end is told of a fault, and what is heard is a prefix of what was said."""

    def work() -> None:
        seen = 0

        def flip(piece: bytes) -> bytes:
            nonlocal seen
            place, seen = at - seen, seen + len(piece)
            if not 0 <= place < len(piece):
                return piece
            return piece[:place] + bytes([piece[place] ^ (1 << bit)]) + piece[place + 1 :]

        pair = Pair((512,)).begin()
        pair.settle(flip if inside else bytes)
        said = bytes(range(256)) * 20
        if pair.client.inner.transport is not None and pair.server.inner.transport is not None:
            pair.client.stream.write(said)
            seen = seen if inside else 0
            pair.settle(flip)
        heard = bytes(pair.server.inner.heard)
        assert said.startswith(heard)
        if heard != said:
            ends = (pair.client, pair.server)
            for end in ends:
                if end.raw.is_closing():
                    end.end()
            told = [end for end in ends if end.faults or end.inner.lost]
            waiting = [end for end in ends if not end.raw.is_closing()]
            # A length made greater leaves both waiting for bytes: their timers end that, and no word is made up.
            assert told or len(waiting) == 2

    in_loop(work)


def opened() -> Pair:
    pair = Pair().begin()
    pair.settle()
    assert pair.server.inner.transport is not None
    return pair


def test_goodbye_is_told_from_a_cut() -> None:
    def work() -> None:
        pair = opened()
        pair.client.stream.write(b"last words")
        pair.client.stream.close()
        assert pair.client.raw.closed
        pair.settle()
        assert bytes(pair.server.inner.heard) == b"last words" and pair.server.inner.eof
        assert pair.server.raw.closed, "an end that says no more is left, too"
        cut = opened()
        cut.server.stream.eof_received()
        cut.server.end()
        assert not cut.server.inner.eof and cut.server.inner.lost == [None]

    in_loop(work)


def test_half_closed_it_hears_no_more() -> None:
    def work() -> None:
        pair = opened()
        pair.server.stream.write(b"kicked")
        pair.server.stream.write_eof()
        pair.server.stream.write(b"nothing follows")
        assert pair.server.raw.ended and not pair.server.raw.closed
        pair.client.stream.write(b"still talking")
        pair.settle()
        assert bytes(pair.client.inner.heard) == b"kicked" and pair.client.inner.eof
        assert not pair.server.inner.heard
        pair.server.stream.write_eof()
        pair.server.stream.close()
        assert pair.server.raw.closed and not pair.server.raw.aborted

    in_loop(work)


def test_a_transport_as_protocols_use_it() -> None:
    def work() -> None:
        pair = opened()
        stream = pair.server.stream
        stream.set_write_buffer_limits(high=1, low=0)
        assert pair.server.raw.limits == (1, 0)
        stream.pause_reading()
        assert not stream.is_reading()
        stream.resume_reading()
        assert stream.is_reading() and stream.can_write_eof() and not stream.is_closing()
        stream.write(b"x" * 100)
        assert stream.get_write_buffer_size() > 100, "ciphertext, as the kernel will be given it"
        stream.pause_writing()
        stream.resume_writing()
        assert pair.server.inner.paused == [True, False]
        assert stream.get_extra_info("peername") == ("192.0.2.1", 7)
        assert stream.get_extra_info("ssl_object").version() == "TLSv1.3"
        stream.abort()
        stream.write(b"nothing")
        assert stream.is_closing() and pair.server.raw.aborted
        pair.server.end()
        assert pair.server.inner.lost == [None]

    in_loop(work)


def test_a_handshake_has_its_time() -> None:
    async def main() -> None:
        end = End(server_side=True, seconds=0.01)
        end.begin()
        async with asyncio.timeout(20):
            await end.faulted.wait()
        assert handshake_fault(end.faults[0])[0] == "timeout"
        assert end.raw.closed and end.inner.transport is None
        end.end()
        assert len(end.faults) == 1 and not end.inner.lost

    asyncio.run(main())


def test_pauses_before_the_stream_is_there_are_nobodys() -> None:
    def work() -> None:
        end = End(server_side=True)
        assert end.stream.is_closing() and end.stream.get_write_buffer_size() == 0
        end.begin()
        end.stream.pause_writing()
        end.stream.resume_writing()
        assert not end.inner.paused
        end.stream.abort()
        end.end()
        assert [handshake_fault(error)[0] for error in end.faults] == ["closed"]

    in_loop(work)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ssl.SSLError(1, "[SSL: SOMETHING_NEW] x"), "tls"),
        (TimeoutError(), "timeout"),
        (TimeoutError(110, "Connection timed out"), "network"),
        (ConnectionRefusedError(111, "Connection refused"), "closed"),
        (ConnectionResetError(), "closed"),
        (OSError(113, "No route to host"), "network"),
        (ValueError("no port"), "network"),
    ],
)
def test_every_fault_has_a_code_and_words(error: BaseException, code: str) -> None:
    found, words = handshake_fault(error)
    assert found == code and words
