"""Messages from the local store to the user, each once: claimed by one listener, shown, then marked told.

Marked only after it was shown: a process that is killed in between shows the last ones (at most a page) again, and
never loses one.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from qim.client.driver import ClientDriver
from qim.core.ports.local_store import LocalMessage

UNTOLD_PAGE: Final = 500


class Handover:
    """What of the store's untold messages is in whose hands; from one event loop only."""

    def __init__(self) -> None:
        self._driver: ClientDriver | None = None
        self._arrived = asyncio.Event()
        self._claimed: set[bytes] = set()  # read by some listener and not marked told yet
        self._shown: list[bytes] = []  # of these, handed to the user
        self._claiming = asyncio.Lock()
        self._over = False

    def begin(self, driver: ClientDriver) -> None:
        """There is a store to read."""
        self._driver = driver

    def arrived(self) -> None:
        """A message stands in the store for the first time."""
        self._arrived.set()

    def nothing_follows(self) -> None:
        """What is in the store can still be taken; nobody waits for more."""
        self._over = True
        self._arrived.set()

    async def end(self) -> None:
        """Mark what was shown, and end every listener."""
        await self._confirm()
        self._driver = None
        self._arrived.set()

    async def take(self) -> list[LocalMessage]:
        """A page, told."""
        page = await self._claim()
        self._shown += [message.message_id for message in page]
        await self._confirm()
        return page

    async def each(self, *, follow: bool) -> AsyncIterator[LocalMessage]:
        """One by one; ``follow``: until the client ends."""
        while self._driver is not None:
            self._arrived.clear()
            page = await self._claim()
            rest = page
            try:
                while rest:
                    message, rest = rest[0], rest[1:]
                    self._shown.append(message.message_id)
                    yield message
            finally:
                self._claimed.difference_update(left.message_id for left in rest)
            if page:
                await self._confirm()
            elif follow and not self._over:
                await self._arrived.wait()
            else:
                return

    async def _claim(self) -> list[LocalMessage]:
        """A page nobody else in this process is showing; none after the end."""
        async with self._claiming:
            if self._driver is None:
                return []
            limit = UNTOLD_PAGE + len(self._claimed)
            found: list[LocalMessage] = await self._driver.on_store_thread(
                lambda store: store.untold(limit)
            )
            page = [message for message in found if message.message_id not in self._claimed]
            page = page[:UNTOLD_PAGE]
            self._claimed.update(message.message_id for message in page)
            return page

    async def _confirm(self) -> None:
        """What was handed over is told."""
        shown = list(self._shown)
        if shown and self._driver is not None:
            await self._driver.on_store_thread(lambda store: store.mark_told(shown))
            # Only now: a listener cancelled meanwhile may have taken the order back with it.
            told = frozenset(shown)
            self._shown = [message_id for message_id in self._shown if message_id not in told]
            self._claimed -= told
