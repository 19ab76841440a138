"""Our own bugs where nobody waits for a result: either mended, or told so that the process ends."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from qim.adapters import breakage
from qim.adapters.embedded.database_thread import DatabaseThread
from qim.adapters.etcd import watch
from qim.adapters.etcd.keys import Keys
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig, RedisConnection
from qim.adapters.redis.store import RedisStore
from qim.core.ports.store_message import ReadPending
from tests.adapters.store.samples import sample

WAIT_SECONDS_MAX = 20.0


class Heard:
    """What the loop's exception handler was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str | None, str]] = []
        self._more = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(self._hear)

    def _hear(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.told.append((context.get(breakage.BROKEN), repr(context.get("exception"))))
        self._more.set()

    async def first(self) -> tuple[str | None, str]:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await self._more.wait()
        return self.told[0]


def play(scenario: Callable[[Heard], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Heard())

    asyncio.run(main())


async def bug(*_: object) -> None:
    raise AssertionError("our own bug")


BUG = repr(AssertionError("our own bug"))


def test_a_task_that_is_kept_tells_of_its_error_at_once() -> None:
    async def scenario(heard: Heard) -> None:
        task = breakage.begin(asyncio.get_running_loop(), bug(), "the keeper")
        assert await heard.first() == ("the keeper", BUG)
        assert task.done(), "and it is kept all the while"

    play(scenario)


def test_a_task_that_is_cancelled_or_ends_tells_nothing() -> None:
    async def scenario(heard: Heard) -> None:
        loop = asyncio.get_running_loop()
        cancelled = breakage.begin(loop, asyncio.sleep(3_600), "one")
        ended = breakage.begin(loop, asyncio.sleep(0), "another")
        await ended
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await asyncio.sleep(0)
        assert heard.told == []

    play(scenario)


def test_the_store_connections_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(heard: Heard) -> None:
        monkeypatch.setattr(RedisConnection, "_dial", bug)
        config = ConnectionConfig(address=StoreAddress(unix_path="nowhere"))
        connection = RedisConnection(config, scripts={}, hashes={})
        connection.open()
        assert await heard.first() == ("the store connection's keeper", BUG)
        await connection.close()

    play(scenario)


def test_a_stores_answer_that_cannot_be_handed_over() -> None:
    async def scenario(heard: Heard) -> None:
        loop = asyncio.get_running_loop()
        config = ConnectionConfig(address=StoreAddress(unix_path="nowhere"))
        store = RedisStore(config, on_reset=lambda reset: None)
        replied: asyncio.Future[Any] = loop.create_future()
        replied.set_result([b"no reply of ours"])

        def not_taken(answer: object) -> None:
            raise AssertionError("our own bug")

        call: Any = None
        store._answered(sample(ReadPending), call, not_taken, b"", replied)
        assert await heard.first() == ("the answer to ReadPending", BUG)

    play(scenario)


def test_a_database_thread_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(heard: Heard) -> None:
        def broken(thread: DatabaseThread, batch: object) -> None:
            raise AssertionError("our own bug")

        monkeypatch.setattr(DatabaseThread, "_commit", broken)
        loop = asyncio.get_running_loop()
        database = DatabaseThread(tmp_path / "d", loop, schema="", name="qim-log")
        database.submit(lambda _: None, lambda _: None)
        assert await heard.first() == ("qim-log", BUG)
        database._connection.close()

    play(scenario)


class Streams:
    """An etcd connection whose streams end as the test says, one after the other."""

    def __init__(self, *ends: BaseException) -> None:
        self._ends = [*ends]
        self.asked = 0
        self.all_gone = asyncio.Event()

    def within(self, ms: int) -> float:
        return 0.0

    async def stream(self, within: float) -> Any:
        self.asked += 1
        if self._ends:
            raise self._ends.pop(0)
        self.all_gone.set()
        await asyncio.Event().wait()


def test_a_watch_whose_stream_ends_in_any_way_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC answers a write to a stream that ended between two writes with an InvalidStateError."""

    async def scenario(heard: Heard) -> None:
        monkeypatch.setattr(watch, "PAUSE_SECONDS_MAX", 0.001)
        streams: Any = Streams(asyncio.InvalidStateError("RPC already finished."), KeyError("x"))
        nobody: Any = None
        noticed: list[object] = []
        loop = asyncio.get_running_loop()
        watching = watch.Watch(streams, Keys("/qim/"), nobody, noticed.append, loop)
        watching.up = True
        watching.start()
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await streams.all_gone.wait()
        assert streams.asked == 3
        assert not watching.up
        await watching.stop()
        assert heard.told == []

    play(scenario)
