"""The pair that clients are shown: changed under way, kept where its successor is bad, and judged whole before a start."""

import asyncio
import os
import shutil
import signal
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.client_facing import ClientFacingTls
from qim.adapters.tls.dev_chain import Authority, write_dev_chain
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH
from qim.adapters.tls.reload import reload_on_hangup
from tests.adapters.tls.chain import HOUR, chain
from tests.adapters.tls.conftest import PlayGateway
from tests.adapters.tls.facing import Gateway


def shown(writer: asyncio.StreamWriter) -> str:
    """The fingerprint of the certificate the server showed."""
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return sha256(certificate).hexdigest()


def test_a_reload_on_hangup(play_gateway: PlayGateway) -> None:
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

    play_gateway(scenario)


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
    play_gateway: PlayGateway, spoil: Callable[[Path], None], code: str
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

    play_gateway(scenario)


def test_a_reload_that_no_disk_holds_keeps_the_old_pair_and_the_others_have_their_turn(
    play_gateway: PlayGateway, monkeypatch: pytest.MonkeyPatch
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

    play_gateway(scenario)


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
