"""What the internal variables may say: each refusal by its code, lists that give roles, and a tool answered where it asks."""

import asyncio
from collections.abc import Callable

import pytest

from qim.adapters.rpc import ProcessRole, RpcNetwork
from qim.adapters.rpc.roles import addressee, callers_of, dialled_by, may_say
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.internal import InternalTls
from qim.adapters.tls.internal_settings import InternalTlsSettings
from qim.core.contract.rpc import AskMembers, Message, PushBatch, Refused, SubmitSend
from qim.core.ports.network import Received, Send
from tests.adapters.rpc.stage import ACTOR, Process, Told, answer, ask
from tests.adapters.tls.chain import chain, internal

WRITER, GATEWAY, MAILBOX = ProcessRole.WRITER, ProcessRole.GATEWAY, ProcessRole.MAILBOX


def without(*names: str) -> dict[str, str]:
    variables = dict(chain().environment["writer"])
    for name in names:
        del variables[name]
    return variables


def build(variables: dict[str, str]) -> None:
    settings = InternalTlsSettings.from_environment(variables)
    assert settings is not None
    InternalTls(settings, WRITER)


REFUSED = [
    (lambda: without("QIM_INTERNAL_TLS_KEY"), "internal_tls_incomplete", "QIM_INTERNAL_TLS_KEY"),
    (lambda: without("QIM_INTERNAL_TLS_CERT"), "internal_tls_incomplete", "QIM_INTERNAL_TLS_CERT"),
    (
        lambda: without("QIM_INTERNAL_TLS_CERT", "QIM_INTERNAL_TLS_KEY"),
        "internal_tls_incomplete",
        "without QIM_INTERNAL_TLS_CERT, QIM_INTERNAL_TLS_KEY",
    ),
    (
        lambda: without("QIM_INTERNAL_TLS_CLIENT_CA"),
        "internal_tls_incomplete",
        "QIM_INTERNAL_TLS_CLIENT_CA",
    ),
    (
        lambda: without("QIM_INTERNAL_TLS_SERVER_CA"),
        "internal_tls_incomplete",
        "QIM_INTERNAL_TLS_SERVER_CA",
    ),
    (
        lambda: without("QIM_INTERNAL_TLS_SERVER_NAME_SESSION"),
        "internal_server_name_missing",
        "session",
    ),
    (
        lambda: without("QIM_INTERNAL_GATEWAY_CERT_SHA256"),
        "internal_role_list_missing",
        "QIM_INTERNAL_GATEWAY_CERT_SHA256",
    ),
    (
        lambda: without() | {"QIM_INTERNAL_ADMIN_CERT_SHA256": "ab:cd"},
        "internal_fingerprint_invalid",
        "QIM_INTERNAL_ADMIN_CERT_SHA256",
    ),
    (
        lambda: without() | {"QIM_INTERNAL_TLS_CERT": str(chain().folder / "gateway.pem")},
        "tls_key_mismatch",
        "QIM_INTERNAL_TLS_CERT",
    ),
    (
        lambda: (
            without()
            | {
                "QIM_INTERNAL_TLS_CERT": str(chain().folder / "gateway.pem"),
                "QIM_INTERNAL_TLS_KEY": str(chain().folder / "gateway.key"),
            }
        ),
        "tls_purpose",
        "clientAuth",
    ),
    (
        lambda: without() | {"QIM_INTERNAL_TLS_SERVER_CA": "absent.pem"},
        "tls_file_unreadable",
        "QIM_INTERNAL_TLS_SERVER_CA",
    ),
]


@pytest.mark.parametrize(("variables", "code", "named"), REFUSED)
def test_refused(variables: Callable[[], dict[str, str]], code: str, named: str) -> None:
    with pytest.raises(StartRefused) as refused:
        build(variables())
    assert refused.value.code == code
    assert named in str(refused.value) and refused.value.command


def test_nothing_set_is_plaintext() -> None:
    names = {"QIM_INTERNAL_TLS_SERVER_NAME": "qim", "QIM_AUTH_SECRET": "x"}
    assert InternalTlsSettings.from_environment(names) is None


def test_one_name_for_all_will_do() -> None:
    names = [f"QIM_INTERNAL_TLS_SERVER_NAME_{role.upper()}" for role in dialled_by(WRITER)]
    build(without(*names) | {"QIM_INTERNAL_TLS_SERVER_NAME": "writer.qim.internal"})


def test_lists_as_people_write_them() -> None:
    digest = chain().fingerprints["gateway"]
    pairs = [digest[at : at + 2] for at in range(0, 64, 2)]
    written = f" {':'.join(pairs).upper()} ,{chain().fingerprints['writer']},"
    settings = InternalTlsSettings.from_environment(
        without() | {"QIM_INTERNAL_GATEWAY_CERT_SHA256": written}
    )
    assert settings is not None
    assert settings.certificates[GATEWAY] == (digest, chain().fingerprints["writer"])


def test_the_table_of_roles() -> None:
    """Spelt out for the pairs that matter most; every question has one role it is for."""
    assert SubmitSend in may_say(GATEWAY, WRITER)
    assert not any(SubmitSend in may_say(role, WRITER) for role in ProcessRole if role != GATEWAY)
    pushers = [role for role in ProcessRole if PushBatch in may_say(role, GATEWAY)]
    assert pushers == [MAILBOX]
    assert callers_of(ProcessRole.FANOUT) == dialled_by(ProcessRole.ARCHIVER) == ()
    assert callers_of(WRITER) == (ProcessRole.ADMIN, GATEWAY, ProcessRole.SESSION)
    for sender in ProcessRole:
        for receiver in ProcessRole:
            for kind in may_say(sender, receiver):
                assert addressee(kind) in {receiver, None}


@pytest.mark.parametrize("kind", Message.__args__)
def test_every_message_has_somebody_who_may_say_it(kind: type) -> None:
    assert any(kind in may_say(a, b) for a in ProcessRole for b in ProcessRole)


def members(rid: int) -> AskMembers:
    return AskMembers(rid=rid, actor=ACTOR, conversation_id=b"c" * 16, since_version=0)


def test_a_tool_is_answered_on_the_connection_it_made() -> None:
    async def scenario() -> None:
        heard: list[Received] = []
        told, more = Told(), asyncio.Event()

        def received(event: Received) -> None:
            heard.append(event)
            more.set()

        async with Process(WRITER, security=internal(WRITER)) as writer:
            writer.answering = lambda event: answer(event.message.rid, 300_000)  # type: ignore[union-attr]
            tool = RpcNetwork(
                None,
                ProcessRole.ADMIN,
                received,
                security=internal(ProcessRole.ADMIN),
                reporting=told.reporting,
            )
            assert await tool.start() == ""
            tool.send(Send(address=writer.address, message=members(7)))
            async with asyncio.timeout(20):
                await more.wait()
            assert heard[0].message == answer(7, 300_000)
            assert heard[0].source == writer.address
            assert writer.heard[0].source.startswith("@")
            # What an operator's certificate is not for.
            tool.send(Send(address=writer.address, message=send()))
            await writer.told.until(lambda: "may not send SubmitSend" in writer.told.text())
            await tool.close()
            writer.say(writer.heard[0].source, answer(8))
            closed = ("rpc_messages_dropped", "closed HistoryAnswer")
            assert writer.told.counts[closed] == 1

    asyncio.run(scenario())


def send() -> SubmitSend:
    return SubmitSend(
        rid=1,
        actor=ACTOR,
        client_message_id=b"m",
        conversation_id=None,
        peer_user_id=9,
        kind=1,
        custom_type="",
        body=b"x",
        retention_class=0,
        not_after=0,
    )


def test_a_refusal_reaches_who_asked() -> None:
    async def scenario() -> None:
        async with (
            Process(WRITER, security=internal(WRITER)) as writer,
            Process(GATEWAY, security=internal(GATEWAY)) as gateway,
        ):
            refusal = Refused(rid=1, code=5, message="not mine")
            writer.answering = lambda _: refusal
            gateway.say(writer.address, ask(1))
            await gateway.until_heard(1)
            assert gateway.heard[0].message == refusal

    asyncio.run(scenario())
