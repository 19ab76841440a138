"""The registry on a real etcd that speaks TLS and wants certificates of its clients; and those read again under way."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from qim.adapters.etcd.watch import Noticed
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.dev_chain import Authority
from qim.adapters.tls.outgoing import OutgoingFiles, OutgoingTls
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH
from qim.core.ports.completion import Failed
from qim.core.ports.registry import Granted, Peers, Role
from tests.adapters.registry.conftest import Registries, play
from tests.adapters.registry.etcd_scene import etcd_client, new_prefix
from tests.integration.testbed.etcd import EtcdServer

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("etcd")]


def certify(folder: Path) -> None:
    """Files of an authority, its server and client, and of a client that a stranger certified; over those of an earlier one."""
    until = datetime.now(UTC) + timedelta(days=1)
    authority, stranger = Authority("ours", 1), Authority("another", 1)
    served = authority.issue("etcd", SERVER_AUTH, names=("127.0.0.1",), valid_until=until)
    files = {"ca": authority.certificate, "cert": served.certificate, "key": served.key}
    for name, signer in (("mine", authority), ("theirs", stranger)):
        issued = signer.issue("qim", CLIENT_AUTH, valid_until=until)
        files |= {f"{name}-cert": issued.certificate, f"{name}-key": issued.key}
    for name, data in files.items():
        (folder / f"{name}.pem").write_bytes(data)


def secured(folder: Path) -> EtcdServer:
    """One that wants a certificate of its clients."""
    certify(folder)
    options = [
        f"--{option}={folder / name}.pem"
        for option, name in (("cert-file", "cert"), ("key-file", "key"), ("trusted-ca-file", "ca"))
    ]
    return EtcdServer(folder / "etcd", scheme="https", options=[*options, "--client-cert-auth"])


def files_of(folder: Path, name: str) -> OutgoingFiles:
    return OutgoingFiles(
        ca=str(folder / "ca.pem"),
        certificate=str(folder / f"{name}-cert.pem"),
        key=str(folder / f"{name}-key.pem"),
    )


def test_certificates_changed_under_way(registries: Registries, tmp_path: Path) -> None:
    """The whole chain is another's after a restart; calls and the watch come in again once it has been read."""
    server = secured(tmp_path)
    server.start()

    async def story(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("qim.adapters.etcd.connection.RETIRED_MS", 100)
        tls = OutgoingTls("etcd", files_of(tmp_path, "mine"))
        told: asyncio.Queue[Noticed] = asyncio.Queue()

        async def hears(*owners: str) -> None:
            while await told.get() != Peers(op=0, role=Role.WRITER, owners=owners):
                pass

        address, prefix = server.address, new_prefix()
        async with etcd_client([address], prefix, tls=tls, call_ms=2_000) as client:
            client.registry.watch(told.put_nowait)
            await client.announced("a")
            await hears("a")
            await client.granted("a")
            assert tls.reload(), "the same files: another channel all the same"
            await client.granted("a")
            await hears("a")  # from the watch that begins again where its channel was closed
            server.kill()
            certify(tmp_path)
            await asyncio.to_thread(server.start)
            assert isinstance(await client.read(), Failed)
            assert tls.reload()
            await client.granted("a")
            await client.announced("a")
            await hears("a")

    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            play(registries, story(monkeypatch))
    finally:
        server.stop()


def test_tls_with_client_certificates(registries: Registries, tmp_path: Path) -> None:
    server = secured(tmp_path)
    server.start()

    def tls(name: str) -> OutgoingTls:
        return OutgoingTls("etcd", files_of(tmp_path, name))

    async def story(monkeypatch: pytest.MonkeyPatch) -> None:
        async with etcd_client([f"https://{server.address}"], tls=tls("mine")) as client:
            await client.registry.start()
            assert isinstance(await client.acquire("a"), Granted)
            ahead_ms = await client.registry.check_clock(int(time.time() * 1000), 300_000)
            assert ahead_ms is not None
        monkeypatch.setattr("qim.adapters.etcd.starting.START_MS", 1_000)
        stranger = OutgoingTls("etcd", OutgoingFiles(ca=str(tmp_path / "theirs-cert.pem")))
        for wrong in (tls("theirs"), stranger, None):
            async with etcd_client([server.address], tls=wrong) as client:
                with pytest.raises(StartRefused) as refused:
                    await client.registry.start()
                assert refused.value.code == "etcd_unreachable"

    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            play(registries, story(monkeypatch))
    finally:
        server.stop()
