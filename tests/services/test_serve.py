"""Roles as processes, assembled as `qim serve` does, in one process of tests: messages between them travel for real."""

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any, get_args

import pytest

from qim.adapters import breakage
from qim.adapters.start_refused import StartRefused
from qim.adapters.wall_clock import wall_ms
from qim.client import Client, SendStatus
from qim.core.archiver import ArchiverEffect
from qim.core.audit import AuditEffect
from qim.core.fanout import FanoutEffect
from qim.core.gateway import GatewayEffect
from qim.core.mailbox import MailboxEffect
from qim.core.ports.archive import ArchiveRequest
from qim.core.ports.log import LogRequest
from qim.core.ports.network import Send
from qim.core.ports.registry import Acquire, Resource, Role
from qim.core.ports.store_history import HistoryStoreRequest
from qim.core.ports.store_mailbox import MailboxStoreRequest
from qim.core.ports.store_message import MessageStoreRequest
from qim.core.ports.store_session import SessionStoreRequest
from qim.core.session import SessionEffect
from qim.core.writer import WriterEffect
from qim.services.cluster.adapters import ARCHIVE, LOGS, MAILBOX, MESSAGE
from qim.services.cluster.library_logs import LibraryLogs
from qim.services.cluster.lookout import Lookout
from qim.services.cluster.process import ServeProcess
from qim.services.roles import ServiceRole
from tests.integration.raw_client import token
from tests.services.one_process_cluster import SETTINGS, OneProcessCluster

TALKERS = (ServiceRole.WRITER, ServiceRole.FANOUT, ServiceRole.MAILBOX, ServiceRole.SESSION)
EFFECTS: dict[ServiceRole, Any] = {
    ServiceRole.GATEWAY: GatewayEffect,
    ServiceRole.WRITER: WriterEffect,
    ServiceRole.FANOUT: FanoutEffect,
    ServiceRole.MAILBOX: MailboxEffect,
    ServiceRole.SESSION: SessionEffect,
    ServiceRole.ARCHIVER: ArchiverEffect,
    ServiceRole.AUDITOR: AuditEffect,
}


def client(gateway: dict[str, Any], user: int, folder: Path) -> Client:
    return Client(
        user_id=user,
        access_token=token(SETTINGS.secret(), user),
        addresses=(gateway["tcp"],),
        store_path=folder / f"{user}.db",
        device_id=b"phone",
    )


@pytest.mark.parametrize("role", list(ServiceRole), ids=str)
def test_a_role_opens_what_its_machine_speaks_to(role: ServiceRole) -> None:
    orders = set(get_args(EFFECTS[role]))

    def speaks(*unions: Any) -> bool:
        return any(orders & set(get_args(union)) for union in unions)

    assert speaks(MessageStoreRequest, HistoryStoreRequest) == (role in MESSAGE)
    assert speaks(MailboxStoreRequest, SessionStoreRequest) == (role in MAILBOX)
    assert speaks(LogRequest) == (role in LOGS)
    assert speaks(ArchiveRequest) == (role in ARCHIVE)
    # An auditor hears operators, and its machine speaks to nobody.
    if role is not ServiceRole.AUDITOR:
        assert (Send in orders) == (SETTINGS.internal_listen(role) is not None)


def test_a_message_from_user_to_user_through_a_process_of_each_role(tmp_path: Path) -> None:
    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            gateway = await cluster.start(ServiceRole.GATEWAY)
            for role in TALKERS:
                await cluster.start(role)
            async with (
                client(gateway, 1, tmp_path) as sender,
                client(gateway, 2, tmp_path) as reader,
            ):
                await sender.online(20)
                await reader.online(20)
                sent = await sender.send("hello", to=2, timeout=20)
                assert sent.status is SendStatus.ACKED, sent
                async with asyncio.timeout(20):
                    while not (new := await reader.take_new()):
                        await reader.sync(20)
                (got,) = new
                assert got.body == b"hello"
                await reader.listed(20)
                row = await reader.conversation(got.conversation_id)
                assert row is not None
                assert row.unread == 1
            for name in list(cluster.running):
                assert await cluster.stop(name) == 0, name

    asyncio.run(main())


def test_two_writers_share_the_shards_and_one_takes_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await cluster.start(ServiceRole.WRITER, "first")
            await cluster.start(ServiceRole.WRITER, "second")
            first, second = (cluster.running[name][0]._hosting for name in ("first", "second"))
            assert first is not None and second is not None
            assert {first.deployment.instance, second.deployment.instance} == {0, 1}
            machines = [one.machines[ServiceRole.WRITER] for one in (first, second)]
            async with asyncio.timeout(20):
                while sum(one.serving() for one in machines) != 2:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            assert await cluster.stop("first") == 0
            async with asyncio.timeout(20):
                while machines[1].serving() != 2:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("role", list(ServiceRole), ids=str)
def test_a_clock_far_ahead_of_the_registry_is_refused(tmp_path: Path, role: ServiceRole) -> None:
    """Before anything is written: its ids and expiries would stand in the future for all others."""

    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            cluster.registry.wall_ms = wall_ms() - SETTINGS.parameters().clock_ahead_max_ms - 60_000
            with pytest.raises(StartRefused, match="clock_ahead"):
                await cluster.start(role)
            assert cluster.registry.numbers == {}

    asyncio.run(main())


def test_other_shared_numbers_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await cluster.start(ServiceRole.FANOUT)
            with pytest.raises(StartRefused, match="default_retention_ms") as refused:
                await cluster.start(ServiceRole.GATEWAY, default_history_retention_days=31)
            assert refused.value.command == "export QIM_DEFAULT_HISTORY_RETENTION_DAYS=30"

    asyncio.run(main())


def test_told_to_stop_before_it_serves_it_ends_and_leaves_nothing(tmp_path: Path) -> None:
    """What it should hold is held by a process that is dead: it waits for the lease, and SIGTERM comes first."""

    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await hold(cluster, Resource(role=Role.FANOUT, number=0))
            for broken, status in ((False, 0), (True, 1)):
                process, task, said = cluster.launch(ServiceRole.FANOUT)
                async with asyncio.timeout(20):
                    while "1 of 2" not in process.missing:  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.01)
                assert process.readiness()[0] is False
                if broken:
                    break_machine(process, ServiceRole.FANOUT)
                else:
                    process.stop()
                assert await task == status
                assert not said.done(), "it never said that it serves"

    asyncio.run(main())


def test_a_hangup_before_it_serves_reads_certificates_and_ends_nothing(tmp_path: Path) -> None:
    """A start waits for servers and leases, and whoever renews certificates doesn't ask whether it is done."""

    class Renewed:
        def __init__(self) -> None:
            self.read = asyncio.Event()

        def reload(self) -> bool:
            self.read.set()
            return True

        def gauges(self) -> list[tuple[str, str, float]]:
            return []

    async def main() -> None:
        own = Renewed()
        reading = asyncio.Event()

        async def opens_for_ever(*told: Any) -> Any:
            told[-1].reloads.append(own)
            reading.set()
            await asyncio.Event().wait()

        process = ServeProcess(SETTINGS, ServiceRole.FANOUT, open_ports=opens_for_ever)
        task = asyncio.create_task(process.run())
        async with asyncio.timeout(20):
            await reading.wait()
            os.kill(os.getpid(), signal.SIGHUP)
            await own.read.wait()
            process.stop()
            assert await task == 0

    kept = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGHUP, kept)


def test_a_drain_before_it_serves_has_an_end_too(tmp_path: Path) -> None:
    """What is in flight then is told as ever: who waits for leases of the dead may have work on those it has."""

    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await hold(cluster, Resource(role=Role.FANOUT, number=0))
            process, task, _ = cluster.launch(ServiceRole.FANOUT, drain_ms=50)
            async with asyncio.timeout(20):
                while "1 of 2" not in process.missing:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
                assert process._hosting is not None
                process._hosting.hosts[ServiceRole.FANOUT].machine = Restless()
                process.stop()
                assert await task == 1

    asyncio.run(main())


def test_a_machine_that_dies_takes_its_process_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            told = await cluster.start(ServiceRole.WRITER)
            process, task = cluster.running.pop("writer")
            break_machine(process, ServiceRole.WRITER)
            assert await task == 1
            assert told["role"] == "writer"

    asyncio.run(main())


def test_what_an_adapter_tells_as_broken_ends_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await cluster.start(ServiceRole.FANOUT)
            process, task = cluster.running.pop("fanout")
            loop.call_soon(answer_nobody)
            await asyncio.sleep(0)
            assert not process._stop.is_set(), "a callback of anybody's is a line in the log"
            breakage.tell(loop, "the keeper", RuntimeError("our own bug"))
            assert await task == 1
            assert repr(process._health.died) == "RuntimeError('our own bug')"

    asyncio.run(main())


def answer_nobody() -> None:
    raise asyncio.InvalidStateError("an answer after all, to who has gone")


def test_a_look_at_readiness_that_breaks_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(lookout: Lookout) -> str:
        raise AssertionError("our own bug")

    async def main() -> None:
        async with OneProcessCluster(tmp_path / "data") as cluster:
            await cluster.start(ServiceRole.FANOUT)
            _, task = cluster.running.pop("fanout")
            monkeypatch.setattr(Lookout, "all_round", broken)
            assert await task == 1

    asyncio.run(main())


def test_what_a_library_logs_is_a_line_of_ours() -> None:
    told: list[tuple[str, dict[str, object]]] = []

    def tell(level: str, _: str, fields: dict[str, object]) -> None:
        if fields["library"] == "some.library":
            told.append((level, fields))

    async def main() -> None:
        handler = LibraryLogs(asyncio.get_running_loop(), tell)
        handler.begin()
        try:
            library = logging.getLogger("some.library")
            library.info("not this")
            library.warning("retrying %s", "broker")
            await asyncio.to_thread(library.error, "from a thread")
            try:
                raise OSError("broken")
            except OSError:
                library.exception("failed")
            async with asyncio.timeout(20):
                while len(told) < 3:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0)
        finally:
            handler.end()
        library.warning("nor this")
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [(level, fields["text"]) for level, fields in told] == [
        ("warning", "retrying broker"),
        ("error", "from a thread"),
        ("error", "failed"),
    ]
    assert told[2][1]["error"] == "OSError('broken')"
    assert "raise OSError" in str(told[2][1]["traceback"])


async def hold(cluster: OneProcessCluster, resource: Resource) -> None:
    """By somebody who is dead."""
    dead = Acquire(op=1, resource=resource, owner="dead", address="", ttl_ms=60_000)
    taken: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    cluster.registry.submit(dead, taken.set_result)
    await taken


def break_machine(process: ServeProcess, role: ServiceRole) -> None:
    assert process._hosting is not None
    hosted = process._hosting.hosts[role]
    hosted.machine = Broken()
    hosted.post("a fact no machine knows")


class Broken:
    """A machine with a bug."""

    def step(self, now: int, events: object) -> object:
        raise RuntimeError("our own bug")

    def deadline(self) -> int | None:
        return None

    def idle(self) -> bool:
        return False


class Restless:
    """A machine that waits for an answer that doesn't come."""

    def step(self, now: int, events: object) -> tuple[()]:
        return ()

    def deadline(self) -> int | None:
        return None

    def idle(self) -> bool:
        return False
