"""The operator's page followed step by step on the servers of the test bed: one file for all, commands, processes, and what
it says must hold (docs/operations.md, From nothing, in order).
"""

import asyncio
import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster import commands
from tests.integration.cluster.cluster import ONE_EACH, SECRET, Cluster
from tests.integration.cluster.conftest import drained
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.served import eventually
from tests.integration.testbed.server_process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("deployment")]

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "qim.example.toml"
ORDER = ("writer", "fanout", "mailbox", "session", "archiver", "auditor", "gateway")
THEIRS = ("redpanda_tls_ca", "etcd_tls_ca", "etcd_tls_cert", "etcd_tls_key")
"""Lines of the example for servers that speak TLS; those of the test bed don't."""
LISTENERS = tuple(
    f"{name}_listen" for name in ("gateway", "writer", "mailbox", "session", "auditor")
)


class Operator:
    """Who has servers, the example's file and `qim`. ``env``: of the certificates, by role, as the page has it."""

    def __init__(self, servers: Cluster, folder: Path) -> None:
        self.servers = servers
        self.file = folder / "qim.toml"
        self.certificates = folder / "certs"
        self.file.write_text(_toml(tomllib.loads(EXAMPLE.read_text()) | self._own()))

    def _own(self) -> dict[str, Any]:
        """With your addresses."""
        told = self.servers.settings()
        own: dict[str, Any] = dict.fromkeys(THEIRS)
        own |= {name: f"127.0.0.1:{free_port()}" for name in (*LISTENERS, "gateway_push")}
        for name in ("redis_addr", "mailbox_redis_addr", "redpanda_brokers", "etcd_endpoints"):
            own[name] = told[f"QIM_{name.upper()}"]
        for name in ("scylla_hosts", "scylla_dc", "scylla_keyspace", "etcd_prefix"):
            own[name] = told[f"QIM_{name.upper()}"]
        for name in ("outbox_topic", "dispatch_topic", "user_state_topic"):
            own[name] = told[f"QIM_{name.upper()}"]
        sizes = {"outbox_partition_count": 4, "mailbox_shard_count": 4, "scylla_rf": 1}
        alone = {"redpanda_allow_single_broker": True, "scylla_allow_unsafe_dev": True}
        return own | sizes | alone

    def env(self, role: str) -> dict[str, str]:
        """`env $(cat certs/ROLE.env)`, and the secret that is in no file."""
        lines = (self.certificates / f"{role}.env").read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines)
        return found | {"QIM_AUTH_SECRET": SECRET}

    def qim(self, *words: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """With status 0."""
        ended = commands.told(env, *words)
        assert ended.returncode == 0, (words, ended.stdout[-4000:], ended.stderr[-4000:])
        return ended

    def with_file(self, *words: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return self.qim(*words, "--config", str(self.file), env=env)

    def process(self, role: str) -> RoleProcess:
        """Of the role, where Prometheus finds it."""
        own = {"QIM_CONFIG": str(self.file), "QIM_METRICS_LISTEN": f"127.0.0.1:{free_port()}"}
        folder = self.file.parent / role
        return RoleProcess(f"{role}-1", role, folder, self.env(role) | own)


def _toml(told: Mapping[str, Any]) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in told.items() if value is not None]
    return "\n".join(lines)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """Servers that run, empty, and nothing of ours yet."""
    servers = Cluster(tmp_path / "servers", counts={}, tiered=True)
    try:
        servers.start_servers(topics=False, tables=False)
        yield Operator(servers, tmp_path)
    finally:
        servers.end()


def test_from_nothing_to_a_deployment_that_serves_and_is_watched(operator: Operator) -> None:
    servers = operator.servers
    operator.qim("certs", "dev", "--out", str(operator.certificates), env={})
    gateway, admin = operator.env("gateway"), operator.env("admin")
    operator.with_file("config", "check", env=gateway)
    for command in (("topics",), ("archive", "schema")):
        operator.with_file(*command, "create", env=gateway)
        operator.with_file(*command, "check", env=gateway)
    for role in ORDER:
        process = servers.processes[role] = operator.process(role)
        process.start()
    assert set(servers.processes) == {*ONE_EACH, "archiver"}
    metrics = {role: one.ready["metrics"] for role, one in servers.processes.items()}
    asyncio.run(
        eventually(lambda: all(one.get("/readyz")[0] == 200 for one in servers.processes.values()))
    )

    named = [word for role, at in metrics.items() for word in ("--process", f"{role}={at}")]
    looked = operator.with_file("doctor", "--json", *named, env=gateway | admin)
    found = json.loads(looked.stdout)["findings"]
    assert {one["subject"] for one in found if one["state"] != "ok"} <= {"start-up checks"}, found
    subjects = {one["subject"] for one in found}
    assert {"configuration", "lag", *(f"leases of {role}" for role in ORDER[:5])} <= subjects

    at = servers.processes["gateway"].ready["tcp"]
    scraped = [word for one in metrics.values() for word in ("--metrics", one)]
    trusting = operator.env("client")
    smoked = json.loads(
        operator.qim("smoke", "--json", "--server", at, *scraped, env=trusting).stdout
    )
    assert {one["status"] for one in smoked["checks"]} == {"passed"}, smoked

    auditor = servers.processes["auditor"].ready["internal"]
    audited = operator.with_file("audit", "--json", "--auditor", auditor, env=gateway | admin)
    report = json.loads(audited.stdout)
    assert (report["verdict"], report["orphans"]) == ("CLEAN", [])
    assert report["records"] > 0
    drained(servers)
