"""An operator's tool at an auditor over real TLS: who is not an admin is refused by name, in its own words and in the auditor's log."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qim.adapters.rpc import ProcessRole, RpcNetwork, RpcSecurity
from qim.adapters.rpc.admin import AuditorUnreachable, ask_auditor
from qim.adapters.rpc.frames import Control, hello_frame
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.dev_chain import Authority
from qim.adapters.tls.pair import CLIENT_AUTH
from qim.core.contract.rpc_admin import AdminDone, AdminOrder
from qim.core.ports.network import Send
from tests.adapters.rpc.stage import Process
from tests.adapters.tls.chain import HOUR, Rogue, chain, dialler, internal, stranger
from tests.integration.testbed.server_process import free_port

ADMIN, AUDITOR = ProcessRole.ADMIN, ProcessRole.AUDITOR
ORDER = AdminOrder(rid=1, what="audit")
SECONDS_MAX = 20.0


def obeying() -> Process:
    """An auditor that does all it is told."""
    auditor = Process(AUDITOR, security=internal(AUDITOR))
    auditor.answering = lambda event: AdminDone(rid=event.message.rid, report=b"{}")  # type: ignore[union-attr]
    return auditor


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


def test_an_admin_is_answered_and_known_by_certificate() -> None:
    async def scenario() -> None:
        async with obeying() as auditor:
            answer = await ask_auditor(auditor.address, ORDER, internal(ADMIN), SECONDS_MAX)
            assert answer == AdminDone(rid=1, report=b"{}")
            (heard,) = auditor.heard
            assert heard.message == ORDER
            assert auditor.network.caller("127.0.0.1:1") is None

    play(scenario)


def test_the_caller_of_an_order_is_who_proved_it() -> None:
    async def scenario() -> None:
        async with obeying() as auditor:
            seen = []

            def answer(event: object) -> AdminDone:
                seen.append(auditor.network.caller(auditor.heard[-1].source))
                return AdminDone(rid=1, report=b"{}")

            auditor.answering = answer
            await ask_auditor(auditor.address, ORDER, internal(ADMIN), SECONDS_MAX)
            (caller,) = seen
            assert caller is not None
            assert caller.certificate_sha256 == chain().fingerprints["admin"]
            assert caller.peer.startswith("127.0.0.1:")

    play(scenario)


async def refused(
    made: Callable[[], Process], security: RpcSecurity, code: str, logged: str
) -> StartRefused:
    """By both: the command's error, and the auditor's line. Nothing was heard."""
    async with made() as auditor:
        with pytest.raises(StartRefused) as raised:
            await ask_auditor(auditor.address, ORDER, security, SECONDS_MAX)
        assert raised.value.code == code
        assert raised.value.got and raised.value.expected and raised.value.command
        await auditor.told.until(lambda: f"'code': '{logged}'" in auditor.told.text())
        assert auditor.told.counts["rpc_refused", logged] >= 1
        assert not auditor.heard
    return raised.value


def auditor_told(**changed: str) -> Callable[[], Process]:
    """An auditor with another CA or list."""
    return lambda: Process(AUDITOR, security=internal(AUDITOR, **changed))


def test_no_certificate(tmp_path: Path) -> None:
    security = Rogue(ADMIN, dialler(None, tmp_path))
    code = "admin_certificate_demanded"
    asyncio.run(refused(obeying, security, code, "certificate_missing"))


def test_a_certificate_of_another_ca(tmp_path: Path) -> None:
    security = Rogue(ADMIN, dialler(stranger("Q-IM admin"), tmp_path))
    asyncio.run(refused(obeying, security, "admin_ca_refused", "certificate_ca"))


def test_an_expired_certificate(tmp_path: Path) -> None:
    authority, now = Authority("Q-IM test client CA", 1), datetime.now(UTC)
    expired = authority.issue(
        "Q-IM admin", CLIENT_AUTH, valid_from=now - 2 * HOUR, valid_until=now - HOUR
    )
    security = Rogue(ADMIN, dialler(expired, tmp_path))
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    auditor = auditor_told(QIM_INTERNAL_TLS_CLIENT_CA=str(tmp_path / "ca.pem"))
    asyncio.run(refused(auditor, security, "admin_expiry_refused", "certificate_expired"))


@pytest.mark.parametrize("role", [ProcessRole.WRITER, ProcessRole.GATEWAY, AUDITOR])
def test_the_certificate_of_another_role(role: ProcessRole) -> None:
    """It says that it is an admin, with a leaf that the right CA issued to a process: the process may be taken, not the cluster."""
    variables = chain().environment[role.value]
    pair = {name: variables[name] for name in ("QIM_INTERNAL_TLS_CERT", "QIM_INTERNAL_TLS_KEY")}
    security = internal(ADMIN, **pair)
    error = asyncio.run(refused(obeying, security, "admin_wrong_role", "wrong_role"))
    assert "it says admin" in error.got
    assert "QIM_INTERNAL_ADMIN_CERT_SHA256" in error.expected


def test_an_admin_whom_the_list_does_not_name() -> None:
    other = chain().fingerprints["gateway"]
    auditor = auditor_told(QIM_INTERNAL_ADMIN_CERT_SHA256=other)
    error = asyncio.run(refused(auditor, internal(ADMIN), "admin_wrong_role", "wrong_role"))
    assert chain().fingerprints["admin"] in error.got


def test_an_auditor_without_mtls_takes_no_order() -> None:
    """Everything is on loopback and in plaintext there: an admin's word is not taken, nor does its TLS find anybody."""
    asyncio.run(refused(lambda: Process(AUDITOR), internal(ADMIN), "admin_not_tls", "frame_length"))


def test_an_order_in_plaintext_is_refused_on_loopback_too() -> None:
    async def said(auditor: Process) -> bytes:
        host, _, port = auditor.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(hello_frame(Control.HELLO, "admin", ""))
        answer = await reader.read()
        writer.close()
        return answer

    async def scenario() -> None:
        async with Process(AUDITOR) as plain:
            assert b"admin operations need mTLS" in await said(plain)
            assert plain.told.counts["rpc_refused", "admin_plaintext"] == 1
            assert "'code': 'admin_plaintext'" in plain.told.text()
        async with obeying() as auditor:
            await said(auditor)
            await auditor.told.until(lambda: "'code': 'not_tls'" in auditor.told.text())
            assert not auditor.heard
        with pytest.raises(StartRefused) as raised:
            await ask_auditor(auditor.address, ORDER, None, SECONDS_MAX)
        assert raised.value.code == "internal_plaintext"

    play(scenario)


@pytest.mark.parametrize("role", [role for role in ProcessRole if role is not ADMIN])
def test_no_process_may_order_whatever_it_calls_itself(role: ProcessRole) -> None:
    """With its own certificate and its own name: there is nothing it could say to an auditor."""

    async def scenario() -> None:
        async with obeying() as auditor, Process(role, security=internal(role)) as peer:
            peer.say(auditor.address, ORDER)
            await auditor.told.until(lambda: "'code': 'wrong_role'" in auditor.told.text())
            assert not auditor.heard

    play(scenario)


def test_somebody_else_at_the_auditors_address() -> None:
    """Its certificate is a writer's: the order is not shown to it."""

    async def scenario() -> None:
        async with Process(ProcessRole.WRITER, security=internal(ProcessRole.WRITER)) as other:
            with pytest.raises(StartRefused) as raised:
                await ask_auditor(other.address, ORDER, internal(ADMIN), SECONDS_MAX)
            assert raised.value.code == "admin_certificate_name"
            assert "SERVER_NAME_AUDITOR" in raised.value.expected
            assert not other.heard

    play(scenario)


def test_nobody_there_was_surely_not_ordered() -> None:
    async def scenario() -> None:
        with pytest.raises(AuditorUnreachable) as raised:
            await ask_auditor(f"127.0.0.1:{free_port()}", ORDER, internal(ADMIN), SECONDS_MAX)
        assert not raised.value.ordered

    play(scenario)


def test_an_auditor_that_goes_without_a_word_may_have_done_it() -> None:
    async def scenario() -> None:
        async with Process(AUDITOR, security=internal(AUDITOR)) as auditor:
            asking = asyncio.create_task(
                ask_auditor(auditor.address, ORDER, internal(ADMIN), SECONDS_MAX)
            )
            await auditor.until_heard(1)
            await auditor.network.close()
            with pytest.raises(AuditorUnreachable, match="dry run") as raised:
                await asking
            assert raised.value.ordered

    play(scenario)


def test_an_auditor_that_says_nothing_is_not_waited_for_for_ever() -> None:
    async def scenario() -> None:
        async with Process(AUDITOR, security=internal(AUDITOR)) as auditor:
            with pytest.raises(AuditorUnreachable, match="no answer within 1 s") as raised:
                await ask_auditor(auditor.address, ORDER, internal(ADMIN), 1.0)
            assert raised.value.ordered
            assert len(auditor.heard) == 1, "an order is never said twice"

    play(scenario)


def test_what_an_admin_says_that_is_no_order_is_refused() -> None:
    async def scenario() -> None:
        async with obeying() as auditor:
            tool = RpcNetwork(None, ADMIN, lambda _: None, security=internal(ADMIN))
            await tool.start()
            tool.send(Send(address=auditor.address, message=AdminDone(rid=1)))
            await auditor.told.until(lambda: auditor.told.total("rpc_refused") or auditor.heard)
            assert not auditor.heard
            await tool.close()

    play(scenario)
