"""Every role as `qim serve` assembles it, but over one private Valkey, one SQLite log and one registry of this process.

What is real: the assemblies, their leases, and the messages between them, over loopback connections.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.private_valkey import PrivateValkey
from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.adapters.embedded.sqlite_registry import SqliteRegistry
from qim.adapters.redis.store import RedisStore
from qim.adapters.start_refused import StartRefused
from qim.core.ports.log import Topic
from qim.core.ports.registry import Acquire, Granted, Resource, Role
from qim.services.cluster.adapters import Opened, Told
from qim.services.cluster.process import ServeProcess
from qim.services.hosting import Ports
from qim.services.links import Link
from qim.services.roles import ServiceRole
from qim.services.settings import Settings

HERE = ("127.0.0.1", 0)
SETTINGS = Settings(
    redpanda_brokers=("127.0.0.1:1",),
    outbox_topic="qim.outbox",
    dispatch_topic="qim.dispatch",
    outbox_recovery_window_ms=86_400_000,
    dispatch_recovery_window_ms=86_400_000,
    outbox_partition_count=2,
    mailbox_shard_count=4,
    message_store_backend="redis",
    gateway_listen=HERE,
    gateway_push=HERE,
    writer_listen=HERE,
    mailbox_listen=HERE,
    session_listen=HERE,
    auditor_listen=HERE,
    metrics_listen=HERE,
    lease_ttl_ms=2_000,
    lease_renew_ms=300,
    lease_margin_ms=200,
)


class SharedRegistry:
    """SqliteRegistry for many processes' assemblies in one: shared numbers in memory, instance numbers by lease."""

    def __init__(self, registry: SqliteRegistry) -> None:
        self._registry = registry
        self.submit = registry.submit
        self.numbers: dict[str, str] = {}
        self.wall_ms: int | None = None
        """What its clock says; None: what everybody's does."""

    async def fix_shared(
        self, numbers: dict[str, str], *, commands: dict[str, str] | None = None
    ) -> None:
        for name, given in numbers.items():
            stored = self.numbers.setdefault(name, given)
            if stored != given:
                command = (commands or {})[name]
                raise StartRefused("shared", name, got=given, expected=stored, command=command)

    async def read_shared(self) -> dict[str, str]:
        return dict(self.numbers)

    async def replace_shared(self, numbers: dict[str, str]) -> None:
        self.numbers |= numbers

    async def check_clock(self, wall_ms: int, ahead_max_ms: int) -> int | None:
        ahead = wall_ms - (wall_ms if self.wall_ms is None else self.wall_ms)
        if ahead > ahead_max_ms:
            told = {"got": f"{ahead} ms ahead", "expected": f"at most {ahead_max_ms}"}
            raise StartRefused("clock_ahead", "our clock", **told, command="chronyc makestep")
        return None

    def watch(self, tell: Callable[[Any], None]) -> None:
        """Nothing is noticed here: announcements tell it later."""

    async def lease_instance_number(
        self, owner: str, address: str, ttl_ms: int, *, number: int | None = None
    ) -> tuple[int, int]:
        for one in range(16) if number is None else [number]:
            answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            resource = Resource(role=Role.INSTANCE, number=one)
            request = Acquire(op=1, resource=resource, owner=owner, address=address, ttl_ms=ttl_ms)
            self.submit(request, answered.set_result)
            answer = await answered
            if isinstance(answer, Granted):
                return one, answer.epoch
        raise StartRefused("instance", "numbers", got="none", expected="one", command="-")


class OneProcessCluster:
    """``start`` roles, ``stop`` them; the parts outlive them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stack = AsyncExitStack()
        self.running: dict[str, tuple[ServeProcess, asyncio.Task[int]]] = {}
        self.ready: dict[str, dict[str, Any]] = {}

    async def __aenter__(self) -> "OneProcessCluster":
        loop = asyncio.get_running_loop()
        self._directory = self._stack.enter_context(DataDirectory(self._root))
        self._valkey = PrivateValkey.start(self._directory, fsync="everysec")
        self._stack.callback(self.stop_store)
        sqlite = SqliteRegistry(self._directory.registry_database, loop)
        self._stack.push_async_callback(sqlite.close)
        self.registry = SharedRegistry(sqlite)
        partitions = {Topic.OUTBOX: 2, Topic.DISPATCH: 4, Topic.USER_STATE: 4}
        self._log = SqliteLog(self._directory.log_database, loop, partitions=partitions)
        self._stack.push_async_callback(self._log.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.running):
            await self.stop(name)
        await self._stack.aclose()

    def stop_store(self) -> None:
        """The server both stores are on; processes stay."""
        self._valkey.stop()

    def start_store(self) -> None:
        """Again, over the same data."""
        self._valkey = PrivateValkey.start(self._directory, fsync="everysec")

    def launch(
        self, role: ServiceRole, **changed: Any
    ) -> tuple[ServeProcess, asyncio.Task[int], asyncio.Future[str]]:
        """Begin: the process, its end, and its ready line to come."""
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        settings = replace(SETTINGS, **changed)
        process = ServeProcess(
            settings,
            role,
            open_ports=self._open,
            say=lambda ready: said.set_result(json.dumps(ready)),
        )
        return process, asyncio.create_task(process.run()), said

    async def start(self, role: ServiceRole, name: str = "", **changed: Any) -> dict[str, Any]:
        """Wait for its ready line. Raises what it refused."""
        process, task, said = self.launch(role, **changed)
        await asyncio.wait((task, said), return_when=asyncio.FIRST_COMPLETED, timeout=30)
        if task.done():
            task.result()
        told: dict[str, Any] = json.loads(said.result())
        self.running[name or role.value] = process, task
        self.ready[name or role.value] = told
        return told

    async def stop(self, name: str) -> int:
        """As SIGTERM does."""
        process, task = self.running.pop(name)
        process.stop()
        return await task

    async def _open(self, settings: Settings, role: ServiceRole, loop: Any, told: Told) -> Opened:
        store = await RedisStore.open(self._valkey.socket_path, on_reset=told.on_reset)
        opened = Opened()
        opened.closing(store.close)
        link = store.connection
        opened.links = [Link(name="the store", stands=lambda: link.connected)]
        opened.registry = self.registry
        opened.ports = Ports(message=store, mailbox=store, log=self._log, registry=self.registry)
        return opened
