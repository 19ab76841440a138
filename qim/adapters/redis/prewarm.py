"""Grow a store's key table beforehand, so that its doublings don't fall into a load (seed: 2^20 and 2^21 keys).

A server keeps one entry a message for as long as the dedupe window. At each power of two its table is doubled and moved
over little by little, every command meanwhile looking into both. Keys of our own under a prefix that no script reads make
it as large as it will become; they are taken away again with ``clear``, or run out by themselves.

Filling is not enough: it makes the server rewrite its file, and while a child does that a table is not grown (it may hold
five keys a slot by then); the first write AFTER the child doubles it, and that would be the load's. So a fill waits for the
child, writes one more key, and looks its keys up until the table must have been moved: each look-up moves a slot.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig, RedisConnection
from qim.adapters.redis.outcomes import ServerError

PREFIX: Final = b"prewarm:"
"""No key of the layout begins so (layout.py: one or two letters, or qim:)."""
BATCH_KEYS: Final = 2_000
LIFE_SECONDS: Final = 4 * 3600
READY_MS: Final = 10_000
LOOK_SECONDS: Final = 0.2
QUIET_SECONDS_MAX: Final = 300.0
WRITING: Final = (
    b"aof_rewrite_in_progress:1",
    b"aof_rewrite_scheduled:1",
    b"rdb_bgsave_in_progress:1",
)
SALT_BYTES: Final = 4

Progress = Callable[[int, int], None]
"""Told (done, of all) now and then."""


class Prewarmer:
    """Use within ``async with``. Raises NotConnected at entry."""

    def __init__(self, address: StoreAddress) -> None:
        self._connection = RedisConnection(ConnectionConfig(address=address), scripts={}, hashes={})
        self._salt = os.urandom(SALT_BYTES).hex().encode()

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
        """Make the store hold ``keys`` keys at least, its table grown; how many were added (for ``LIFE_SECONDS``)."""
        missing = max(0, keys - await self.size())
        for first in range(0, missing, BATCH_KEYS):
            names = self._names(first, min(first + BATCH_KEYS, missing))
            commands = [("SET", name, "", "EX", LIFE_SECONDS) for name in names]
            self._judge(await self._connection.call_many(commands))
            progress(min(first + BATCH_KEYS, missing), missing)
        if missing:
            await self._grow(missing, progress)
        return missing

    async def _grow(self, added: int, progress: Progress) -> None:
        """Until the table is as large as its keys want it, and moved."""
        await self._quiet()
        await self._connection.call("SET", self._names(added, added + 1)[0], "", "EX", LIFE_SECONDS)
        slots, moved = await self.size(), 0
        while moved < slots:
            for first in range(0, added, BATCH_KEYS):
                last = min(first + BATCH_KEYS, added)
                await self._connection.call("EXISTS", *self._names(first, last))
                moved += last - first
                progress(min(moved, slots), slots)
                if moved >= slots:
                    break

    async def _quiet(self) -> None:
        """No child of the server writes a file; at most ``QUIET_SECONDS_MAX``, or not at all where INFO is forbidden."""
        deadline = time.monotonic() + QUIET_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                told = bytes(await self._connection.call("INFO", "persistence"))
            except ServerError:
                return
            if not any(line in told for line in WRITING):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _names(self, first: int, last: int) -> list[bytes]:
        """Of this prewarmer: those of an earlier one are keys already, and to set them again would add none."""
        return [b"%b%b:%d" % (PREFIX, self._salt, number) for number in range(first, last)]

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
