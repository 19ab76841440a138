"""An embedded server in this process, opened again and again over one data directory; what befalls its logs meanwhile."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from qim.adapters.embedded.data_directory import DataDirectory
from qim.core.audit import AuditReport, Verdict
from qim.core.contract.frames import SendAck
from qim.core.ports.log import Topic
from qim.services.config import UpConfig
from qim.services.embedded import EmbeddedServer
from qim.services.observation import LogSink, ProcessObserver
from qim.services.up import open_store
from tests.integration.raw_client import RawClient, Target, patient, target_of

ALICE, BOB = 41, 42


class Running:
    """A server that serves, with its observer."""

    def __init__(self, server: EmbeddedServer, observer: ProcessObserver, target: Target) -> None:
        self.server = server
        self.observer = observer
        self.target = target

    async def until(self, holds: Callable[[], bool]) -> None:
        async def look() -> None:
            while not holds():  # noqa: ASYNC110 - several machines have to come to rest
                await asyncio.sleep(0.005)

        await patient(look())

    async def audited(self) -> AuditReport:
        """An audit over everything, once every consumer is through."""

        async def whole() -> AuditReport:
            while True:
                report = await self.server.audit()
                if report.verdict is not Verdict.INCOMPLETE and not report.in_flight:
                    return report
                await asyncio.sleep(0.05)

        return await patient(whole())

    async def say(self, *bodies: bytes, without: str = "") -> list[SendAck]:
        """ALICE tells BOB; ``without``: a machine that stands still from her login on."""
        sender = await RawClient.log_in(self.target, ALICE)
        if without:
            self.server.runtime.hosted[without].stop()
        acks = [await sender.send(body, peer_user_id=BOB) for body in bodies]
        await sender.close()
        return acks

    async def heard(self, last: bytes, device: bytes = b"fresh") -> list[bytes]:
        """What a new device of BOB pulls, up to the message ``last``."""
        client = await RawClient.connect(self.target.tcp)
        await client.authenticate(self.target, BOB, device=device)
        entries = await client.pull_until(last)
        await client.close()
        return [entry.body or b"" for entry in entries]


class Ground:
    """One data directory, opened again and again."""

    def __init__(self, directory: DataDirectory) -> None:
        self.directory = directory

    @asynccontextmanager
    async def parts(self) -> AsyncIterator[tuple[EmbeddedServer, ProcessObserver]]:
        """Beside a stopped server."""
        config = UpConfig(data=self.directory.root)
        log = os.open(self.directory.root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sink = LogSink(asyncio.get_running_loop(), log, as_json=True)
        observer = ProcessObserver(sink, lambda *death: pytest.fail(f"died: {death}"), stages=True)
        server = EmbeddedServer(self.directory, config.parameters(), observer)
        try:
            opened = await open_store(self.directory, "everysec", server.store_was_reset)
            await server.start_parts(*opened)
            server.start_auditor()
            yield server, observer
        finally:
            await server.close()
            sink.close()
            os.close(log)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Running]:
        """Until the block ends; no drain, as in a crash."""
        async with self.parts() as (server, observer):
            server.start_machines("test")
            assert server.tcp is not None
            tcp = await server.tcp.listen("127.0.0.1", 0)
            running = Running(server, observer, target_of(tcp, self.directory.root))
            await running.until(lambda: not server.not_serving())
            yield running
            server.tcp.stop_accepting()

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[Running]:
        """Started, and stopped by a violation before everything serves."""
        async with self.parts() as (server, observer):
            server.start_machines("test")
            running = Running(server, observer, Target("", b""))
            await running.until(lambda: not observer.healthy)
            yield running

    def log(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """What befalls the log files while nobody looks."""
        connection = sqlite3.connect(self.directory.root / "log.sqlite")
        with connection:
            for statement, values in statements:
                connection.execute(statement, values)
        connection.close()

    def forget(self, topic: Topic) -> None:
        """It is made anew at the next start: another topic id, from offset 0."""
        self.log(
            ("DELETE FROM record WHERE topic = ?", (topic.value,)),
            ("DELETE FROM span WHERE topic = ?", (topic.value,)),
            ("DELETE FROM topic WHERE name = ?", (topic.value,)),
        )


def over(root: Path) -> Callable[[Callable[[Ground], Coroutine[Any, Any, None]]], None]:
    """Carries a case out over this data directory, which it holds meanwhile."""

    def go(case: Callable[[Ground], Coroutine[Any, Any, None]]) -> None:
        with DataDirectory(root) as directory:
            directory.secret()
            asyncio.run(case(Ground(directory)))

    return go
