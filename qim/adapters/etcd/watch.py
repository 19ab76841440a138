"""A watch on the announcements: who comes and goes is known at once, not at the next Announce.

Only a shortcut. While it is down (etcd away, history compacted) the announcements every few seconds tell the same; after
each new start all roles are read, since nobody knows what was missed.

    DOWN --stream stands--> UP --stream ends, history compacted--> DOWN (pause, next endpoint)
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any, Final

from aetcd import rpc

from qim.adapters.etcd.announcing import Announcements
from qim.adapters.etcd.connection import CALL_MS, EtcdConnection, NotApplied
from qim.adapters.etcd.keys import Keys, range_end
from qim.core.ports.registry import Peers, Role

PAUSE_SECONDS_MIN: Final = 0.2
PAUSE_SECONDS_MAX: Final = 5.0


class PeerWatch:
    """One task, one stream; ``tell`` gets at most one Peers a role for all that came while it was read."""

    def __init__(
        self,
        connection: EtcdConnection,
        keys: Keys,
        announcements: Announcements,
        tell: Callable[[Peers], None],
        loop: AbstractEventLoop,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._announcements = announcements
        self._tell = tell
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._changed: dict[Role, None] = {}
        self.up = False

    def start(self) -> None:
        """Once."""
        self._task = self._loop.create_task(self._watch())

    async def stop(self) -> None:
        """End both tasks."""
        tasks = [task for task in (self._task, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        pause = PAUSE_SECONDS_MIN
        while True:
            try:
                await self._one_stream()
                pause = PAUSE_SECONDS_MIN
            except rpc.AioRpcError as error:
                pause = PAUSE_SECONDS_MIN if self.up else min(pause * 2, PAUSE_SECONDS_MAX)
                try:
                    self._connection.stream_failed(error)
                except NotApplied:
                    pause = PAUSE_SECONDS_MAX
            except NotApplied:
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
            self.up = False
            await asyncio.sleep(pause)

    async def _one_stream(self) -> None:
        """Until it ends. Raises AioRpcError, NotApplied."""
        stubs, metadata = await self._connection.stream(self._connection.within(CALL_MS))
        begin = self._keys.all_peers
        create = rpc.WatchCreateRequest(key=begin, range_end=range_end(begin))
        stream = stubs.watch.Watch(metadata=metadata)
        try:
            await stream.write(rpc.WatchRequest(create_request=create))
            async for answer in stream:
                if answer.canceled:
                    return
                self._on_answer(answer)
        finally:
            stream.cancel()

    def _on_answer(self, answer: Any) -> None:
        told = {self._keys.role_of_peer(event.kv.key) for event in answer.events}
        for role in sorted(self._announcements.roles):
            if answer.created or role.value in told:
                self._changed[role] = None
        self.up = True
        if self._changed and self._reading is None:
            self._reading = self._loop.create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._changed:
                role = next(iter(self._changed))
                del self._changed[role]
                within = self._connection.within(CALL_MS)
                self._tell(await self._announcements.peers(role, within))
        except NotApplied:
            self._changed.clear()  # the next Announce tells
        finally:
            self._reading = None
