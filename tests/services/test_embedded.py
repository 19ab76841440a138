"""The embedded assembly over real parts, in this process: it comes to serve, is audited, drains, and leaves nothing."""

import asyncio
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from qim.adapters.embedded.data_directory import DataDirectory, DataDirectoryDamaged
from qim.adapters.embedded.sqlite_registry import SharedNumbersDiffer, shared_numbers
from qim.adapters.embedded.stale_server import command_line, read_record
from qim.adapters.redis.store import RedisStore
from qim.adapters.start_refused import StartRefused
from qim.core.audit import AuditReport, Verdict
from qim.core.contract.sequences import before_first, mailbox_seq
from qim.core.ports.completion import StoreReset, StoreRole
from qim.core.ports.store_mailbox import ShardStateRead
from qim.core.session import SessionProjection
from qim.services import up
from qim.services.config import UpConfig
from qim.services.embedded import EmbeddedServer, behind_trim
from qim.services.observation import LogSink, ProcessObserver
from qim.services.up import UpProcess, audit_stopped, open_store


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    with DataDirectory(tmp_path / "data") as held:
        held.secret()
        yield held


def config(directory: DataDirectory, **more: Any) -> UpConfig:
    own: dict[str, Any] = {"tcp": ("127.0.0.1", 0), "metrics": ("127.0.0.1", 0)}
    return UpConfig(data=directory.root, **own | more)


def store_is_gone(directory: DataDirectory) -> bool:
    """No store process of this directory runs."""
    record = read_record(directory.store)
    return record is None or str(directory.store) not in command_line(record.pid)


@asynccontextmanager
async def assembled(
    directory: DataDirectory, **more: Any
) -> AsyncIterator[tuple[EmbeddedServer, ProcessObserver]]:
    """Parts and auditor, closed at the end."""
    told = config(directory, **more)
    log = os.open(directory.root / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sink = LogSink(asyncio.get_running_loop(), log, as_json=True)
    observer = ProcessObserver(sink, lambda *_: None, stages=True)
    server = EmbeddedServer(directory, told.parameters(), observer)
    try:
        await server.start_parts(*await open_store(directory, "everysec", server.store_was_reset))
        server.start_auditor()
        yield server, observer
    finally:
        await server.close()
        sink.close()
        os.close(log)


async def serving(server: EmbeddedServer) -> None:
    while server.not_serving():  # noqa: ASYNC110 - as `qim up` looks
        await asyncio.sleep(0.005)


def test_it_serves_is_clean_and_drains(directory: DataDirectory) -> None:
    async def main() -> AuditReport:
        async with assembled(directory) as (server, observer):
            server.start_machines("test")
            assert server.not_serving() == (
                "0 of 1 coverages, 0 of 2 writer shards, 0 of 2 fanout partitions, 0 of 4 mailbox shards, "
                "0 of 4 session shards, 0 of 2 archiver partitions"
            )
            await serving(server)
            report = await server.audit()
            assert observer.healthy, observer.violations
            assert await server.drain(30) == ""
            return report

    report = asyncio.run(main())
    assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())
    assert store_is_gone(directory)
    assert shared_numbers(directory.registry_database)["shard_count"] == "4"


def test_a_reset_before_any_machine_is_there_concerns_nobody(directory: DataDirectory) -> None:
    async def main() -> None:
        async with assembled(directory) as (server, _):
            server.store_was_reset(StoreReset(op=None, store=StoreRole.MESSAGE))
            assert len(server.runtime.hosted["auditor"].inbox) == 2, "Started, and that"

    asyncio.run(main())


def test_other_shared_numbers_are_refused_and_nothing_is_left(directory: DataDirectory) -> None:
    async def first() -> None:
        async with assembled(directory):
            pass

    async def second() -> None:
        async with assembled(directory, shard_count=8):
            raise AssertionError("started")

    asyncio.run(first())
    with pytest.raises(SharedNumbersDiffer, match="shard_count"):
        asyncio.run(second())
    assert store_is_gone(directory)


def test_a_look_at_the_store_that_breaks_ends_the_server(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it nobody would start a store again that ended by itself."""

    def broken(server: EmbeddedServer) -> str:
        raise AssertionError("our own bug")

    async def main() -> int:
        process = UpProcess(config(directory), directory)
        running = asyncio.create_task(process.run())
        async with asyncio.timeout(60):
            while not process._health.ready:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        monkeypatch.setattr(EmbeddedServer, "not_serving", broken)
        return await running

    assert asyncio.run(main()) == 1
    assert store_is_gone(directory)


@pytest.mark.parametrize("name", ["log.sqlite", "registry.sqlite"])
def test_a_damaged_database_is_refused_by_name(directory: DataDirectory, name: str) -> None:
    (directory.root / name).write_bytes(b"this is no database" * 100)

    async def main() -> None:
        async with assembled(directory):
            raise AssertionError("started")

    with pytest.raises(DataDirectoryDamaged, match=name):
        asyncio.run(main())
    assert store_is_gone(directory)


@pytest.mark.parametrize("name", ["log.sqlite", "registry.sqlite"])
def test_a_database_with_a_damaged_page_is_refused_by_name(
    directory: DataDirectory, name: str
) -> None:
    """Its first page is whole, so that it opens: what is read at the start is not."""

    async def started() -> None:
        async with assembled(directory) as (server, _):
            server.start_machines("test")
            await serving(server)

    asyncio.run(started())
    path = directory.root / name
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    content = path.read_bytes()
    path.write_bytes(content[:page] + b"\xa5" * (len(content) - page))
    with pytest.raises(DataDirectoryDamaged, match=f"{name}: database disk image is malformed"):
        asyncio.run(started())
    assert store_is_gone(directory)


def test_a_start_that_fails_late_leaves_nothing(directory: DataDirectory) -> None:
    """The operator's port is taken: everything that was started before it ends again."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = config(directory, metrics=taken.getsockname(), log_path=directory.root / "log")

        async def main() -> int:
            return await UpProcess(busy, directory).run()

        with pytest.raises(StartRefused, match="address_taken"):
            asyncio.run(main())
    assert store_is_gone(directory)
    assert not (directory.root / up.SERVER_FILE).exists()


def test_a_stopped_server_is_audited_from_its_files(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "data") as directory:
        directory.secret()

        async def main() -> None:
            async with assembled(directory) as (server, _):
                server.start_machines("test")
                await serving(server)
                assert await server.drain(30) == ""

        asyncio.run(main())
    report = audit_stopped(tmp_path / "data")
    assert (report.verdict, report.orphans) == (Verdict.CLEAN, ())
    assert [one.records for one in report.covered] == [0, 0], "barriers alone"
    assert store_is_gone(directory)


@pytest.mark.parametrize("content", [b"", b"no database" * 400])
def test_files_of_a_start_that_never_came_far_are_refused_by_name(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "registry.sqlite").write_bytes(content)
    with pytest.raises(DataDirectoryDamaged, match=r"registry\.sqlite"):
        audit_stopped(tmp_path / "data")


# ------------------------------------------------------------ retention


def test_dispatches_are_needed_from_behind_trim_on() -> None:
    assert behind_trim(0) == 0, "nothing was trimmed yet"
    assert behind_trim(mailbox_seq(1, 41)) == 42
    assert behind_trim(before_first(1, 0)) == 0
    assert behind_trim(before_first(3, 0)) == 0, "a new shard_epoch begins with a log of its own"


def test_retention_keeps_what_a_mailbox_may_still_show(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However old a dispatch is: only what lies at or below trim may go, and nothing was trimmed here."""
    asked: list[int] = []
    real = EmbeddedServer._dispatch_needed_from

    def needed(self: EmbeddedServer, shard: int, answer: Callable[[int | None], None]) -> None:
        def heard(offset: int | None) -> None:
            asked.append(shard)
            assert offset in (None, 0)
            answer(offset)

        real(self, shard, heard)

    monkeypatch.setattr(EmbeddedServer, "_dispatch_needed_from", needed)

    async def main() -> None:
        async with assembled(directory) as (server, _):
            server.start_machines("test")
            await serving(server)
            while len(asked) < 4:  # noqa: ASYNC110 - the first round over four shards
                await asyncio.sleep(0.005)

    asyncio.run(main())
    assert asked[:4] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("projected", "needed"), [(None, None), (7, 7), (42, 42), (99, 42)], ids=str
)
def test_retention_waits_for_the_lists_too(
    directory: DataDirectory, projected: int | None, needed: int | None
) -> None:
    """A session shard that stopped may stand below its mailbox's trim: its log must not go."""
    told: list[int | None] = []

    def submit(request: Any, read: Callable[[Any], None]) -> None:
        trim = mailbox_seq(1, 41)
        read(ShardStateRead(op=0, incarnation=b"i", base=trim, min_watermark=trim, trim=trim))

    async def main() -> None:
        async with assembled(directory) as (server, _):
            server.session = cast(
                SessionProjection, SimpleNamespace(projected_below=lambda shard: projected)
            )
            real, server._store = server._store, cast(RedisStore, SimpleNamespace(submit=submit))
            server._dispatch_needed_from(0, told.append)
            server._store = real

    asyncio.run(main())
    assert told == [needed]


def test_an_operator_may_keep_dispatches_for_ever(directory: DataDirectory) -> None:
    async def main() -> None:
        async with assembled(directory) as (server, _):
            server._parameters = replace(server._parameters, dispatch_recovery_window_ms=None)
            server.start_machines("test")
            await serving(server)

    asyncio.run(main())
