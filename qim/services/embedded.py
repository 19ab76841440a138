"""All machines in one process over a private Valkey, a SQLite log and a SQLite registry: the assembly, nothing else.

Growing out of one machine means other adapters under the same machines, never other code (architecture.md).
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.database_thread import JOBS_MAX
from qim.adapters.embedded.log_retention import LogRetention
from qim.adapters.embedded.private_valkey import PrivateValkey
from qim.adapters.embedded.sqlite_archive import SqliteArchive
from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.adapters.embedded.sqlite_registry import SqliteRegistry
from qim.adapters.redis.store import RedisStore
from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.tcp.server import TcpServer
from qim.adapters.wall_clock import wall_ms
from qim.core.audit import AuditReport
from qim.core.contract.params import Parameters
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.ports.completion import StoreReset
from qim.core.ports.log import Topic
from qim.core.ports.sockets import SocketEvent
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.retention import RetentionPolicy
from qim.core.session import SessionProjection
from qim.services.hosting import Deployment, Hosting, Ports, socket_routes
from qim.services.mending import Mender
from qim.services.observation import ProcessObserver
from qim.services.roles import ServiceRole
from qim.services.runtime import Runtime

ADDRESS: Final = "local"
INSTANCE_NUMBER: Final = 1
MACHINES: Final = (
    ServiceRole.WRITER,
    ServiceRole.FANOUT,
    ServiceRole.MAILBOX,
    ServiceRole.SESSION,
    ServiceRole.ARCHIVER,
    ServiceRole.GATEWAY,
    ServiceRole.AUDITOR,
)


class EmbeddedServer:
    """Parts, auditor, machines, in this order; ``drain`` then ``close`` end it, from however far it came. One event loop."""

    def __init__(
        self,
        directory: DataDirectory,
        parameters: Parameters,
        observer: ProcessObserver,
        retention: RetentionPolicy | None = None,
    ) -> None:
        self._directory = directory
        self._parameters = parameters
        self._retention = retention or RetentionPolicy()
        self._tiered = parameters.message_store_backend == "tiered"
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self.runtime = Runtime(self._loop, observer)
        self._hosting: Hosting | None = None
        self.tcp: TcpServer | None = None
        self.archive: SqliteArchive | None = None
        """Open while machines are hosted over a tiered store; the archiver beside it."""
        self._parts = AsyncExitStack()

    async def start_parts(self, valkey: PrivateValkey, store: RedisStore) -> None:
        """Open logs and registry; refuse shared numbers that differ from those the data was made with.

        Takes over ``valkey`` and ``store``: ``close`` ends them, also after a refusal. Raises SharedNumbersDiffer,
        DataDirectoryDamaged.
        """
        parameters = self._parameters
        self.valkey = valkey
        self._parts.push_async_callback(self._stop_valkey)
        self._store = store
        self._parts.push_async_callback(store.close)
        self.registry = SqliteRegistry(self._directory.registry_database, self._loop)
        self._parts.push_async_callback(self.registry.close)
        self.registry.fix_shared(
            {
                "shard_count": str(parameters.shard_count),
                "outbox_partition_count": str(parameters.outbox_partition_count),
                "message_store_backend": parameters.message_store_backend,
                "hot_window_ms": str(parameters.hot_window_ms),
                "default_retention_ms": str(parameters.default_retention_ms),
                "shared_digest": parameters.shared_digest().hex(),
            }
        )
        self.log = SqliteLog(
            self._directory.log_database,
            self._loop,
            partitions={
                Topic.OUTBOX: parameters.outbox_partition_count,
                Topic.DISPATCH: parameters.shard_count,
                Topic.USER_STATE: parameters.shard_count,
            },
        )
        self._parts.push_async_callback(self.log.close)
        self._parts.callback(self.runtime.stop)
        self._observer.sample(self._queue_lengths)

    def start_auditor(self, owner: str = "audit") -> None:
        """The auditor alone: what `qim audit` needs beside a stopped server."""
        secret = self._directory.secret() if self._directory.secret_file.exists() else b""
        deployment = Deployment(
            parameters=self._parameters,
            retention=self._retention,
            secrets=(secret,),
            instance=INSTANCE_NUMBER,
        )
        self._ports = Ports(
            message=self._store, mailbox=self._store, log=self.log, registry=self.registry
        )
        self._hosting = Hosting(
            self._loop,
            self.runtime,
            self._ports,
            deployment,
            owner=owner,
            address=ADDRESS,
            reporting=Reporting(log=self._observer.line),
        )
        self._hosting.host_auditor()
        if self._tiered:
            self._open_archive()

    def start_machines(self, owner: str) -> None:
        """Host every machine and let each begin."""
        hosting = self._hosting
        assert hosting is not None, "the auditor is started first"
        reporting = Reporting(
            log=SILENT.log, count=self._observer.count, observe=self._observer.observe
        )
        self.tcp = TcpServer(self._socket_event, wall_ms, reporting=reporting)
        self._parts.callback(self.tcp.abort_all)
        roles = [role for role in MACHINES if self._tiered or role is not ServiceRole.ARCHIVER]
        hosting.host(roles, owner=owner, own=socket_routes(self.tcp))
        self.session: SessionProjection = hosting.machines[ServiceRole.SESSION]
        hosting.start()
        self._start_retention()

    def _socket_event(self, event: SocketEvent) -> None:
        assert self._hosting is not None
        self._hosting.hosts[ServiceRole.GATEWAY].post(event)

    def _open_archive(self) -> None:
        self.archive = SqliteArchive(self._directory.archive_database, self._loop)
        self._parts.push_async_callback(self.archive.close)
        self._ports.archive = self.archive

    @property
    def mender(self) -> Mender:
        """The operator's procedures over these parts; beside a stopped server they find every lease free."""
        return Mender(self._ports, self._parameters, tiered=self._tiered)

    def not_serving(self) -> str:
        """What is not open yet, as words; empty when everything serves."""
        assert self._hosting is not None
        return self._hosting.not_serving()

    def store_was_reset(self, reset: StoreReset) -> None:
        """Another incarnation was seen at the connection; before any machine is there it concerns nobody."""
        if self._hosting is not None:
            self._hosting.store_was_reset(reset)

    async def drain(self, seconds_max: float) -> str:
        """What did not come to rest in time, as words; empty when everything did."""
        assert self.tcp is not None and self._hosting is not None
        self.tcp.stop_accepting()
        return await self._hosting.drain(seconds_max)

    async def close(self) -> None:
        """Stop machines, then logs and registry, then the store: whatever was started, in reverse."""
        await self._parts.aclose()

    async def _stop_valkey(self) -> None:
        await self._loop.run_in_executor(None, self.valkey.stop)

    async def audit(self) -> AuditReport:
        """Run the orphan audit (pipeline.md §8)."""
        assert self._hosting is not None
        return await self._hosting.audit()

    def _start_retention(self) -> None:
        """The dispatch log alone: the outbox is what a lost store is rebuilt from (docs/decisions/0004)."""
        retention_ms = self._parameters.dispatch_recovery_window_ms
        if retention_ms is None:
            return
        retention = LogRetention(
            self.log,
            self._loop,
            topic=Topic.DISPATCH,
            retention_ms=retention_ms,
            wall_ms=wall_ms,
            needed_from=self._dispatch_needed_from,
            count=lambda name, value: self._observer.count(name, value, Topic.DISPATCH.value),
        )
        self._parts.callback(retention.stop)
        retention.start()

    def _dispatch_needed_from(self, shard: int, answer: Callable[[int | None], None]) -> None:
        """Behind trim: entries above it take their bodies from their dispatches; and not above what lists contain.

        min W is never below trim, but a session shard that stopped may stand anywhere, and its log must not go.
        """
        projected = self.session.projected_below(shard)
        if projected is None:
            answer(None)
            return

        def read(reply: Any) -> None:
            known = isinstance(reply, ShardStateRead) and reply.base >= 0
            answer(min(behind_trim(reply.trim), projected) if known else None)

        self._store.submit(ReadShardState(op=0, shard=shard), read)

    def _queue_lengths(self) -> Iterable[tuple[str, str, float]]:
        yield "log_jobs_waiting", "", self.log.waiting
        yield "log_jobs_waiting_max", "", JOBS_MAX
        yield "log_commits", "", self.log.commits
        yield "log_busy_seconds", "", self.log.busy_us / 1_000_000
        yield "registry_jobs_waiting", "", self.registry.waiting
        yield "registry_jobs_waiting_max", "", JOBS_MAX
        yield from self._store.gauges()
        if self.archive is not None:
            yield "archive_jobs_waiting", "", self.archive.waiting
            yield "archive_jobs_waiting_max", "", JOBS_MAX
        if self.tcp is not None:
            yield from self.tcp.gauges()


def behind_trim(trim: int) -> int:
    """The dispatch offset behind a trim watermark; 0 where nothing was trimmed under the present shard_epoch."""
    return split_mailbox_seq(trim + 1)[1] if trim else 0
