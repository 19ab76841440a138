"""The gateway's listener in TLS 1.3: what clients must agree on, last words, and drains."""

import asyncio
import contextlib
import os
import selectors
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qim.adapters.tcp import server as tcp_server
from qim.core.ports.sockets import Accepted, Backlog, CloseSocket, SocketClosed, Write
from tests.adapters.tls.chain import chain
from tests.adapters.tls.conftest import PlayGateway
from tests.adapters.tls.facing import Gateway


def test_bytes_both_ways_and_last_words(play_gateway: PlayGateway) -> None:
    async def scenario(gateway: Gateway) -> None:
        reader, writer = await gateway.dial()
        secured = writer.get_extra_info("ssl_object")
        assert (secured.version(), secured.selected_alpn_protocol()) == ("TLSv1.3", "qim/1")
        said = os.urandom(300_000)
        writer.write(said)
        await gateway.until(lambda: gateway.received() == said)
        assert isinstance(gateway.events[0], Accepted)
        gateway.server.write(Write(conn=1, data=said), None)
        assert await reader.readexactly(len(said)) == said
        # Unread bytes of the peer must not turn our last words into a reset.
        writer.write(bytes(200_000))
        gateway.server.write(Write(conn=1, data=b"kicked"), None)
        gateway.server.close(CloseSocket(conn=1), None)
        assert await reader.read() == b"kicked"
        writer.transport.abort()
        await gateway.until(lambda: isinstance(gateway.events[-1], SocketClosed))
        names = {name for name, *_ in gateway.told.observed}
        assert {"conn_write_seconds", "conn_write_wait_seconds", "read_gap_seconds"} <= names

    play_gateway(scenario)


def test_a_backlog_is_seen_through_tls(play_gateway: PlayGateway) -> None:
    """Nothing waits in a second buffer: what the kernel doesn't take is told, and told gone."""

    async def scenario(gateway: Gateway) -> None:
        reader, writer = await gateway.dial()
        await gateway.until(lambda: gateway.events)
        writer.transport.pause_reading()
        piece, written = bytes(64 * 1024), 0
        while not any(isinstance(e, Backlog) and e.bytes_queued for e in gateway.events):
            gateway.server.write(Write(conn=1, data=piece), None)
            written += len(piece)
            assert written < 256 << 20, "the kernel takes everything"
        writer.transport.resume_reading()
        await reader.readexactly(written)
        await gateway.until(
            lambda: isinstance(gateway.events[-1], Backlog) and not gateway.events[-1].bytes_queued
        )
        waits = [one[1] for one in gateway.told.observed if one[0] == "conn_write_wait_seconds"]
        assert max(waits) > 0
        writer.transport.abort()

    play_gateway(scenario)


def refusal(gateway: Gateway, code: str) -> Callable[[], bool]:
    return lambda: f"'code': '{code}'" in gateway.told.text()


def test_without_alpn(play_gateway: PlayGateway) -> None:
    async def scenario(gateway: Gateway) -> None:
        context = ssl.create_default_context(cafile=chain().folder / "client-facing-ca.pem")
        for protocols in ([], ["h2"]):
            if protocols:
                context.set_alpn_protocols(protocols)
            gateway.told.lines.clear()
            reader, writer = await gateway.dial(context)
            assert await reader.read() == b""
            await gateway.told.until(refusal(gateway, "alpn"))
            writer.transport.abort()
        assert not gateway.events, "the machine never hears of it"
        assert gateway.told.counts["tls_handshakes_failed", "alpn"] == 2

    play_gateway(scenario)


def test_tls_1_2(play_gateway: PlayGateway) -> None:
    async def scenario(gateway: Gateway) -> None:
        context = ssl.create_default_context(cafile=chain().folder / "client-facing-ca.pem")
        context.set_alpn_protocols(["qim/1"])
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|protocol version"):
            await gateway.dial(context)
        await gateway.told.until(refusal(gateway, "tls_version"))
        assert not gateway.events

    play_gateway(scenario)


def test_no_tls_at_all(play_gateway: PlayGateway) -> None:
    async def scenario(gateway: Gateway) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await gateway.told.until(refusal(gateway, "not_tls"))
        await reader.read()
        writer.close()
        assert not gateway.events

    play_gateway(scenario)


def test_a_client_that_hangs_up_in_the_handshake(play_gateway: PlayGateway) -> None:
    async def scenario(gateway: Gateway) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.transport.abort()
        await gateway.told.until(refusal(gateway, "closed"))
        assert gateway.gauge("tls_handshakes_open") == 0

    play_gateway(scenario)


def test_a_drain_keeps_who_is_there_and_ends_handshakes(play_gateway: PlayGateway) -> None:
    async def scenario(gateway: Gateway) -> None:
        _, half = await asyncio.open_connection("127.0.0.1", gateway.port)
        reader, writer = await gateway.dial()
        await gateway.until(lambda: len(gateway.events) == 1)
        assert gateway.gauge("tls_handshakes_open") == 1
        gateway.server.stop_accepting()
        with pytest.raises(OSError):
            await gateway.dial()
        gateway.server.write(Write(conn=1, data=b"still here"), None)
        assert await reader.readexactly(10) == b"still here"
        gateway.server.abort_all()
        await gateway.until(lambda: gateway.server.open_streams == 0)
        await gateway.told.until(lambda: gateway.gauge("tls_handshakes_open") == 0)
        for one in (writer, half):
            one.transport.abort()

    play_gateway(scenario)


def test_handshakes_are_bounded(play_gateway: PlayGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "HANDSHAKES_MAX", 1)

    async def scenario(gateway: Gateway) -> None:
        _, half = await asyncio.open_connection("127.0.0.1", gateway.port)
        reader, turned = await asyncio.open_connection("127.0.0.1", gateway.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert gateway.told.counts["tls_handshakes_failed", "too_many"] == 1
        for one in (half, turned):
            one.transport.abort()

    play_gateway(scenario)


def test_a_drain_that_waits_sleeps() -> None:
    """Counted by turns of the loop: a connection that stays open at the end of a drain costs none."""

    class Counting(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
        turns = 0

        def select(self, timeout: float | None = None) -> Any:
            Counting.turns += 1
            return super().select(timeout)

    async def scenario(folder: Path) -> None:
        gateway = Gateway(folder)
        await gateway.listen()
        _, half = await asyncio.open_connection("127.0.0.1", gateway.port)
        _, writer = await gateway.dial()
        await gateway.until(lambda: gateway.events)
        gateway.server.stop_accepting()
        for _ in range(5):
            await asyncio.sleep(0)
        before = Counting.turns
        await asyncio.sleep(0.2)
        assert Counting.turns - before <= 3
        gateway.server.abort_all()
        await gateway.until(lambda: gateway.server.open_streams == 0)
        for one in (half, writer):
            one.transport.abort()

    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Counting())) as runner,
    ):
        runner.run(scenario(Path(folder)))
