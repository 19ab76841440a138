"""A watch on announcements and leases: who comes and goes, who takes what and what is free again, is known at once.

Only a shortcut. While it is down (etcd away, history compacted) announcements and repeated acquisitions tell the same
seconds later; after each new start everything is told again, since nobody knows what was missed.

    DOWN --stream stands--> UP --stream ends, history compacted--> DOWN (pause, next endpoint)
"""

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
from aetcd import rpc

from qim.adapters.etcd import calls
from qim.adapters.etcd.announcing import Announcements
from qim.adapters.etcd.connection import CALL_MS, EtcdConnection, NotApplied
from qim.adapters.etcd.keys import Keys, decode_holder, range_end
from qim.core.ports.registry import LeaseFreed, LeaseTaken, Peers, Resource, Role

LOG: Final = logging.getLogger(__name__)
PAUSE_SECONDS_MIN: Final = 0.2
PAUSE_SECONDS_MAX: Final = 5.0


Noticed = Peers | LeaseFreed | LeaseTaken


class Watch:
    """One task, one stream, for the roles that this process announced; ``tell`` gets one Peers for many that came at once."""

    def __init__(
        self,
        connection: EtcdConnection,
        keys: Keys,
        announcements: Announcements,
        tell: Callable[[Noticed], None],
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
        self._read_in_full: set[Role] = set()
        """Roles all of whose leases were told since the stream stands."""
        self.up = False
        self.has_stood = False
        self.last_failure = ""

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
                self.last_failure = f"{error.code()}: {error.details()}"
                pause = PAUSE_SECONDS_MIN if self.up else min(pause * 2, PAUSE_SECONDS_MAX)
                try:
                    self._connection.stream_failed(error)
                except NotApplied:
                    pause = PAUSE_SECONDS_MAX
            except asyncio.CancelledError:
                # gRPC's word for a stream whose channel was closed under it: with new certificates another one stands.
                pause = PAUSE_SECONDS_MIN
            except NotApplied as refused:
                self.last_failure = str(refused)
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
            except Exception:
                # gRPC has more words for a stream that ended than its own errors (an InvalidStateError of a write).
                LOG.exception("a stream of the watch failed")
                pause = PAUSE_SECONDS_MAX
            self.up = False
            if self._task is not None and self._task.cancelling():
                return  # stopped: what it awaited may have had words of its own for that, and none comes again
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
        self.up = self.has_stood = True
        roles = self._announcements.roles
        if answer.created:
            self._read_in_full.clear()
            self._changed.update(dict.fromkeys(sorted(roles)))
        for event in answer.events:
            resource = self._keys.resource(event.kv.key)
            role = self._keys.role_of_peer(event.kv.key)
            if role in roles:
                self._changed[role] = None
            elif resource is not None and resource.role in roles:
                self._tell_of_lease(resource, event.kv, gone=event.type == rpc.Event.DELETE)
        if self._changed and self._reading is None:
            self._reading = self._loop.create_task(self._read())

    def _tell_of_lease(self, resource: Resource, kv: Any, *, gone: bool) -> None:
        if gone:
            self._tell(LeaseFreed(resource=resource))
            return
        with suppress(msgspec.MsgspecError):
            holder = decode_holder(kv.value)
            self._tell(LeaseTaken(resource=resource, owner=holder.owner, address=holder.address))

    async def _read(self) -> None:
        """Until all that changed is told. An etcd that is slow is asked again: of its own accord it tells nothing twice."""
        own = asyncio.current_task()
        pause = PAUSE_SECONDS_MIN
        try:
            while self._changed:
                role = next(iter(self._changed))
                del self._changed[role]
                try:
                    await self._read_role(role)
                    pause = PAUSE_SECONDS_MIN
                except NotApplied:
                    if not self.up or own is None or own.cancelling():
                        # The next stream begins with all of it, and who was stopped may have heard another word for that.
                        self._changed.clear()
                        return
                    self._changed[role] = None
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, PAUSE_SECONDS_MAX)
        finally:
            self._reading = None

    async def _read_role(self, role: Role) -> None:
        """Its peers, and once a stream who holds what. Raises NotApplied."""
        within = self._connection.within(CALL_MS)
        self._tell(await self._announcements.peers(role, within))
        if role not in self._read_in_full:
            self._read_in_full.add(role)
            try:
                await self._read_leases(role, within)
            except NotApplied:
                self._read_in_full.discard(role)
                raise

    async def _read_leases(self, role: Role, within: float) -> None:
        begin = self._keys.leases_of(role)
        request = rpc.RangeRequest(key=begin, range_end=range_end(begin))
        answer = await self._connection.ask(calls.RANGE, request, within)
        for kv in answer.kvs:
            resource = self._keys.resource(kv.key)
            if resource is not None:
                self._tell_of_lease(resource, kv, gone=False)
