"""All machines in one process over a private Valkey, a SQLite log and a SQLite registry: the assembly, nothing else.

Growing out of one machine means other adapters under the same machines, never other code (architecture.md).
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.log_retention import LogRetention
from qim.adapters.embedded.private_valkey import PrivateValkey
from qim.adapters.embedded.sqlite_archive import SqliteArchive
from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.adapters.embedded.sqlite_registry import SqliteRegistry
from qim.adapters.redis.store import RedisStore
from qim.adapters.tcp.server import TcpServer
from qim.core.archiver import ArchiverConfig, HistoryArchiver
from qim.core.audit import AuditConfig, AuditFinished, Auditor, AuditReport, AuditRequested
from qim.core.contract.params import Parameters
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.fanout import FanoutConfig, FanoutCoordinator
from qim.core.gateway import ConnectionNode, GatewayConfig
from qim.core.lease import LeaseConfig, LeaseKeeper
from qim.core.machine import ChoiceKey
from qim.core.mailbox import MailboxConfig, MailboxNode
from qim.core.ports.completion import StoreReset
from qim.core.ports.local import DrainRequested, Started
from qim.core.ports.log import Topic
from qim.core.ports.registry import Resource, Role
from qim.core.ports.sockets import CloseSocket, PauseReading, ResumeReading, Write
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.retention import RetentionPolicy
from qim.core.session import SessionConfig, SessionProjection
from qim.core.writer import Writer, WriterConfig
from qim.services.observation import ProcessObserver
from qim.services.routing import (
    archive_routes,
    lease_bus,
    leased_store_routes,
    local_network,
    log_routes,
    registry_routes,
)
from qim.services.runtime import Hosted, Route, Runtime, wall_ms

ADDRESS: Final = "local"
STORE_STATE: Final = (
    "writer",
    "fanout",
    "mailbox",
    "session",
    "archiver",
    "gateway",
    "auditor",
)
"""Machines that must hear of another incarnation of the store."""
INSTANCE_NUMBER: Final = 1
AUDIT_SECONDS_MAX: Final = 300.0


def random_choice(site: str, key: ChoiceKey) -> int:
    """The only entropy of production machines."""
    return secrets.randbits(64)


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
        self._audits: dict[int, asyncio.Future[AuditReport]] = {}
        self._audit_tickets = 0
        self.tcp: TcpServer | None = None
        self.archive: SqliteArchive | None = None
        """Open while machines are hosted over a tiered store; the archiver beside it."""
        self.archiver: HistoryArchiver | None = None
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

    def start_auditor(self) -> None:
        """The auditor alone: what `qim audit` needs beside a stopped server."""
        parameters = self._parameters
        config = AuditConfig(
            shard_count=parameters.shard_count,
            outbox_partition_count=parameters.outbox_partition_count,
        )
        routes: dict[type, Route] = {AuditFinished: self._audited}
        keeper = LeaseKeeper(LeaseConfig(owner="audit", address=ADDRESS), choose=random_choice)
        routes.update(leased_store_routes(keeper, self._store, self._store))
        routes.update(log_routes(self.log, keeper))
        routes.update(registry_routes(self.registry))
        auditor = Auditor(config, choose=random_choice)
        self._auditor = self.runtime.add("auditor", auditor, routes)
        self._auditor.post(Started(address=ADDRESS, wall=wall_ms()))

    def start_machines(self, owner: str) -> None:
        """Host every machine and let each begin."""
        parameters, secret = self._parameters, self._directory.secret()
        partitions, shards = parameters.outbox_partition_count, parameters.shard_count
        self.keeper = LeaseKeeper(
            LeaseConfig(
                owner=owner,
                address=ADDRESS,
                roles=(
                    (Role.WRITER, partitions),
                    (Role.FANOUT, partitions),
                    (Role.MAILBOX, shards),
                    (Role.SESSION, shards),
                    *(((Role.ARCHIVER, partitions),) if self._tiered else ()),
                ),
                pinned=(Resource(role=Role.INSTANCE, number=INSTANCE_NUMBER),),
            ),
            choose=random_choice,
        )
        self.writer = Writer(
            WriterConfig(
                instance=INSTANCE_NUMBER,
                outbox_partition_count=partitions,
                tiered=self._tiered,
                hot_window_ms=parameters.hot_window_ms,
                recall_window_ms=parameters.recall_window_ms,
                retention=self._retention,
            ),
            choose=random_choice,
        )
        self.fanout = FanoutCoordinator(FanoutConfig(shard_count=shards), choose=random_choice)
        self.mailbox = MailboxNode(self._mailbox_config(secret), choose=random_choice)
        self.session = SessionProjection(self._session_config(), choose=random_choice)
        gateway = ConnectionNode(
            GatewayConfig(token_secrets=(secret,), parameters=parameters), choose=random_choice
        )
        if self._tiered:
            self._open_archive()
        self.tcp = TcpServer(lambda event: self.gateway.post(event), wall_ms)
        self._parts.callback(self.tcp.abort_all)
        shared = self._shared_routes()
        sockets: dict[type, Route] = {
            Write: self.tcp.write,
            CloseSocket: self.tcp.close,
            PauseReading: self.tcp.pause,
            ResumeReading: self.tcp.resume,
        }
        add = self.runtime.add
        self._keeper_host = add("lease", self.keeper, shared)
        self._writer_host = add("writer", self.writer, shared)
        self._fanout_host = add("fanout", self.fanout, shared)
        self._mailbox_host = add("mailbox", self.mailbox, shared)
        self._session_host = add("session", self.session, shared)
        if self.archiver is not None:
            self._archiver_host = add("archiver", self.archiver, shared)
        self.gateway = add("gateway", gateway, shared | sockets)
        for hosted in self._all():
            hosted.post(Started(address=ADDRESS, wall=wall_ms()))
        self._start_retention()

    def _open_archive(self) -> None:
        self.archive = SqliteArchive(self._directory.archive_database, self._loop)
        self._parts.push_async_callback(self.archive.close)
        config = ArchiverConfig(
            retention=self._retention, batch_rows_max=self._parameters.archiver_batch_max
        )
        self.archiver = HistoryArchiver(config, choose=random_choice)

    def not_serving(self) -> str:
        """What is not open yet, as words; empty when everything serves."""
        parameters = self._parameters
        wanted = {
            "writer shards": (self.writer.serving(), parameters.outbox_partition_count),
            "fanout partitions": (self.fanout.serving(), parameters.outbox_partition_count),
            "mailbox shards": (self.mailbox.serving(), parameters.shard_count),
            "session shards": (self.session.serving(), parameters.shard_count),
        }
        if self.archiver is not None:
            wanted["archiver partitions"] = (
                self.archiver.serving(),
                parameters.outbox_partition_count,
            )
        return ", ".join(
            f"{have} of {want} {what}" for what, (have, want) in wanted.items() if have < want
        )

    def store_was_reset(self, reset: StoreReset) -> None:
        """Another incarnation was seen at the connection: every machine with store state re-opens (pipeline.md §0)."""
        for name in STORE_STATE:
            if name in self.runtime.hosted:
                self.runtime.hosted[name].post(reset)

    async def drain(self, seconds_max: float) -> bool:
        """Gateways first, so that acks in flight still go out; True when everything came to rest in time."""
        assert self.tcp is not None
        self.tcp.stop_accepting()
        deadline = self._loop.time() + seconds_max
        calm = True
        for hosted in (
            self.gateway,
            self._session_host,
            self._writer_host,
            self._fanout_host,
            self._mailbox_host,
            *self._archivers(),
            self._keeper_host,
        ):
            hosted.post(DrainRequested())
            calm = await self._rest(hosted, deadline) and calm
        return calm

    async def close(self) -> None:
        """Stop machines, then logs and registry, then the store: whatever was started, in reverse."""
        await self._parts.aclose()

    async def _stop_valkey(self) -> None:
        await self._loop.run_in_executor(None, self.valkey.stop)

    async def audit(self) -> AuditReport:
        """Run the orphan audit (pipeline.md §8)."""
        self._audit_tickets += 1
        future: asyncio.Future[AuditReport] = self._loop.create_future()
        self._audits[self._audit_tickets] = future
        ticket = self._audit_tickets
        self._auditor.post(AuditRequested(ticket=ticket))
        try:
            return await asyncio.wait_for(future, AUDIT_SECONDS_MAX)
        finally:
            self._audits.pop(ticket, None)

    def _audited(self, effect: AuditFinished, _: Any) -> None:
        future = self._audits.get(effect.ticket)
        if future is not None and not future.done():
            future.set_result(effect.report)

    def _shared_routes(self) -> dict[type, Route]:
        routes = leased_store_routes(self.keeper, self._store, self._store)
        routes.update(log_routes(self.log, self.keeper))
        routes.update(registry_routes(self.registry))
        if self.archive is not None:
            routes.update(archive_routes(self.archive))
        roles: dict[Role, Callable[[], Hosted]] = {
            Role.WRITER: lambda: self._writer_host,
            Role.INSTANCE: lambda: self._writer_host,
            Role.FANOUT: lambda: self._fanout_host,
            Role.MAILBOX: lambda: self._mailbox_host,
            Role.SESSION: lambda: self._session_host,
            Role.ARCHIVER: lambda: self._archiver_host,
        }
        routes.update(lease_bus(lambda: self._keeper_host, roles))
        routes.update(
            local_network(
                ADDRESS,
                lambda: self._writer_host,
                lambda: self._mailbox_host,
                lambda: self.gateway,
                lambda: self._session_host,
            )
        )
        return routes

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

    def _mailbox_config(self, secret: bytes) -> MailboxConfig:
        parameters = self._parameters
        return MailboxConfig(
            shard_count=parameters.shard_count,
            outbox_partition_count=parameters.outbox_partition_count,
            secret=secret,
            archived=self._tiered,
            retention=self._retention,
        )

    def _session_config(self) -> SessionConfig:
        parameters = self._parameters
        return SessionConfig(
            shard_count=parameters.shard_count,
            outbox_partition_count=parameters.outbox_partition_count,
            page_default=parameters.page_default,
            page_max=parameters.page_max,
            page_bytes_max=parameters.batch_bytes_max,
            unread_window=parameters.unread_window_max,
        )

    def _all(self) -> Iterable[Hosted]:
        return (
            self._keeper_host,
            self._writer_host,
            self._fanout_host,
            self._mailbox_host,
            self._session_host,
            *self._archivers(),
            self.gateway,
        )

    def _archivers(self) -> tuple[Hosted, ...]:
        """The archiver's host where there is one."""
        return () if self.archiver is None else (self._archiver_host,)

    async def _rest(self, hosted: Hosted, deadline: float) -> bool:
        """Wait until the machine is idle; polled, since nothing else may be in a machine's way."""
        while not (hosted.machine.idle() and not hosted.inbox):
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def _queue_lengths(self) -> Iterable[tuple[str, str, float]]:
        yield "log_jobs_waiting", "", self.log.waiting
        yield "log_commits", "", self.log.commits
        yield "log_busy_seconds", "", self.log.busy_us / 1_000_000
        yield "registry_jobs_waiting", "", self.registry.waiting
        if self.archive is not None:
            yield "archive_jobs_waiting", "", self.archive.waiting
        yield "tcp_streams_open", "", self.tcp.open_streams if self.tcp else 0
        for name, hosted in list(self.runtime.hosted.items()):
            yield "inbox_events_waiting", name, len(hosted.inbox)


def behind_trim(trim: int) -> int:
    """The dispatch offset behind a trim watermark; 0 where nothing was trimmed under the present shard_epoch."""
    return split_mailbox_seq(trim + 1)[1] if trim else 0
