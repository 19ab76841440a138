"""The system under test as real servers and a process a role, every wire of theirs through a proxy of its own.

Each process has its own proxies to both stores and to etcd, one in front of its internal listener, and a gateway one in
front of its clients; so a fault can part one process from one thing. Kafka's brokers tell their own addresses and are
killed and paused, never parted. The archive is one Cassandra node that no fault touches.
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from chaos.clocked import CLOCK_VARIABLE, write_offset
from chaos.proxy import Proxy
from chaos.reports import report_of
from chaos.scene import LogEnd
from chaos.stores import StoreReader
from qim.adapters.cassandra import CassandraArchive
from qim.adapters.cassandra.settings import settings_from
from qim.adapters.etcd import EtcdRegistry
from qim.adapters.kafka.cluster import BrokerGone
from qim.adapters.kafka.cluster import Cluster as KafkaView
from qim.adapters.kafka.log import KafkaLog
from qim.adapters.redis.address import StoreAddress
from qim.adapters.rpc.admin import AuditorUnreachable
from qim.adapters.start_refused import StartRefused
from qim.core.audit import AuditReport
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import EndsRead, Fetch, Fetched, ReadEnds, StoredRecord, Topic
from qim.services.routing import Port
from tests.integration.cluster.cluster import LISTENERS, SECRET, Cluster
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.testbed.redis import RedisServer

COUNTS: Final[Mapping[str, int]] = {
    "writer": 2,
    "fanout": 2,
    "mailbox": 2,
    "session": 2,
    "gateway": 2,
    "auditor": 2,
}
TIERED_COUNTS: Final[Mapping[str, int]] = {**COUNTS, "archiver": 2}
ROOT: Final = Path(__file__).resolve().parent.parent
ANSWER_SECONDS: Final = 60.0
LOOK_SECONDS_MAX: Final = 8.0
LEADER_MS: Final = 3_000
FETCH_RECORDS: Final = 1_000
FETCH_BYTES: Final = 4 << 20


class ChaosCluster(Cluster):
    """A Cluster whose processes see the world through ``proxies`` (process, what) and by clocks that can be set."""

    def __init__(self, directory: Path, *, brokers: int, tiered: bool = True) -> None:
        self.proxies: dict[tuple[str, str], Proxy] = {}
        counts = counts_of(tiered=tiered)
        super().__init__(directory, counts=counts, brokers=brokers, tiered=tiered, lent=False)

    def add(self, role: str, number: int, **more: str) -> RoleProcess:
        """As the cluster's own, behind proxies."""
        process = super().add(role, number, **more)
        name, told = process.name, process.settings
        etcd = told["QIM_ETCD_ENDPOINTS"].split(",")[0]
        told["QIM_REDIS_ADDR"] = self._proxied(name, "message", told["QIM_REDIS_ADDR"])
        told["QIM_MAILBOX_REDIS_ADDR"] = self._proxied(
            name, "mailbox", told["QIM_MAILBOX_REDIS_ADDR"]
        )
        told["QIM_ETCD_ENDPOINTS"] = self._proxied(name, "registry", etcd)
        if role in LISTENERS:
            internal = self._proxied(name, "internal", told[LISTENERS[role]])
            told["QIM_INTERNAL_ADVERTISE"] = internal
        if role == "gateway":
            self._proxied(name, "clients", told["QIM_GATEWAY_LISTEN"])
        clock = self.directory / f"{name}.clock"
        clock.parent.mkdir(parents=True, exist_ok=True)
        write_offset(clock, 0)
        renewed = RoleProcess(name, role, self.directory / name, told)
        command = renewed.process.command
        module = command.index("-m")
        command[module + 1] = "chaos.clocked"
        command[1:1] = [f"{CLOCK_VARIABLE}={clock}", f"PYTHONPATH={ROOT}"]
        assert command[command.index(sys.executable) + 1] == "-m"
        self.processes[name] = renewed
        return renewed

    def _proxied(self, name: str, what: str, address: str) -> str:
        host, _, port = address.rpartition(":")
        proxy = self.proxies[name, what] = Proxy(f"{name} {what}", host, int(port))
        return proxy.address

    async def start_proxies(self) -> None:
        """Those that do not listen yet."""
        for proxy in self.proxies.values():
            if not proxy.listening:
                await proxy.start()

    async def close_proxies(self) -> None:
        """All of them."""
        for proxy in self.proxies.values():
            await proxy.close()

    def of(self, what: Iterable[str], name: str = "") -> list[Proxy]:
        """Proxies to these things, of one process or of all."""
        wanted = set(what)
        return [
            proxy
            for (owner, thing), proxy in self.proxies.items()
            if thing in wanted and name in ("", owner)
        ]

    def step_clock(self, name: str, by_ms: int) -> int:
        """Its wall clock jumps; how far ahead of the machine's it is now."""
        path = self.directory / f"{name}.clock"
        ahead = int.from_bytes(path.read_bytes(), "little", signed=True) + by_ms
        write_offset(path, ahead)
        return ahead

    async def leading(self, topic: Topic, partition: int) -> Any:
        """The broker that leads it now, as the others tell; None where nobody does, or nobody tells soon."""
        settings = replace(self.kafka_settings(), start_ms=LEADER_MS)
        name = settings.name_of(topic)
        view = KafkaView(settings, asyncio.get_running_loop(), [name])
        try:
            await view.start()
            leader = view.leader(name, partition)
        except BrokerGone:
            return None
        finally:
            await view.close()
        return None if leader is None else self.kafka[leader.node - 1]

    def redis(self, number: int) -> RedisServer:
        """0: of messages, 1: of mailboxes."""
        return (self.message_redis, self.mailbox_redis)[number]


def counts_of(*, tiered: bool) -> Mapping[str, int]:
    """Processes by role."""
    return TIERED_COUNTS if tiered else COUNTS


class ClusterDeployment:
    """What a run reads of the cluster, on connections of its own that no fault touches."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self.cluster = cluster
        self._log: KafkaLog | None = None
        self._known: dict[tuple[Topic, int], list[StoredRecord]] = {}
        self.registry: EtcdRegistry | None = None
        self._archive: CassandraArchive | None = None
        self._looks = 0

    async def start(self) -> None:
        """Once servers and topics are there."""
        loop = asyncio.get_running_loop()
        self._log = KafkaLog(self.cluster.kafka_settings(), loop)
        await self._log.start()
        told = self.cluster.settings()
        self.registry = EtcdRegistry(
            told["QIM_ETCD_ENDPOINTS"].split(","), told["QIM_ETCD_PREFIX"], loop
        )
        await self.registry.start()

    async def close(self) -> None:
        """Every connection."""
        if self._archive is not None:
            await self._archive.close()
        if self._log is not None:
            await self._log.close()
        if self.registry is not None:
            await self.registry.close()

    @property
    def gateways(self) -> tuple[str, ...]:
        """Behind their proxies."""
        return tuple(proxy.address for proxy in self.cluster.of(["clients"]))

    @property
    def secret(self) -> bytes:
        """Signs tokens."""
        return SECRET.encode()

    async def read_log(self, topic: Topic, partition: int) -> LogEnd:
        """Whole; what was read before is not read again, logs being append-only."""
        known = self._known.setdefault((topic, partition), [])
        ends = await self._ask_log(ReadEnds(op=0, topic=topic, partition=partition))
        assert isinstance(ends, EndsRead), ends
        at = known[-1].offset + 1 if known else ends.start
        while at < ends.end:
            fetch = Fetch(
                op=0,
                topic=topic,
                partition=partition,
                offset=at,
                limit=FETCH_RECORDS,
                bytes_max=FETCH_BYTES,
                wait_ms=1_000,
            )
            fetched = await self._ask_log(fetch)
            assert isinstance(fetched, Fetched), fetched
            known.extend(fetched.records)
            if fetched.records:
                at = fetched.records[-1].offset + 1
        return LogEnd(start=known[0].offset if known else ends.start, records=tuple(known))

    async def ask_store(self, role: StoreRole, request: Any) -> Any:
        """On a connection for this question."""
        store = await self._store(role)
        try:
            return await store.ask(request)
        finally:
            await store.close()

    async def incarnation(self, role: StoreRole) -> bytes:
        """As the machines name it."""
        store = await self._store(role)
        try:
            return store.incarnation
        finally:
            await store.close()

    @property
    def tiered(self) -> bool:
        """History moves into Cassandra."""
        return bool(self.cluster.roles("archiver"))

    async def ask_archive(self, request: Any) -> Any:
        """On a session that is opened with the first question."""
        if self._archive is None:
            loop = asyncio.get_running_loop()
            self._archive = CassandraArchive(settings_from(self.cluster.settings()), loop)
            await self._archive.start()
        return await _answered(self._archive, request)

    async def audit(self) -> AuditReport:
        """By an auditor's process."""
        return report_of(await asyncio.to_thread(self.cluster.audited))

    async def look(self) -> AuditReport | None:
        """By one auditor after another while faults go on; None: it is down, stopped, parted or busy."""
        auditors = self.cluster.roles("auditor")
        name = auditors[self._looks % len(auditors)].name
        self._looks += 1
        try:
            told = await asyncio.to_thread(self.cluster.audited, name, LOOK_SECONDS_MAX)
        except (AuditorUnreachable, StartRefused, KeyError):
            return None
        return report_of(told)

    async def _store(self, role: StoreRole) -> StoreReader:
        server = self.cluster.redis(0 if role is StoreRole.MESSAGE else 1)
        return await StoreReader.open(StoreAddress.parse(server.address))

    async def _ask_log(self, request: Any) -> Any:
        assert self._log is not None, "not started"
        return await _answered(self._log, request)


async def _answered(port: Port, request: Any) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    port.submit(request, answered.set_result)
    return await asyncio.wait_for(answered, ANSWER_SECONDS)
