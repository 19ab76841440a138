"""One multiplexed connection in a test's hand: two scripts of its own, and how it is opened, asked and waited for."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from qim.adapters.embedded.private_valkey import PrivateValkey
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.blocking import BlockingConnection
from qim.adapters.redis.connection import ConnectionConfig, RedisConnection

READY_MS = 10_000
SCRIPTS = {
    "tag": "return {KEYS[1], ARGV[1]}",
    "count": "return redis.call('HSET', KEYS[1], ARGV[1], ARGV[1])",
}
HASHES = {
    name: hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest().encode()
    for name, source in SCRIPTS.items()
}


def ask(store: PrivateValkey, *command: bytes) -> object:
    with BlockingConnection(store.socket_path, timeout_s=5) as connection:
        return connection.ask(*command)


def made(path: Path, **limits: int) -> RedisConnection:
    config = ConnectionConfig(address=StoreAddress(unix_path=str(path)), **limits)
    return RedisConnection(config, scripts=SCRIPTS, hashes=HASHES)


@asynccontextmanager
async def opened(path: Path, **limits: int) -> AsyncIterator[RedisConnection]:
    connection = made(path, **limits)
    connection.open()
    try:
        await connection.ready(READY_MS)
        yield connection
    finally:
        await connection.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(READY_MS / 1000):
        while not holds():  # noqa: ASYNC110 - turns of the loop, not time
            await asyncio.sleep(0)
