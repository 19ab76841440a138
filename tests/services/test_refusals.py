"""Refusals of a start: each has a code that an operator finds in docs/, and says which variable and file it is about."""

import ast
import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from qim.adapters.kafka.checks import TOPIC_RESOURCE, read_config, why_no_start
from qim.adapters.kafka.cluster import BrokerGone
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.topics import alter_command, create_command
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.first_exchange import ServerSaid
from qim.adapters.redis.outcomes import ServerError
from qim.adapters.redis.startup import refusal_told_by
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.client_facing import ClientFacingTls
from qim.adapters.tls.dev_chain import write_dev_chain
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import Topic
from qim.services.cluster.adapters import Opened, open_registry, topic_identity
from qim.services.cluster.log_settings import log_settings
from qim.services.roles import ServiceRole
from qim.services.settings import read_settings

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"[a-z]+(_[a-z0-9]+)+")
MAKERS = ("StartRefused", "StoreRefused", "_Setting", "_refuse", "_refused", "_pair", "_wrong")
"""What is called with a code among its arguments."""


def codes() -> Iterator[str]:
    """Every code that a refusal of a start is made with."""
    for path in sorted((ROOT / "qim").rglob("*.py")):
        source = path.read_text("utf-8")
        if "StartRefused" not in source and "StoreRefused" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in MAKERS:
                continue
            for argument in node.args:
                for part in ast.walk(argument):
                    if isinstance(part, ast.Constant) and CODE.fullmatch(str(part.value)):
                        yield str(part.value)


def test_every_refusal_of_a_start_is_in_the_documents() -> None:
    pages = "".join(page.read_text("utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    told = set(re.findall(r"`([a-z0-9_]+)`", pages))
    found = set(codes())
    assert {"redis_aof_off", "kafka_retention_short", "etcd_unreachable", "tls_expired"} <= found
    assert sorted(found - told) == []


def test_every_refusal_of_a_start_is_met_by_a_test() -> None:
    tests = "".join(page.read_text("utf-8") for page in sorted((ROOT / "tests").rglob("*.py")))
    assert [code for code in sorted(set(codes())) if not re.search(rf"\b{code}\b", tests)] == []


# ------------------------------------------------------------ those that no server of the test bed gives

SECURED = KafkaSettings(
    brokers="kafka:9092",
    outbox_partitions=1,
    dispatch_partitions=1,
    user_state_partitions=1,
    outbox_recovery_ms=1,
    dispatch_recovery_ms=1,
    body_bytes_max=1,
    sasl_mechanism="PLAIN",
    sasl_username="qim",
)
WHOM = ["--bootstrap-server", "kafka:9092", "--command-config", "client.properties"]


def test_a_configuration_that_brokers_keep_to_themselves() -> None:
    async def answer(_: object) -> Any:
        return SimpleNamespace(resources=[(29, "not authorised", TOPIC_RESOURCE, "t", [])])

    with pytest.raises(StartRefused) as refused:
        asyncio.run(read_config(SECURED, SimpleNamespace(ask_any=answer), TOPIC_RESOURCE, "t"))  # type: ignore[arg-type]
    assert refused.value.code == "kafka_config_hidden"
    assert "not authorised" in refused.value.got
    words = shlex.split(refused.value.command)
    assert words[:5] == ["kafka-acls.sh", *WHOM]
    assert words[5:8] == ["--add", "--allow-principal", "User:qim"]
    assert "DescribeConfigs" in words


def test_a_command_for_brokers_that_want_a_login_says_where_it_is() -> None:
    """Without it the brokers' own programs wait for an answer that never comes."""
    for command in (
        create_command(SECURED, Topic.OUTBOX, copies=3),
        alter_command(SECURED, Topic.OUTBOX, "retention.ms", "1"),
        why_no_start(SECURED, BrokerGone("silent", sent=False)).command,
    ):
        assert shlex.split(command)[1:5] == WHOM, command
    plain = structs.replace(SECURED, sasl_mechanism=None)
    assert "--command-config" not in create_command(plain, Topic.OUTBOX, copies=3)


def test_a_log_that_does_not_tell_its_ends() -> None:
    class Log:
        def submit(self, request: Any, answer: Any) -> None:
            answer(Failed(op=request.op, why=FailReason.UNREACHABLE))

    async def main() -> None:
        await topic_identity(Log(), Topic.OUTBOX, asyncio.get_running_loop())

    with pytest.raises(StartRefused) as refused:
        asyncio.run(main())
    assert (refused.value.code, refused.value.got) == ("kafka_ends_unread", "Failed")


def test_a_first_exchange_that_the_server_does_not_know() -> None:
    unknown = ServerSaid(ServerError("ERR unknown command 'SCRIPT'"))
    refused = refusal_told_by(unknown, StoreAddress.parse("127.0.0.1:6379"))
    assert refused is not None
    assert (refused.code, "unknown command" in refused.got) == ("redis_first_exchange", True)
    many = ServerSaid(ServerError("ERR max number of clients reached"))
    assert refusal_told_by(many, StoreAddress.parse("h:1")) is None


# ------------------------------------------------------------ files

TOLD = {
    "QIM_REDPANDA_BROKERS": "127.0.0.1:9092",
    "QIM_OUTBOX_TOPIC": "o",
    "QIM_DISPATCH_TOPIC": "d",
    "QIM_OUTBOX_RECOVERY_WINDOW_MS": "1",
    "QIM_DISPATCH_RECOVERY_WINDOW_MS": "1",
}


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_ca_of_the_brokers_that_is_none(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    settings = read_settings(TOLD | {"QIM_REDPANDA_TLS_CA": str(file)}).require()
    with pytest.raises(StartRefused) as refused:
        log_settings(settings, ServiceRole.FANOUT, client_id="t")
    assert refused.value.code == "tls_file_unreadable"
    assert refused.value.what == f"QIM_REDPANDA_TLS_CA ({file})"


@pytest.mark.parametrize("name", ["QIM_ETCD_TLS_CA", "QIM_ETCD_TLS_CERT"])
def test_a_file_for_etcd_that_is_not_there(tmp_path: Path, name: str) -> None:
    file = tmp_path / "absent.pem"
    told = {name: str(file)}
    if name == "QIM_ETCD_TLS_CERT":
        told["QIM_ETCD_TLS_KEY"] = str(file)
    settings = read_settings(told).settings

    async def main() -> None:
        await open_registry(settings, asyncio.get_running_loop(), Opened())

    with pytest.raises(StartRefused) as refused:
        asyncio.run(main())
    assert refused.value.what == f"{name} ({file})"


def test_a_key_that_is_half_a_file(tmp_path: Path) -> None:
    chain = write_dev_chain(tmp_path / "certs", days=1)
    key = tmp_path / "half.key"
    key.write_bytes((chain.folder / "gateway.key").read_bytes()[:80])
    variables = {"QIM_TLS_CERT": str(chain.folder / "gateway.pem"), "QIM_TLS_KEY": str(key)}
    with pytest.raises(StartRefused) as refused:
        ClientFacingTls.from_environment(variables)
    assert refused.value.code == "tls_key_unusable"
    assert str(key) in refused.value.got
