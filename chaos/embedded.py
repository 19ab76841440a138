"""The system under test as one `qim up`: what chaos can do to it is to kill it and its private store."""

import asyncio
import contextlib
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

from chaos.reports import report_of
from chaos.scene import LogEnd
from chaos.stores import StoreReader
from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.stale_server import read_record
from qim.adapters.redis.address import StoreAddress
from qim.cli.arguments import UsageError
from qim.cli.data_files import NotRunning, order
from qim.core.audit import AuditReport
from qim.core.ports.completion import StoreRole
from qim.core.ports.log import StoredRecord, Topic
from tests.integration.up_process import UpProcess

AUDIT_SECONDS_MAX = 300.0


class EmbeddedDeployment:
    """``start`` and ``close``; the ports stay the same over restarts."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.data = folder / "data"
        self.process = UpProcess(self.data, "127.0.0.1:0", *options)

    def start(self) -> None:
        """Wait until it serves."""
        self.process.start()

    def kill(self) -> None:
        """SIGKILL; its store goes on until the next start ends it."""
        self.process.kill()

    def kill_store(self) -> None:
        """SIGKILL of the private store under the living server."""
        pid = self.process.process.pid if self.process.process else 0
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def close(self) -> None:
        """Drained where it can be."""
        self.process.close()

    @property
    def gateways(self) -> tuple[str, ...]:
        """host:port of its clients' listener."""
        return (self.process.tcp,)

    @property
    def secret(self) -> bytes:
        """Signs tokens."""
        return DataDirectory(self.data).secret()

    async def read_log(self, topic: Topic, partition: int) -> LogEnd:
        """From the database itself, beside the server that writes it."""
        return await asyncio.to_thread(self._read_log, topic, partition)

    async def ask_store(self, role: StoreRole, request: Any) -> Any:
        """One store plays both roles."""
        return await self._with_store(lambda store: store.ask(request))

    async def incarnation(self, role: StoreRole) -> bytes:
        """As the machines name it."""

        async def named(store: StoreReader) -> bytes:
            return store.incarnation

        found: bytes = await self._with_store(named)
        return found

    @property
    def tiered(self) -> bool:
        """History stays hot here."""
        return False

    async def ask_archive(self, request: Any) -> Any:
        """There is none."""
        raise AssertionError(request)

    async def audit(self) -> AuditReport:
        """By the running server."""
        return await asyncio.to_thread(self._audit)

    async def look(self) -> AuditReport | None:
        """By the server, where it runs."""
        try:
            return await asyncio.to_thread(self._audit)
        except (NotRunning, ConnectionError, TimeoutError, UsageError):
            return None

    async def _with_store(self, work: Any) -> Any:
        store = await StoreReader.open(StoreAddress(unix_path=self._socket()))
        try:
            return await work(store)
        finally:
            await store.close()

    def _socket(self) -> str:
        record = read_record(DataDirectory(self.data).store)
        assert record is not None, "the store is not up"
        return record.socket

    def _read_log(self, topic: Topic, partition: int) -> LogEnd:
        with contextlib.closing(
            sqlite3.connect(DataDirectory(self.data).log_database, timeout=30)
        ) as database:
            rows = database.execute(
                "SELECT position, time, key, value FROM record WHERE topic=? AND partition=? "
                "ORDER BY position",
                (topic.value, partition),
            ).fetchall()
        records = tuple(
            StoredRecord(offset=offset, append_time=at, key=key, value=value)
            for offset, at, key, value in rows
        )
        return LogEnd(start=records[0].offset if records else 0, records=records)

    def _audit(self) -> AuditReport:
        return report_of(order(self.data, "/audit", b"", AUDIT_SECONDS_MAX))
