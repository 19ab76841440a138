"""A watch on announcements and leases: who comes and goes, and what is free again, is known at once.

Only a shortcut. While it is down (etcd away, history compacted) announcements and repeated acquisitions tell the same
seconds later; after each new start everything is told again, since nobody knows what was missed.

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
from qim.adapters.etcd.leases import Leases
from qim.core.ports.registry import LeaseFreed, Peers, Role

PAUSE_SECONDS_MIN: Final = 0.2
PAUSE_SECONDS_MAX: Final = 5.0


class Watch:
    """One task, one stream; ``tell`` gets at most one Peers a role for all that came while it was read."""

    def __init__(
        self,
        connection: EtcdConnection,
        keys: Keys,
        announcements: Announcements,
        leases: Leases,
        tell: Callable[[Peers | LeaseFreed], None],
        loop: AbstractEventLoop,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._announcements = announcements
        self._leases = leases
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
        stream = stubs.watch.Watch(metadata=metadata)
        try:
            for begin in (self._keys.all_peers, self._keys.leases):
                create = rpc.WatchCreateRequest(key=begin, range_end=range_end(begin))
                await stream.write(rpc.WatchRequest(create_request=create))
            async for answer in stream:
                if answer.canceled:
                    return
                self._on_answer(answer)
        finally:
            stream.cancel()

    def _on_answer(self, answer: Any) -> None:
        self.up = True
        gone = frozenset(event.kv.key for event in answer.events if event.type == rpc.Event.DELETE)
        for resource in self._leases.waited_for() if answer.created or gone else ():
            if answer.created or self._keys.lease(resource) in gone:
                self._tell(LeaseFreed(resource=resource))
        self._on_peers(
            everybody=answer.created,
            roles=frozenset(self._keys.role_of_peer(event.kv.key) for event in answer.events),
        )

    def _on_peers(self, *, everybody: bool, roles: frozenset[str]) -> None:
        for role in sorted(self._announcements.roles):
            if everybody or role.value in roles:
                self._changed[role] = None
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
