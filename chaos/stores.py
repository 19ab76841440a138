"""Questions to a hot store from outside of the system under test, on a connection of one's own."""

import asyncio
from typing import Any

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.store import RedisStore
from qim.core.ports.completion import StoreReset

ANSWER_SECONDS_MAX = 30.0


class StoreReader:
    """Opened once a judging: a store that is another incarnation meanwhile answers StoreReset to what is bound to this."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    @classmethod
    async def open(cls, address: StoreAddress) -> "StoreReader":
        """Raises what RedisStore.open raises."""

        def reset(_: StoreReset) -> None:
            """Judged by its answers."""

        return cls(await RedisStore.open(address, on_reset=reset, unsafe_dev=True))

    @property
    def incarnation(self) -> bytes:
        """As the machines name it in their requests."""
        connection = self._store.connection
        return connection.run_id + b"/" + connection.incarnation_key

    async def ask(self, request: Any) -> Any:
        """The typed answer or completion. Raises TimeoutError."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._store.submit(request, answered.set_result)
        return await asyncio.wait_for(answered, ANSWER_SECONDS_MAX)

    async def close(self) -> None:
        """The connection."""
        await self._store.close()
