"""Which history a server writes on: a failover and back, a replica, a server that comes back with other settings."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig
from qim.adapters.redis.store import RedisStore
from qim.adapters.start_refused import StartRefused
from qim.core.ports import store_message as message
from qim.core.ports.completion import Failed, FailReason, StoreReset, Unknown
from tests.adapters.store.adapter_asked import PATIENT, READY_MS
from tests.adapters.store.requests import NOW, single
from tests.integration.testbed.redis import RedisServer, valkey_binary

SECONDS = 120


@pytest.fixture(
    params=[
        "valkey",
        pytest.param("redis", marks=(pytest.mark.servers, pytest.mark.xdist_group("redis"))),
    ]
)
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RedisServer, ...]]:
    binary = valkey_binary() if request.param == "valkey" else None
    at_once = {"repl-diskless-sync-delay": "0"}
    servers = tuple(
        RedisServer(tmp_path / name, binary=binary, settings=at_once) for name in ("a", "b")
    )
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.kill()


class Asking:
    """A writer shard's requests, one at a time."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.incarnation = b""
        self._epoch = 4
        self._op = 0

    async def answer(self, kind: type, **fields: object) -> object:
        self._op += 1
        done = asyncio.get_running_loop().create_future()
        self.store.submit(kind(op=self._op, **fields), done.set_result)
        async with asyncio.timeout(SECONDS):
            return await done

    async def open(self) -> None:
        self._epoch += 1
        opened = await self.answer(
            message.OpenShard, shard=0, epoch=self._epoch, fresh_key=b"k%15d" % self._epoch
        )
        assert isinstance(opened, message.ShardOpened), opened
        self.incarnation = opened.incarnation

    async def reserve(self, number: int) -> object:
        return await self.answer(
            message.ReserveAndRecord,
            shard=0,
            epoch=self._epoch,
            incarnation=self.incarnation,
            now_wall=NOW,
            items=(single(number),),
            traces=(),
        )

    async def seq(self, number: int) -> int:
        reserved = await self.reserve(number)
        assert isinstance(reserved, message.Reserved), reserved
        (result,) = reserved.results
        assert isinstance(result, message.Fresh), result
        return result.conversation_seq


@asynccontextmanager
async def opened(
    server: RedisServer, look_ms: int = 20
) -> AsyncIterator[tuple[Asking, list[StoreReset]]]:
    resets: list[StoreReset] = []
    address = StoreAddress.parse(server.address)
    config = ConnectionConfig(address=address, look_ms=look_ms, **PATIENT)
    store = await RedisStore.open(config, on_reset=resets.append, ready_timeout_ms=READY_MS)
    try:
        yield Asking(store), resets
    finally:
        await store.close()


async def until(true: object) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():  # type: ignore[operator]  # noqa: ASYNC110 - turns of the loop, not time
            await asyncio.sleep(0)


async def follow(server: RedisServer, master: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(master.port))
        await until(lambda: client.info("replication").get("master_link_status") == "up")


def promote(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("asked_amid", [True, False])
def test_a_failover_and_back_is_another_incarnation(
    two: tuple[RedisServer, RedisServer], asked_amid: bool
) -> None:
    """run_id and marker are the same, the data are older: a seq would be given twice under one incarnation."""
    one, other = two

    async def main() -> None:
        # Looking so seldom, only the reply to a call can tell that it was a replica meanwhile.
        async with opened(one, look_ms=3_600_000 if asked_amid else 20) as (asking, resets):
            await asking.open()
            assert await asking.seq(1) == 1
            await follow(other, one)
            promote(other)
            if not asked_amid:
                await until(lambda: resets)  # the first replica's coming makes another history, too
                await asking.open()
                resets.clear()
            assert await asking.seq(2) == 2
            old = asking.incarnation
            await follow(one, other)
            if asked_amid:
                amid = await asking.reserve(3)
                assert isinstance(amid, Failed | Unknown), amid
            promote(one)
            await until(lambda: resets)
            await until(lambda: asking.store.connection.connected)
            assert isinstance(await asking.reserve(3), StoreReset)
            await asking.open()
            assert asking.incarnation != old
            assert asking.incarnation.partition(b"/")[2] == old.partition(b"/")[2]

    asyncio.run(main())


def test_a_replica_is_refused_at_start_and_waited_for_later(
    two: tuple[RedisServer, RedisServer],
) -> None:
    one, other = two

    async def main() -> None:
        async with opened(other) as (asking, _):
            await asking.open()
            await follow(other, one)
            await until(lambda: not asking.store.connection.connected)
            refused = await asking.reserve(1)
            assert isinstance(refused, Failed)
            assert refused.why is FailReason.UNREACHABLE
            with pytest.raises(StartRefused) as refusal:
                async with opened(other):
                    pass
            assert refusal.value.code == "redis_replica"
            assert str(one.port) in refusal.value.got or "127.0.0.1" in refusal.value.got
            promote(other)
            await until(lambda: asking.store.connection.connected)
            await asking.open()
            assert await asking.seq(1) == 1

    asyncio.run(main())


def test_a_server_that_comes_back_with_other_settings_is_not_written_to(
    two: tuple[RedisServer, RedisServer],
) -> None:
    """As after ``config set`` without ``config rewrite``: judged at every run, not at our start alone."""
    one, _ = two

    async def main() -> None:
        async with opened(one) as (asking, _resets):
            await asking.open()
            one.stop()
            good = list(one.process.command)
            place = one.process.command.index("--maxmemory-policy") + 1
            one.process.command[place] = "allkeys-lru"
            one.start()
            await until(lambda: "redis_evicts" in asking.store.connection.last_failure)
            assert isinstance(await asking.reserve(1), Failed)
            assert asking.store.connection.connections_made == 1
            one.stop()
            one.process.command[:] = good
            one.start()
            await until(lambda: asking.store.connection.connected)
            assert isinstance(await asking.reserve(1), StoreReset)

    asyncio.run(main())
