"""The archive's end has an end: neither a node that never answers nor a driver that hangs keeps a process from stopping."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from qim.adapters.cassandra import CassandraArchive, CassandraSettings
from qim.adapters.cassandra.in_flight import InFlight
from qim.core.ports.archive import ReadArchive
from qim.core.ports.completion import Unknown

SETTINGS = CassandraSettings(
    hosts=(("127.0.0.1", 9042),), keyspace="qim", data_centre="dc1", close_timeout_ms=20
)


class Driver:
    """Cluster and session at once; closes when it is let, and its future is one that nobody answers."""

    def __init__(self, *, fails: bool = False) -> None:
        self.let = threading.Event()
        self.threads: list[threading.Thread] = []
        self._fails = fails

    def shutdown(self) -> None:
        """Of the cluster."""
        self.threads.append(threading.current_thread())
        if self._fails:
            raise RuntimeError("no order")
        self.let.wait()

    def execute_async(self, *_: Any, **__: Any) -> "Driver":
        """Of the session."""
        return self

    def add_callbacks(self, **_: Any) -> None:
        """They are never called."""


class Prepared:
    """Statements that only have to be there."""

    def __getattr__(self, name: str) -> str:
        return name


def opened(driver: Driver) -> CassandraArchive:
    """As after a start."""
    loop = asyncio.get_running_loop()
    archive: Any = CassandraArchive(SETTINGS, loop)
    archive._cluster, archive._prepared = driver, Prepared()
    archive._reads = archive._writes = InFlight(driver, loop, profile=None, bound=8, silent_s=3_600)
    found: CassandraArchive = archive
    return found


def test_a_driver_that_hangs_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver()

    async def main() -> None:
        await opened(driver).close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "still closes" in caplog.text
    (thread,) = driver.threads
    assert thread.is_alive() and thread.daemon, "nor does the interpreter's end wait for it"
    driver.let.set()
    thread.join()


def test_a_driver_that_closes_is_waited_for() -> None:
    driver = Driver()
    driver.let.set()

    async def main() -> None:
        await opened(driver).close()
        assert driver.threads

    asyncio.run(main())


def test_a_driver_that_fails_to_close_fails_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await opened(Driver(fails=True)).close()

    asyncio.run(main())
    assert "did not close in order" in caplog.text


def test_what_has_no_answer_is_unknown_before_the_end() -> None:
    driver = Driver()
    driver.let.set()
    answers: list[Any] = []

    async def main() -> None:
        archive = opened(driver)
        request = ReadArchive(
            op=7, conversation_id=b"c", low=-1, high=9, newest_first=False, limit=1
        )
        archive.submit(request, answers.append)
        await archive.close()
        assert archive.waiting == 0

    asyncio.run(main())
    assert answers == [Unknown(op=7)]
