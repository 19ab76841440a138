"""Half a script that a crash left in the append-only file stays lost, over as many starts as there are (decision 0024)."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.private_valkey import PrivateValkey
from qim.adapters.embedded.server_binary import ServerBinary
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.blocking import BlockingConnection
from qim.adapters.redis.connection import ConnectionConfig, RedisConnection
from qim.adapters.redis.layout import Call
from qim.adapters.redis.outcomes import NotConnected
from qim.adapters.redis.startup import StoreRefused
from qim.adapters.redis.store import RedisStore
from tests.adapters.connected import HASHES, SCRIPTS
from tests.adapters.store.adapter_asked import PATIENT, READY_MS
from tests.adapters.store.stand_in import StandIn, info, standing_in
from tests.integration.testbed.redis import RedisServer, redis_server_binary, valkey_binary
from tests.integration.testbed.signalled import children_of, die

THREE = "for place = 1, 3 do redis.call('SET', KEYS[place], ARGV[1]) end return 1"
KEYS = [b"first", b"second", b"third"]
SCHEDULED = b"+Background append only file rewriting scheduled\r\n"
STARTED = b"+Background append only file rewriting started\r\n"
BUSY = b"-ERR Background append only file rewriting already in progress\r\n"


@pytest.fixture(
    params=[
        "valkey",
        pytest.param("redis", marks=(pytest.mark.servers, pytest.mark.xdist_group("redis"))),
    ]
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    binary = valkey_binary() if request.param == "valkey" else None
    server = RedisServer(tmp_path, binary=binary, settings={"appendfsync": "always"})
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def connected(address: StoreAddress) -> AsyncIterator[RedisConnection]:
    config = ConnectionConfig(address=address, **PATIENT)
    connection = RedisConnection(config, scripts=SCRIPTS, hashes=HASHES)
    connection.open()
    try:
        await connection.ready(READY_MS)
        yield connection
    finally:
        await connection.close()


def through_our_connection(server: RedisServer, *calls: Call) -> None:
    async def main() -> None:
        async with connected(StoreAddress.parse(server.address)) as connection:
            for outcome in await connection.call_scripts(calls):
                assert outcome == 1

    asyncio.run(main())


def held(server: RedisServer) -> dict[bytes, bytes | None]:
    with server.client() as client:
        return dict(zip(KEYS, client.mget(KEYS), strict=True))


def transaction_bytes(server: RedisServer, value: bytes) -> int:
    """How long one call of THREE is in the file."""
    (file,) = server.aof_files()
    before = file.stat().st_size
    with server.client() as client:
        client.eval(THREE, len(KEYS), *KEYS, value)
    return file.stat().st_size - before


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9])
def test_half_a_script_stays_lost_at_the_start_after_the_next(
    server: RedisServer, part: float
) -> None:
    assert transaction_bytes(server, b"old") > 0
    torn = transaction_bytes(server, b"torn")
    server.restart(lose_bytes=max(1, int(torn * part)))
    old = dict.fromkeys(KEYS, b"old")
    assert held(server) == old

    through_our_connection(server, Call("count", [b"later"], [b"1"]))
    for _ in range(2):
        server.restart()
        assert held(server) == old
        with server.client() as client:
            assert client.hgetall(b"later") == {b"1": b"1"}, "what was written behind it is there"


@pytest.mark.servers
@pytest.mark.xdist_group("redis")
def test_killed_again_while_its_file_is_copied_it_serves_at_the_start_after(tmp_path: Path) -> None:
    """Redis ends at the first start behind such a file; the embedded server is its own supervisor."""
    redis = ServerBinary(path=Path(redis_server_binary()), version=(7, 0))
    # Of each key: the copy is not done before the kill, however long that takes to come.
    slow = {"rdb-key-save-delay": "60000000"}
    with DataDirectory(tmp_path / "data") as directory:

        def ask(store: PrivateValkey, *command: bytes) -> object:
            with BlockingConnection(store.socket_path, timeout_s=60) as connection:
                return connection.ask(*command)

        store = PrivateValkey.start(directory, fsync="always", binary=redis)
        ask(store, b"EVAL", THREE.encode(), b"3", *KEYS, b"old")
        ask(store, b"EVAL", THREE.encode(), b"3", *KEYS, b"torn")
        os.kill(store.pid, signal.SIGKILL)
        store.stop()
        (file,) = directory.store.glob("appendonlydir/*.incr.aof")
        os.truncate(file, file.stat().st_size - 1)

        store = PrivateValkey.start(directory, fsync="always", binary=redis, settings=slow)
        ask(store, b"BGREWRITEAOF")
        ask(store, b"SET", b"later", b"1")
        (copying,) = children_of(store.pid)
        os.kill(store.pid, signal.SIGKILL)
        store.stop()
        die(copying)
        assert len(list(directory.store.glob("appendonlydir/*.incr.aof"))) == 2

        store = PrivateValkey.start(directory, fsync="always", binary=redis)
        try:
            log = (directory.store / "server.log.before").read_text()
            assert "truncated file is not the last file" in log, "else this shows nothing"
            assert ask(store, b"MGET", *KEYS, b"later") == [b"old"] * 3 + [b"1"]
        finally:
            store.stop()


def test_a_run_begins_its_file_once_however_many_connect(server: RedisServer) -> None:
    async def main() -> None:
        address = StoreAddress.parse(server.address)
        async with connected(address), connected(address), connected(address):
            pass

    asyncio.run(main())
    with server.client() as client:
        assert client.info("persistence")["aof_rewrites"] == 1
        assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"


# Stand-ins: what no server can be made to say in the right moment --------------------------------------


class Rewriting(StandIn):
    """Counts what it was asked to begin; ``replies`` are its answers, of which the last alone is carried out."""

    def __init__(
        self, *replies: bytes, rewrites: int = 0, enabled: int = 1, further: bytes = b""
    ) -> None:
        super().__init__(info_text=info())
        self._further = further
        self._replies = list(replies)
        self._rewrites = rewrites
        self._enabled = enabled
        self.begun = 0

    def answer(self, words: list[bytes]) -> bytes:
        if words == [b"INFO", b"persistence"]:
            text = b"aof_enabled:%d\r\naof_rewrites:%d\r\n" % (self._enabled, self._rewrites)
            text += self._further
            return b"$%d\r\n%b\r\n" % (len(text), text)
        if words == [b"BGREWRITEAOF"]:
            self.begun += 1
            reply = self._replies.pop(0)
            self._rewrites += not self._replies
            return reply
        return super().answer(words)


def attempts(server: Rewriting) -> int:
    """Made until it was connected."""

    async def main() -> None:
        async with standing_in(server) as address, connected(address):
            pass

    asyncio.run(main())
    return len(server.connections)


@pytest.mark.parametrize("reply", [STARTED, BUSY])
def test_begun_by_us_or_by_another_is_the_same(reply: bytes) -> None:
    server = Rewriting(reply)
    assert attempts(server) == 1
    assert server.begun == 1


def test_nobody_is_let_in_while_a_snapshot_puts_it_off() -> None:
    server = Rewriting(SCHEDULED, SCHEDULED, STARTED)
    assert attempts(server) == 3
    assert server.begun == 3


@pytest.mark.parametrize(
    "already",
    [
        Rewriting(rewrites=1),
        Rewriting(enabled=0),
        Rewriting(further=b"aof_last_rewrite_time_sec:0\r\n"),  # after CONFIG RESETSTAT
        Rewriting(further=b"aof_rewrite_in_progress:1\r\naof_last_rewrite_time_sec:-1\r\n"),
    ],
)
def test_a_file_of_this_run_or_none_is_left_alone(already: Rewriting) -> None:
    assert attempts(already) == 1
    assert already.begun == 0


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (b"-NOPERM this user has no permissions to run the 'bgrewriteaof' command\r\n", "login"),
        (b"-ERR unknown command 'BGREWRITEAOF'\r\n", "first_exchange"),
    ],
)
def test_a_server_that_will_not_is_refused_with_what_it_needs(reply: bytes, code: str) -> None:
    server = Rewriting(*[reply] * 10_000)

    async def main() -> None:
        async with standing_in(server) as address:
            await RedisStore.open(address, on_reset=lambda reset: None)

    with pytest.raises(StoreRefused) as refusal:
        asyncio.run(main())
    assert refusal.value.code == f"redis_{code}"
    assert "bgrewriteaof" in refusal.value.got.lower()
    assert "bgrewriteaof" in refusal.value.expected.lower()


def test_while_it_will_not_calls_are_not_sent() -> None:
    async def main() -> None:
        server = Rewriting(*[SCHEDULED] * 10_000)
        async with standing_in(server) as address:
            connection = RedisConnection(
                ConnectionConfig(address=address, backoff_first_ms=1, backoff_max_ms=1),
                scripts=SCRIPTS,
                hashes=HASHES,
            )
            connection.open()
            try:
                with pytest.raises(NotConnected, match="begun anew"):
                    await connection.ready(300)
                with pytest.raises(NotConnected):
                    connection.send([(b"GET", b"k")])
            finally:
                await connection.close()
            assert b"EVALSHA" not in server.asked

    asyncio.run(main())


def test_a_start_waits_longer_for_a_snapshot_than_for_a_silent_server() -> None:
    """A replica that comes with the store makes one: a start must not end for good over what ends by itself."""
    server = Rewriting(
        *[SCHEDULED] * 7, STARTED
    )  # back-off alone makes that more than the look it is given

    async def main() -> None:
        async with standing_in(server) as address:
            config = ConnectionConfig(address=address, backoff_first_ms=100)
            with pytest.raises(StoreRefused) as refusal:
                await RedisStore.open(config, on_reset=lambda reset: None, ready_timeout_ms=250)
            assert refusal.value.code == "redis_comparison", "it was connected, and judged"

    asyncio.run(main())
    assert server.begun == 8
