"""mTLS between processes: the chain of `qim certs dev` works, and whoever is not of it is told apart in the log."""

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

from qim.adapters.rpc import ProcessRole, RpcSecurity
from qim.adapters.rpc.frames import Control, hello_frame
from qim.adapters.tls.dev_chain import Authority, Issued
from qim.adapters.tls.pair import CLIENT_AUTH
from qim.core.contract.rpc import PushBatch
from tests.adapters.rpc import conftest
from tests.adapters.rpc.conftest import GATEWAY, WRITER, Play
from tests.adapters.rpc.stage import Process, answer, ask
from tests.adapters.tls.chain import HOUR, Rogue, chain, dialler, internal, stranger

MAILBOX = ProcessRole.MAILBOX
# Named, not imported by itself: every test's parameter would hide an import of that name.
play = conftest.play


def test_processes_of_the_chain_speak(play: Play) -> None:
    async def scenario() -> None:
        async with (
            Process(WRITER, security=internal(WRITER)) as writer,
            Process(GATEWAY, security=internal(GATEWAY)) as gateway,
        ):
            writer.answering = lambda event: answer(event.message.rid, size=200_000)  # type: ignore[union-attr]
            for rid in range(1, 51):
                gateway.say(writer.address, ask(rid))
            await gateway.until_heard(50)
            assert [event.message.rid for event in gateway.heard] == list(range(1, 51))  # type: ignore[union-attr]
            assert not writer.told.lines and not gateway.told.lines

    play(scenario)


async def refused(security: RpcSecurity, code: str, heard_by_dialler: str) -> None:
    """A gateway that asks a writer is not let in: both logs say why, and nothing is received."""
    async with (
        Process(WRITER, security=internal(WRITER)) as writer,
        Process(GATEWAY, security=security) as gateway,
    ):
        gateway.say(writer.address, ask(1))
        await writer.told.until(lambda: f"'code': '{code}'" in writer.told.text())
        await gateway.told.until(lambda: f"'code': '{heard_by_dialler}'" in gateway.told.text())
        assert not writer.heard
        assert writer.told.counts["rpc_refused", code] >= 1
        assert "'peer': '127.0.0.1:" in writer.told.text()


def issued_by(authority: Authority) -> Issued:
    return authority.issue("Q-IM gateway", CLIENT_AUTH, valid_until=datetime.now(UTC) + HOUR)


def test_no_certificate(play: Play, tmp_path: Path) -> None:
    security = Rogue(GATEWAY, dialler(None, tmp_path))
    play(lambda: refused(security, "certificate_missing", "certificate_demanded"))


def test_certificate_of_another_ca(play: Play, tmp_path: Path) -> None:
    security = Rogue(GATEWAY, dialler(stranger(), tmp_path))
    play(lambda: refused(security, "certificate_ca", "ca_refused"))


def test_expired_certificate(play: Play, tmp_path: Path) -> None:
    authority = Authority("Q-IM test client CA", 1)
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    now = datetime.now(UTC)
    expired = authority.issue(
        "Q-IM gateway", CLIENT_AUTH, valid_from=now - 2 * HOUR, valid_until=now - HOUR
    )

    async def scenario() -> None:
        trusting = internal(WRITER, QIM_INTERNAL_TLS_CLIENT_CA=str(tmp_path / "ca.pem"))
        async with (
            Process(WRITER, security=trusting) as writer,
            Process(GATEWAY, security=Rogue(GATEWAY, dialler(expired, tmp_path))) as gateway,
        ):
            gateway.say(writer.address, ask(1))
            await writer.told.until(lambda: "certificate_expired" in writer.told.text())
            await gateway.told.until(lambda: "expiry_refused" in gateway.told.text())
            assert not writer.heard

    play(scenario)


def test_tls_1_2(play: Play, tmp_path: Path) -> None:
    security = Rogue(GATEWAY, dialler(None, tmp_path, version=ssl.TLSVersion.TLSv1_2))
    play(lambda: refused(security, "tls_version", "tls_version"))


def test_plaintext(play: Play) -> None:
    async def scenario() -> None:
        async with Process(WRITER, security=internal(WRITER)) as writer:
            host, _, port = writer.address.rpartition(":")
            _, stream = await asyncio.open_connection(host, int(port))
            stream.write(hello_frame(Control.HELLO, "gateway", "127.0.0.1:1"))
            await writer.told.until(lambda: "'code': 'not_tls'" in writer.told.text())
            stream.close()

    play(scenario)


def test_certificate_in_no_list(play: Play, tmp_path: Path) -> None:
    """Issued by the right CA, but nobody put it on a list."""
    authority = Authority("Q-IM test client CA", 1)
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    unlisted = issued_by(authority)

    async def scenario() -> None:
        trusting = internal(WRITER, QIM_INTERNAL_TLS_CLIENT_CA=str(tmp_path / "ca.pem"))
        async with (
            Process(WRITER, security=trusting) as writer,
            Process(GATEWAY, security=Rogue(GATEWAY, dialler(unlisted, tmp_path))) as gateway,
        ):
            gateway.say(writer.address, ask(1))
            await writer.told.until(lambda: "'code': 'wrong_role'" in writer.told.text())
            assert unlisted.fingerprint in writer.told.text()
            await gateway.told.until(lambda: "in no list" in gateway.told.text())
            assert not writer.heard

    play(scenario)


def test_a_mailbox_that_says_it_is_a_gateway(play: Play) -> None:
    async def scenario() -> None:
        async with (
            Process(WRITER, security=internal(WRITER)) as writer,
            Process(GATEWAY, security=internal(MAILBOX)) as mailbox,
        ):
            mailbox.say(writer.address, ask(1))
            await writer.told.until(lambda: "'code': 'wrong_role'" in writer.told.text())
            line = writer.told.text()
            assert "it says gateway" in line and chain().fingerprints["mailbox"] in line
            assert not writer.heard

    play(scenario)


def test_a_gateway_that_pushes(play: Play) -> None:
    """The right certificate for the role it says, and a message that role may not send."""

    async def scenario() -> None:
        async with (
            Process(GATEWAY, security=internal(GATEWAY)) as one,
            Process(GATEWAY, security=internal(GATEWAY)) as other,
        ):
            other.say(one.address, PushBatch(shard=1, pushes=()))
            await one.told.until(lambda: "may not send PushBatch" in one.told.text())
            assert one.told.counts["rpc_refused", "wrong_role"] == 1
            assert not one.heard

    play(scenario)


def test_a_server_of_another_ca(play: Play) -> None:
    """The client trusts the server CA alone; the client CA's word is none about servers."""

    async def scenario() -> None:
        wrong = str(chain().folder / "internal-client-ca.pem")
        async with (
            Process(WRITER, security=internal(WRITER)) as writer,
            Process(
                GATEWAY, security=internal(GATEWAY, QIM_INTERNAL_TLS_SERVER_CA=wrong)
            ) as gateway,
        ):
            gateway.say(writer.address, ask(1))
            await gateway.told.until(lambda: "'code': 'certificate_ca'" in gateway.told.text())
            assert not writer.heard

    play(scenario)


def test_a_server_of_another_role(play: Play) -> None:
    """A mailbox at a writer's address: its certificate has the wrong name."""

    async def scenario() -> None:
        async with (
            Process(MAILBOX, security=internal(MAILBOX)) as mailbox,
            Process(GATEWAY, security=internal(GATEWAY)) as gateway,
        ):
            gateway.say(mailbox.address, ask(1))
            await gateway.told.until(lambda: "'code': 'certificate_name'" in gateway.told.text())
            assert not mailbox.heard

    play(scenario)
