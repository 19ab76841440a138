"""Grow a store's key table beforehand, so that its doublings don't fall into a load (seed: 2^20 and 2^21 keys).

A server keeps one entry a message for as long as the dedupe window. At each power of two its table is doubled and moved
over little by little, every command meanwhile looking into both. Keys of our own under a prefix that no script reads make
it as large as it will become; they are taken away again with ``clear``, or run out by themselves.
"""

from collections.abc import Callable
from typing import Final

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig, RedisConnection

PREFIX: Final = b"prewarm:"
"""No key of the layout begins so (layout.py: one or two letters, or qim:)."""
BATCH_KEYS: Final = 2_000
LIFE_SECONDS: Final = 4 * 3600
READY_MS: Final = 10_000

Progress = Callable[[int, int], None]
"""Told (done, of all) now and then."""


class Prewarmer:
    """Use within ``async with``. Raises NotConnected at entry."""

    def __init__(self, address: StoreAddress) -> None:
        self._connection = RedisConnection(ConnectionConfig(address=address), scripts={}, hashes={})

    async def __aenter__(self) -> "Prewarmer":
        self._connection.open()
        try:
            await self._connection.ready(READY_MS)
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def size(self) -> int:
        """Keys in the store."""
        return int(await self._connection.call("DBSIZE"))

    async def fill(self, keys: int, progress: Progress) -> int:
        """Make the store hold ``keys`` keys at least; how many were added. They run out after ``LIFE_SECONDS``."""
        missing = max(0, keys - await self.size())
        for first in range(0, missing, BATCH_KEYS):
            numbers = range(first, min(first + BATCH_KEYS, missing))
            commands = [("SET", PREFIX + b"%d" % n, "", "EX", LIFE_SECONDS) for n in numbers]
            self._judge(await self._connection.call_many(commands))
            progress(min(first + BATCH_KEYS, missing), missing)
        return missing

    async def clear(self, progress: Progress) -> int:
        """Take them away; how many there were."""
        total, gone, cursor = await self.size(), 0, b"0"
        while True:
            cursor, found = await self._connection.call(
                "SCAN", cursor, "MATCH", PREFIX + b"*", "COUNT", BATCH_KEYS
            )
            if found:
                gone += int(await self._connection.call("UNLINK", *found))
                progress(gone, total)
            if cursor == b"0":
                return gone

    def _judge(self, outcomes: list[object]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
