"""The store's adapter in a test's hand: a server to look into, all of a turn's answers, and what it tells by itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig
from qim.adapters.redis.store import RedisStore
from qim.core.ports.completion import StoreReset
from tests.adapters.store.samples import sample
from tests.integration.testbed.redis import RedisServer

SECONDS_MAX = 120
PATIENT = {"call_timeout_ms": 60_000, "connect_timeout_ms": 60_000}
"""A busy machine is no failure of the store: only who waits for an end makes these short."""
READY_MS = 60_000


class Server(RedisServer):
    """With a client to look and to meddle."""

    look: redis.Redis

    def where(self, **limits: Any) -> ConnectionConfig:
        socket = self.settings.get("unixsocket")
        address = StoreAddress.parse(socket or self.address)
        return ConnectionConfig(address=address, **PATIENT | limits)


@asynccontextmanager
async def opened(server: Server, **config: Any) -> AsyncIterator[RedisStore]:
    resets: asyncio.Queue[StoreReset] = asyncio.Queue()
    store = await RedisStore.open(
        server.where(**config), on_reset=resets.put_nowait, ready_timeout_ms=READY_MS
    )
    store.resets = resets  # type: ignore[attr-defined]
    try:
        yield store
    finally:
        await store.close()


async def ask(store: RedisStore, *requests: Any) -> list[Any]:
    """Submit all in one turn; the answers in the order of the requests."""
    answers: dict[int, Any] = {}
    done = asyncio.Event()

    def answered(place: int, answer: Any) -> None:
        assert place not in answers, "answered twice"
        answers[place] = answer
        if len(answers) == len(requests):
            done.set()

    for place, request in enumerate(requests):
        store.submit(request, lambda answer, place=place: answered(place, answer))  # type: ignore[misc]
    async with asyncio.timeout(SECONDS_MAX):
        await done.wait()
    return [answers[place] for place in range(len(requests))]


async def told(store: RedisStore, count: int) -> list[StoreReset]:
    """The next resets that the store noticed by itself."""
    async with asyncio.timeout(SECONDS_MAX):
        return [await store.resets.get() for _ in range(count)]  # type: ignore[attr-defined]


async def connected(store: RedisStore) -> None:
    """As it is when this returns, until the loop's next turn."""
    async with asyncio.timeout(SECONDS_MAX):
        while not store.connection.connected:  # noqa: ASYNC110 - turns of the loop, not time
            await asyncio.sleep(0)


def bound(kind: Any, store_opened: Any, **fields: Any) -> Any:
    return sample(kind, incarnation=store_opened.incarnation, **fields)
