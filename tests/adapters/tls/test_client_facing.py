"""The gateway's listener in TLS 1.3: what clients must agree on, last words, drains, and certificates changed under way."""

import asyncio
import contextlib
import os
import selectors
import shutil
import signal
import ssl
import tempfile
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import uvloop

from qim.adapters.start_refused import StartRefused
from qim.adapters.tcp import server as tcp_server
from qim.adapters.tcp.server import TcpServer
from qim.adapters.tls.client_facing import ClientFacingTls
from qim.adapters.tls.dev_chain import Authority, write_dev_chain
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH
from qim.adapters.tls.reload import reload_on_hangup
from qim.client import client_tls_from_environment
from qim.core.ports.sockets import (
    Accepted,
    Backlog,
    BytesReceived,
    CloseSocket,
    SocketClosed,
    SocketEvent,
    Write,
)
from tests.adapters.rpc.stage import Told
from tests.adapters.tls.chain import HOUR, chain

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Scenario = Callable[["Gateway"], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    def run(scenario: Scenario) -> None:
        async def main() -> None:
            gateway = Gateway(tmp_path)
            await gateway.listen()
            try:
                await scenario(gateway)
            finally:
                gateway.server.stop_accepting()
                gateway.server.abort_all()
                await gateway.until(lambda: gateway.server.open_streams == 0)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())

    return run


class Gateway:
    """A listener with a pair of its own in ``folder``, as QIM_TLS_CERT and QIM_TLS_KEY name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for kind in ("pem", "key"):
            shutil.copy(chain().folder / f"gateway.{kind}", folder / f"live.{kind}")
        variables = {
            "QIM_TLS_CERT": str(folder / "live.pem"),
            "QIM_TLS_KEY": str(folder / "live.key"),
        }
        self.told = Told()
        self.events: list[SocketEvent] = []
        self._more = asyncio.Event()
        tls = ClientFacingTls.from_environment(variables, self.told.reporting)
        assert tls is not None
        self.tls = tls
        self.server = TcpServer(self._post, lambda: 0, tls=tls, reporting=self.told.reporting)
        self.port = 0

    async def listen(self) -> None:
        self.port = int((await self.server.listen("127.0.0.1", 0)).rpartition(":")[2])

    def _post(self, event: SocketEvent) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._more.clear()
                await self._more.wait()

    def received(self, conn: int = 1) -> bytes:
        mine = [e for e in self.events if isinstance(e, BytesReceived) and e.conn == conn]
        return b"".join(event.data for event in mine)

    async def dial(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = client_tls_from_environment(chain().environment["client"])
        assert tls is not None
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context or tls.context, server_hostname="localhost"
        )


def shown(writer: asyncio.StreamWriter) -> str:
    """The fingerprint of the certificate the server showed."""
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return sha256(certificate).hexdigest()


def test_bytes_both_ways_and_last_words(play: Play) -> None:
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

    play(scenario)


def test_a_backlog_is_seen_through_tls(play: Play) -> None:
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

    play(scenario)


def refusal(gateway: Gateway, code: str) -> Callable[[], bool]:
    return lambda: f"'code': '{code}'" in gateway.told.text()


def test_without_alpn(play: Play) -> None:
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

    play(scenario)


def test_tls_1_2(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        context = ssl.create_default_context(cafile=chain().folder / "client-facing-ca.pem")
        context.set_alpn_protocols(["qim/1"])
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|protocol version"):
            await gateway.dial(context)
        await gateway.told.until(refusal(gateway, "tls_version"))
        assert not gateway.events

    play(scenario)


def test_no_tls_at_all(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await gateway.told.until(refusal(gateway, "not_tls"))
        await reader.read()
        writer.close()
        assert not gateway.events

    play(scenario)


def test_a_client_that_hangs_up_in_the_handshake(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.transport.abort()
        await gateway.told.until(refusal(gateway, "closed"))
        assert gauge(gateway, "tls_handshakes_open") == 0

    play(scenario)


def test_a_drain_keeps_who_is_there_and_ends_handshakes(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        _, half = await asyncio.open_connection("127.0.0.1", gateway.port)
        reader, writer = await gateway.dial()
        await gateway.until(lambda: len(gateway.events) == 1)
        assert gauge(gateway, "tls_handshakes_open") == 1
        gateway.server.stop_accepting()
        with pytest.raises(OSError):
            await gateway.dial()
        gateway.server.write(Write(conn=1, data=b"still here"), None)
        assert await reader.readexactly(10) == b"still here"
        gateway.server.abort_all()
        await gateway.until(lambda: gateway.server.open_streams == 0)
        await gateway.told.until(lambda: gauge(gateway, "tls_handshakes_open") == 0)
        for one in (writer, half):
            one.transport.abort()

    play(scenario)


def gauge(gateway: Gateway, name: str) -> float:
    return sum(value for known, _, value in gateway.server.gauges() if known == name)


def test_handshakes_are_bounded(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_server, "HANDSHAKES_MAX", 1)

    async def scenario(gateway: Gateway) -> None:
        _, half = await asyncio.open_connection("127.0.0.1", gateway.port)
        reader, turned = await asyncio.open_connection("127.0.0.1", gateway.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert gateway.told.counts["tls_handshakes_failed", "too_many"] == 1
        for one in (half, turned):
            one.transport.abort()

    play(scenario)


def test_a_reload_on_hangup(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        reload_on_hangup(asyncio.get_running_loop(), (gateway.tls,))
        _, before = await gateway.dial()
        first = shown(before)
        fresh = write_dev_chain(gateway.folder / "fresh", days=3)
        for kind in ("pem", "key"):
            shutil.copy(fresh.folder / f"gateway.{kind}", gateway.folder / f"live.{kind}")
        os.kill(os.getpid(), signal.SIGHUP)
        await gateway.told.until(lambda: "certificate reloaded" in gateway.told.text())
        context = ssl.create_default_context(cafile=fresh.folder / "client-facing-ca.pem")
        context.set_alpn_protocols(["qim/1"])
        _, after = await gateway.dial(context)
        assert shown(after) != first and shown(after) in gateway.told.text()
        before.write(b"goes on")
        await gateway.until(lambda: gateway.received(1) == b"goes on")
        assert gateway.told.counts["tls_reloads", "client-facing done"] == 1
        for one in (before, after):
            one.transport.abort()

    play(scenario)


def spoil_key(folder: Path) -> None:
    shutil.copy(chain().folder / "writer-internal.key", folder / "live.key")


def spoil_text(folder: Path) -> None:
    (folder / "live.pem").write_text("half a certifica")


def spoil_by_absence(folder: Path) -> None:
    (folder / "live.pem").unlink()


def spoil_by_time(folder: Path) -> None:
    issue(folder, valid_from=datetime.now(UTC) - 2 * HOUR, valid_until=datetime.now(UTC) - HOUR)


def spoil_by_haste(folder: Path) -> None:
    issue(folder, valid_from=datetime.now(UTC) + HOUR, valid_until=datetime.now(UTC) + 2 * HOUR)


def spoil_purpose(folder: Path) -> None:
    issue(folder, purpose=CLIENT_AUTH, valid_until=datetime.now(UTC) + HOUR)


def issue(folder: Path, purpose: Any = SERVER_AUTH, **times: datetime) -> None:
    issued = Authority("test", 1).issue("gateway", purpose, names=("localhost",), **times)
    (folder / "live.pem").write_bytes(issued.certificate)
    (folder / "live.key").write_bytes(issued.key)


SPOILS = [
    (spoil_key, "tls_key_mismatch"),
    (spoil_text, "tls_file_unreadable"),
    (spoil_by_absence, "tls_file_unreadable"),
    (spoil_by_time, "tls_expired"),
    (spoil_by_haste, "tls_not_yet_valid"),
    (spoil_purpose, "tls_purpose"),
]


@pytest.mark.parametrize(("spoil", "code"), SPOILS)
def test_a_bad_reload_keeps_the_old_pair(
    play: Play, spoil: Callable[[Path], None], code: str
) -> None:
    async def scenario(gateway: Gateway) -> None:
        reload_on_hangup(asyncio.get_running_loop(), (gateway.tls,))
        spoil(gateway.folder)
        os.kill(os.getpid(), signal.SIGHUP)
        await gateway.told.until(lambda: f"'code': '{code}'" in gateway.told.text())
        assert gateway.told.counts["tls_reloads", "client-facing refused"] == 1
        _, writer = await gateway.dial()
        writer.write(b"as before")
        await gateway.until(lambda: gateway.received() == b"as before")
        [(name, label, seconds)] = list(gateway.tls.gauges())
        assert (name, label) == ("tls_certificate_expires_seconds", "client-facing server")
        assert 0 < seconds <= 2 * 86_400
        writer.transport.abort()

    play(scenario)


def test_a_reload_that_no_disk_holds_keeps_the_old_pair_and_the_others_have_their_turn(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloaded = asyncio.Event()

    class Other:
        def reload(self) -> bool:
            reloaded.set()
            return True

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async def scenario(gateway: Gateway) -> None:
        reloaded.clear()
        reload_on_hangup(asyncio.get_running_loop(), (gateway.tls, Other()))
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "NamedTemporaryFile", full)
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(20):
                await reloaded.wait()
        assert gateway.told.counts["tls_reloads", "client-facing refused"] == 1
        assert "No space left" in gateway.told.text()

    play(scenario)


@pytest.mark.parametrize(("spoil", "code"), SPOILS)
def test_a_start_with_a_bad_pair_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], code: str
) -> None:
    for kind in ("pem", "key"):
        shutil.copy(chain().folder / f"gateway.{kind}", tmp_path / f"live.{kind}")
    spoil(tmp_path)
    variables = {
        "QIM_TLS_CERT": str(tmp_path / "live.pem"),
        "QIM_TLS_KEY": str(tmp_path / "live.key"),
    }
    with pytest.raises(StartRefused) as refused:
        ClientFacingTls.from_environment(variables)
    assert refused.value.code == code
    assert "QIM_TLS_" in str(refused.value) and refused.value.command


@pytest.mark.parametrize("name", ["QIM_TLS_CERT", "QIM_TLS_KEY"])
def test_half_a_pair_is_no_plaintext(name: str) -> None:
    with pytest.raises(StartRefused, match="not set while") as refused:
        ClientFacingTls.from_environment({name: "x.pem"})
    assert refused.value.code == "tls_half_pair"


def test_no_pair_is_plaintext() -> None:
    assert ClientFacingTls.from_environment({}) is None


def test_an_encrypted_key_asks_nobody(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form

    folder = chain().folder
    key = form.load_pem_private_key((folder / "gateway.key").read_bytes(), None)
    sealed = key.private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"secret")
    )
    (tmp_path / "sealed.key").write_bytes(sealed)
    variables = {
        "QIM_TLS_CERT": str(folder / "gateway.pem"),
        "QIM_TLS_KEY": str(tmp_path / "sealed.key"),
    }
    with pytest.raises(StartRefused, match="encrypted"):
        ClientFacingTls.from_environment(variables)


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
