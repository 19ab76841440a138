"""`qim up`: a whole Q-IM in one process; starts, says it is ready in one JSON line, drains on SIGTERM (issue: embedded).

Exit status: 0 drained, 1 a machine died or the drain did not end in time, 2 refused at start (the message says what to
do). A killed server leaves nothing behind that blocks or corrupts the next start.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
import uvloop

from qim.adapters import breakage
from qim.adapters.embedded.data_directory import DataDirectory, DataDirectoryDamaged
from qim.adapters.embedded.private_valkey import Fsync, PrivateValkey, PrivateValkeyFailed
from qim.adapters.embedded.server_binary import NoServerBinary
from qim.adapters.embedded.stale_server import StaleServerRemains
from qim.adapters.http.operator_endpoint import OperatorEndpoint
from qim.adapters.redis.store import RedisStore
from qim.core.audit import AuditReport
from qim.core.ports.completion import StoreReset
from qim.services.audit_report import report_as_json
from qim.services.config import Backend, UpConfig
from qim.services.embedded import EmbeddedServer
from qim.services.health import Health
from qim.services.hosting import AUDIT_SECONDS_MAX
from qim.services.mending import MendOrder, mended
from qim.services.observation import LogSink, ProcessObserver
from qim.services.ready_line import say_ready
from qim.services.refused_line import refused_address
from qim.services.runtime import die_of_what_breaks

SERVER_FILE: Final = "server.json"
STDERR: Final = 2
STORE_LOOK_SECONDS: Final = 0.25
THREAD_SWITCH_SECONDS: Final = 0.0005
"""A log thread back from the disk waits this long for a busy event loop, once a statement, while acks wait for it."""


T = TypeVar("T")


class NotReady(Exception):
    """The machines did not come to serve in time; the log says which waits for what."""


class UpProcess:
    """One run of `qim up` over a directory that is already held."""

    def __init__(self, config: UpConfig, directory: DataDirectory) -> None:
        self._config = config
        self._directory = directory
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        descriptor = STDERR
        if config.log_path is not None:
            descriptor = os.open(config.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._sink = LogSink(self._loop, descriptor, as_json=config.log_json)
        self._observer = ProcessObserver(self._sink, self._on_death, stages=config.stage_logs)
        self._health = Health(self._observer)

    async def run(self) -> int:
        """From start to exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        die_of_what_breaks(self._loop, self._observer)
        async with contextlib.AsyncExitStack() as ending:
            ending.callback(self._sink.close)
            server = EmbeddedServer(
                self._directory,
                self._config.parameters(),
                self._observer,
                self._config.retention(),
            )
            ending.push_async_callback(server.close)
            await self._start(server)
            endpoint = self._operator_endpoint(server)
            ending.callback(endpoint.stop)
            self._observer.sample(endpoint.gauges, self._loop)
            for told in (self._directory.root / SERVER_FILE, self._directory.operator_key_file):
                ending.callback(told.unlink, missing_ok=True)
            calm = await self._serve(server, endpoint.address)
        return 0 if calm else 1

    async def _serve(self, server: EmbeddedServer, metrics: str) -> bool:
        """Until told to stop, or a machine died; True when everything was drained."""
        assert server.tcp is not None
        with refused_address("--tcp", self._config.tcp):
            bound = await server.tcp.listen(*self._config.tcp)
        await self._until_serving(server)
        self._say_ready(bound, metrics)
        watching = breakage.begin(self._loop, self._watch(server), "the look at the store")
        try:
            await self._stop.wait()
            self._health.ready, self._health.draining = False, True
            left = await self._drained(server)
        finally:
            watching.cancel()
        if left:
            self._observer.line("error", "not drained", {"in_flight": left})
        else:
            self._observer.line("info", "drained", {})
        return not left

    async def _drained(self, server: EmbeddedServer) -> str:
        """What could not be finished, as words; empty when everything was."""
        if self._health.died is not None:
            return f"a machine died: {self._health.died!r}"
        return await server.drain(self._config.drain_seconds_max)

    async def _start(self, server: EmbeddedServer) -> None:
        config = self._config
        valkey, store = await open_store(self._directory, config.fsync, server.store_was_reset)
        await server.start_parts(valkey, store)
        server.start_auditor()
        server.start_machines(owner=f"up-{os.getpid()}-{secrets.token_hex(4)}")
        self._sink.line(
            "info", "up", "started", {"data": self._directory.root, "store": valkey.binary.version}
        )

    async def _until_serving(self, server: EmbeddedServer) -> None:
        """Every writer shard must have OPENed, every consumer too: before that a send would only be told to wait."""
        deadline = self._loop.time() + self._config.ready_seconds_max
        while missing := server.not_serving():
            if broken := self._observer.violations:
                # Waiting mends nothing here, and starting again would find the same.
                told = "; ".join(f"{check}: {detail}" for check, detail in broken[:3])
                raise NotReady(f"the data is left as it is and not served: {told}")
            if self._health.died is not None or self._loop.time() > deadline:
                raise NotReady(f"not serving after {self._config.ready_seconds_max:g} s: {missing}")
            await asyncio.sleep(0.005)

    async def _watch(self, server: EmbeddedServer) -> None:
        """A private store that ended by itself is started again, as another incarnation; while draining too, as what is
        in flight can't be finished without one."""
        while self._health.died is None:
            # Looked at here, on the loop: /readyz is asked on another thread and must not walk a machine's state.
            self._health.missing = server.not_serving()
            if server.valkey.exit_code() is not None:
                self._sink.line("error", "up", "store ended", {"status": server.valkey.exit_code()})
                try:
                    server.valkey = PrivateValkey.start(self._directory, fsync=self._config.fsync)
                except (OSError, NoServerBinary, PrivateValkeyFailed, StaleServerRemains) as error:
                    self._observer.died("store", error)
            await asyncio.sleep(STORE_LOOK_SECONDS)

    def _say_ready(self, tcp: str, metrics: str) -> None:
        ready = {"ready": True, "tcp": tcp, "metrics": metrics, "pid": os.getpid()}
        path = self._directory.root / SERVER_FILE
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(ready) + "\n")
        unfinished.rename(path)
        self._health.ready = True
        say_ready(ready)

    def _operator_endpoint(self, server: EmbeddedServer) -> OperatorEndpoint:
        def audit(_: bytes) -> dict[str, object]:
            asked = asyncio.run_coroutine_threadsafe(server.audit(), self._loop)
            return report_as_json(asked.result(AUDIT_SECONDS_MAX + 5))

        def mend(body: bytes) -> dict[str, object]:
            order = msgspec.json.decode(body, type=MendOrder)
            asked = asyncio.run_coroutine_threadsafe(
                mended(order, server.mender, server.audit), self._loop
            )
            return asked.result(AUDIT_SECONDS_MAX + 5)

        with refused_address("--metrics", self._config.metrics):
            return OperatorEndpoint(
                *self._config.metrics,
                self._observer,
                health=self._health.healthz,
                ready=self._health.readyz,
                live=self._health.livez,
                orders={"/audit": audit, "/mend": mend},
                key=self._directory.new_operator_key(),
                on_refused=self._order_refused,
            )

    def _order_refused(self, told: dict[str, object]) -> None:
        """Called on the endpoint's threads."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._sink.line, "warning", "up", "order refused", told)

    def _on_death(self, machine: str, error: BaseException) -> None:
        self._health.died = error
        self._stop.set()


async def open_store(
    directory: DataDirectory, fsync: Fsync, on_reset: Callable[[StoreReset], None]
) -> tuple[PrivateValkey, RedisStore]:
    """The private Valkey, started and checked, and the adapter that speaks to it."""
    valkey = PrivateValkey.start(directory, fsync=fsync)
    try:
        store = await RedisStore.open(valkey.socket_path, on_reset=on_reset)
    except BaseException:
        valkey.stop()
        raise
    return valkey, store


def run_up(config: UpConfig) -> int:
    """Hold the directory and run; refusals go to the caller as their own types."""
    with DataDirectory(config.data) as directory:
        directory.secret()

        async def main() -> int:
            return await UpProcess(config, directory).run()

        sys.setswitchinterval(THREAD_SWITCH_SECONDS)
        return uvloop.run(main())


def audit_stopped(data: Path) -> AuditReport:
    """The orphan audit of a stopped server: its store and logs are opened, no machine is. Raises DataDirectoryHeld."""
    return beside_stopped(data, lambda server: server.audit())


def mend_stopped(data: Path, order: MendOrder) -> dict[str, Any]:
    """What an operator mends beside a stopped server. Raises DataDirectoryHeld."""
    return beside_stopped(data, lambda server: mended(order, server.mender, server.audit))


def beside_stopped(data: Path, work: Callable[[EmbeddedServer], Awaitable[T]]) -> T:
    """``work`` over the store and the logs of a stopped server. Raises DataDirectoryHeld, and what a start raises."""

    async def main(directory: DataDirectory) -> T:
        stored = stored_config(directory)
        sink = LogSink(asyncio.get_running_loop(), STDERR, as_json=False)
        observer = ProcessObserver(sink, lambda *_: None, stages=False)
        server = EmbeddedServer(directory, stored.parameters(), observer)
        try:
            await server.start_parts(
                *await open_store(directory, stored.fsync, server.store_was_reset)
            )
            server.start_auditor()
            return await work(server)
        finally:
            await server.close()
            sink.close()

    with DataDirectory(data) as directory:
        return uvloop.run(main(directory))


def stored_config(directory: DataDirectory) -> UpConfig:
    """The shared numbers as the first start wrote them. Raises DataDirectoryDamaged where it did not get so far."""
    from qim.adapters.embedded.sqlite_registry import shared_numbers

    numbers = shared_numbers(directory.registry_database)
    if not numbers:
        raise DataDirectoryDamaged(
            f"{directory.registry_database}: no server has written its numbers there yet"
        )
    return UpConfig(
        data=directory.root,
        shard_count=int(numbers["shard_count"]),
        outbox_partition_count=int(numbers["outbox_partition_count"]),
        message_store_backend=cast(Backend, numbers["message_store_backend"]),
        hot_window_ms=int(numbers["hot_window_ms"]),
        default_retention_ms=int(numbers["default_retention_ms"]),
    )
