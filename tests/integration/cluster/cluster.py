"""A whole Q-IM of real servers and one process a role or more, on free loopback ports: started, killed, paused, stopped.

    with Cluster(directory) as cluster:           # one of each role, history hot
        cluster.roles("writer")[0].kill()         # processes by role
        cluster.etcd.pause()                      # servers by name: message_redis, mailbox_redis, kafka, etcd, cassandra
        cluster.addresses                         # where clients connect; cluster.target.secret signs their tokens

QIM_TEST_KAFKA, QIM_TEST_ETCD and QIM_TEST_CASSANDRA lend servers that somebody has: topics, keys and the keyspace have a
name of their own there. Whoever harms servers takes none of them (``lent=False``).
"""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from qim.adapters.kafka.cluster import Cluster as Brokers
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.topics import create_missing
from qim.adapters.tls.dev_chain import DevChain, write_dev_chain
from qim.client import ClientTls, client_tls_from_environment
from qim.core.contract.params import DEFAULT
from qim.core.contract.rpc_admin import AdminOrder
from qim.core.ports.log import Topic
from qim.services.cluster.admin import RID, ordered
from qim.services.settings import read_settings
from tests.integration.cluster.role_process import DRAIN_MS, RoleProcess, without_settings
from tests.integration.raw_client import Target
from tests.integration.testbed.cassandra import CassandraNode
from tests.integration.testbed.etcd import EtcdServer
from tests.integration.testbed.etcd import given_address as given_etcd
from tests.integration.testbed.kafka import KafkaBroker, KafkaCluster
from tests.integration.testbed.lent import drop_keyspace, keys_under, topics_under
from tests.integration.testbed.redis import RedisServer
from tests.integration.testbed.server_process import ServerFailed, free_port

ONE_EACH: Final[Mapping[str, int]] = {
    "writer": 1,
    "fanout": 1,
    "mailbox": 1,
    "session": 1,
    "gateway": 1,
    "auditor": 1,
}
PARTITIONS: Final = 4
SHARDS: Final = 4
LEASE_TTL_MS: Final = 4_000
LEASE_RENEW_MS: Final = 800
LEASE_MARGIN_MS: Final = 500
"""Shorter than in life, so that a takeover takes seconds; in the same proportion."""
SECRET: Final = "a secret of the tests' own, 32 letters"
RECOVERY_MS: Final = 86_400_000
LISTENERS: Final = {
    "gateway": "QIM_GATEWAY_PUSH",
    "writer": "QIM_WRITER_LISTEN",
    "mailbox": "QIM_MAILBOX_LISTEN",
    "session": "QIM_SESSION_LISTEN",
    "auditor": "QIM_AUDITOR_LISTEN",
}
AUDIT_SECONDS_MAX: Final = 330.0
TABLES_SECONDS_MAX: Final = 180.0


class Cluster:
    """``counts``: processes a role. ``settings``: QIM_ variables over those of this class, for every process.

    ``brokers``: 3 for a Kafka that outlives one of them. ``tiered``: history moves into Cassandra (add an archiver).
    ``encrypted``: mTLS between processes, TLS for clients, by a chain of its own. ``lent``: servers of the environment are
    taken where it names them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        counts: Mapping[str, int] = ONE_EACH,
        settings: Mapping[str, str] | None = None,
        brokers: int = 1,
        tiered: bool = False,
        encrypted: bool = False,
        lent: bool = True,
    ) -> None:
        self.directory = directory
        self.name = f"qim-{secrets.token_hex(3)}"
        self.message_redis = RedisServer(directory / "message-redis")
        self.mailbox_redis = RedisServer(directory / "mailbox-redis")
        self.kafka: list[KafkaBroker] = []
        self.etcd: EtcdServer | None = None
        self._brokers = os.environ.get("QIM_TEST_KAFKA", "") if lent else ""
        if not self._brokers:
            self.kafka = kafka_brokers(directory / "kafka", brokers)
            self._brokers = ",".join(broker.address for broker in self.kafka)
        self._etcd_address = (given_etcd() or "") if lent else ""
        if not self._etcd_address:
            self.etcd = EtcdServer(directory / "etcd")
            self._etcd_address = self.etcd.address
        self.cassandra: CassandraNode | None = None
        self._archive = os.environ.get("QIM_TEST_CASSANDRA", "") if lent else ""
        if tiered and not self._archive:
            ports = {"port": free_port(), "storage_port": free_port()}
            self.cassandra = CassandraNode(directory / "cassandra", **ports)
            self._archive = self.cassandra.address
        self._tiered = tiered
        self._servers_used = False
        self._chain: DevChain | None = None
        self.tls: ClientTls | None = None
        """What clients of this cluster need; None: plaintext."""
        # Operators order by mTLS of the auditor even where nothing else is encrypted.
        self.chain = write_dev_chain(directory / f"{self.name}-certs", days=1)
        if encrypted:
            self._chain = self.chain
            self.tls = client_tls_from_environment(self._chain.environment["client"])
        self._more = dict(settings or {})
        self.processes: dict[str, RoleProcess] = {}
        for role, count in counts.items():
            for number in range(1, count + 1):
                self.add(role, number)

    # ------------------------------------------------------------ what it is told

    def settings(self) -> dict[str, str]:
        """Of every process."""
        return {
            "QIM_REDIS_ADDR": self.message_redis.address,
            "QIM_MAILBOX_REDIS_ADDR": self.mailbox_redis.address,
            "QIM_REDPANDA_BROKERS": self._brokers,
            "QIM_REDPANDA_ALLOW_SINGLE_BROKER": "0" if len(self.kafka) > 1 else "1",
            "QIM_OUTBOX_TOPIC": f"{self.name}.outbox",
            "QIM_OUTBOX_PARTITION_COUNT": str(PARTITIONS),
            "QIM_OUTBOX_RECOVERY_WINDOW_MS": str(RECOVERY_MS),
            "QIM_DISPATCH_TOPIC": f"{self.name}.dispatch",
            "QIM_DISPATCH_RECOVERY_WINDOW_MS": str(RECOVERY_MS),
            "QIM_USER_STATE_TOPIC": f"{self.name}.user_state",
            "QIM_MAILBOX_SHARD_COUNT": str(SHARDS),
            "QIM_ETCD_ENDPOINTS": self._etcd_address,
            "QIM_ETCD_PREFIX": f"/{self.name}/",
            "QIM_LEASE_TTL_MS": str(LEASE_TTL_MS),
            "QIM_LEASE_RENEW_MS": str(LEASE_RENEW_MS),
            "QIM_LEASE_MARGIN_MS": str(LEASE_MARGIN_MS),
            "QIM_DRAIN_MS": str(DRAIN_MS),
            **self._history(),
            "QIM_AUTH_SECRET": SECRET,
            "QIM_LOG_FORMAT": "json",
            **self._more,
        }

    def _history(self) -> dict[str, str]:
        if not self._tiered:
            return {"QIM_MESSAGE_STORE_BACKEND": "redis"}
        return {
            "QIM_MESSAGE_STORE_BACKEND": "tiered",
            "QIM_SCYLLA_HOSTS": self._archive,
            "QIM_SCYLLA_KEYSPACE": self.name.replace("-", "_"),
            "QIM_SCYLLA_DC": "datacenter1",
            "QIM_SCYLLA_RF": "1",
            "QIM_SCYLLA_ALLOW_UNSAFE_DEV": "1",
        }

    def operator(self, role: str) -> dict[str, str]:
        """Variables of a command beside this cluster that shows the certificate of ``role``; an admin's is what it takes."""
        name = LISTENERS["auditor"]
        auditors = [{name: one.settings[name]} for one in self.roles("auditor")]
        listener = auditors[0] if auditors else {}
        return self.settings() | listener | self.chain.environment[role]

    def add(self, role: str, number: int, **more: str) -> RoleProcess:
        """One more process, not started; its client and internal ports stay the same over restarts."""
        own = {"QIM_METRICS_LISTEN": "127.0.0.1:0"}
        if role in LISTENERS:
            own[LISTENERS[role]] = f"127.0.0.1:{free_port()}"
        if role == "gateway":
            own["QIM_GATEWAY_LISTEN"] = f"127.0.0.1:{free_port()}"
        name = f"{role}-{number}"
        if self._chain is not None or role == "auditor":
            own |= self.chain.environment[role]
        settings = self.settings() | own | more
        process = RoleProcess(name, role, self.directory / name, settings)
        self.processes[name] = process
        return process

    def roles(self, *roles: str) -> list[RoleProcess]:
        """Processes of these roles, in the order they were added."""
        return [one for one in self.processes.values() if one.role in roles]

    def process(self, name: str) -> RoleProcess:
        """By name: writer-1."""
        return self.processes[name]

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients connect: every gateway."""
        return tuple([one.settings["QIM_GATEWAY_LISTEN"] for one in self.roles("gateway")])

    @property
    def target(self) -> Target:
        """The first gateway, and the secret that signs tokens."""
        return Target(self.addresses[0], SECRET.encode())

    def audited(
        self, name: str = "auditor-1", seconds_max: float = AUDIT_SECONDS_MAX
    ) -> dict[str, Any]:
        """The orphan audit's report, by this auditor's process: also one that doesn't hold the lease looks."""
        auditor = self.process(name)
        settings = read_settings(self.operator("admin")).require()
        order = AdminOrder(rid=RID, what="audit")
        address = auditor.ready["internal"]
        # On a thread of its own: the caller may have a loop that runs.
        with ThreadPoolExecutor(max_workers=1) as thread:
            asked = thread.submit(ordered, settings, address, order, seconds_max)
            return asked.result()

    # ------------------------------------------------------------ life

    def __enter__(self) -> "Cluster":
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Servers, topics, then every process; returns when all of them serve."""
        self.start_servers()
        self.start_processes(self.processes.values())

    def start_servers(self, *, topics: bool = True, tables: bool = True) -> None:
        """Redis, Kafka, etcd, Cassandra; then the topics and the archive's tables."""
        self._servers_used = True
        if self.cassandra is not None:
            self.cassandra.process.launch()
        for broker in self.kafka:
            broker.format()
        for broker in self.kafka:
            broker.process.launch()
        if self.etcd is not None:
            self.etcd.process.launch()
        self.message_redis.start()
        self.mailbox_redis.start()
        if self.etcd is not None:
            self.etcd.process.wait_ready()
        for broker in self.kafka:
            broker.process.wait_ready()
        if topics:
            asyncio.run(make_topics(self.kafka_settings()))
        if self.cassandra is not None:
            self.cassandra.process.wait_ready()
        if self._tiered and tables:
            self._make_tables()

    def _make_tables(self) -> None:
        """By the operator's command, whose words are nobody's here: standard output is the caller's own."""
        command = [*without_settings(self._history()), sys.executable, "-m", "qim"]
        command += ["archive", "schema", "create"]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=TABLES_SECONDS_MAX, check=False
        )
        if ended.returncode != 0:
            raise ServerFailed(f"no archive's tables: {ended.stdout}{ended.stderr}")

    def start_processes(self, processes: Iterable[RoleProcess]) -> None:
        """All at once: none waits for another."""
        launched = list(processes)
        for process in launched:
            process.launch()
        for process in launched:
            process.wait_ready()

    def end(self) -> None:
        """Kill what still runs, servers last; for a drain, stop the processes before."""
        for process in self.processes.values():
            process.kill()
        servers = [self.message_redis, self.mailbox_redis, self.etcd, *self.kafka]
        for server in servers:
            if server is not None:
                server.kill()
        if self.cassandra is not None:
            self.cassandra.process.kill()
        if self._servers_used:
            self._leave_as_found()

    def _leave_as_found(self) -> None:
        """Of servers that somebody lent: topics, keys and keyspace of this deployment go with it."""
        if not self.kafka:
            asyncio.run(topics_under(self._brokers, f"{self.name}.", deleted=True))
        if self.etcd is None:
            keys_under(self._etcd_address, f"/{self.name}/", "deleterange")
        if self._tiered and self.cassandra is None:
            drop_keyspace(self._archive, self._history()["QIM_SCYLLA_KEYSPACE"])

    def kafka_settings(self) -> KafkaSettings:
        """As a process has them."""
        told = self.settings()
        return KafkaSettings(
            brokers=self._brokers,
            outbox_topic=told["QIM_OUTBOX_TOPIC"],
            dispatch_topic=told["QIM_DISPATCH_TOPIC"],
            user_state_topic=told["QIM_USER_STATE_TOPIC"],
            outbox_partitions=int(told["QIM_OUTBOX_PARTITION_COUNT"]),
            dispatch_partitions=int(told["QIM_MAILBOX_SHARD_COUNT"]),
            user_state_partitions=int(told["QIM_MAILBOX_SHARD_COUNT"]),
            outbox_recovery_ms=RECOVERY_MS,
            dispatch_recovery_ms=RECOVERY_MS,
            body_bytes_max=DEFAULT.body_bytes_max,
            allow_single_broker=len(self.kafka) <= 1,
        )


def kafka_brokers(directory: Path, count: int) -> list[KafkaBroker]:
    """One broker, or ``count`` that elect each other."""
    if count == 1:
        return [KafkaBroker(directory)]
    return KafkaCluster(directory, count=count).brokers


async def make_topics(settings: KafkaSettings) -> None:
    """The three topics as the checks want them."""
    loop = asyncio.get_running_loop()
    brokers = Brokers(settings, loop, [settings.name_of(topic) for topic in Topic])
    await brokers.start()
    try:
        for made in await create_missing(settings, brokers):
            assert not made.error, made
    finally:
        await brokers.close()
