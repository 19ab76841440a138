"""EtcdRegistry: the registry port on etcd 3.4 or later, for processes on many machines.

Epochs are a counter a resource that only rises and is never leased, so they stay small: their low 16 bits are part of
message ids, where etcd's own revisions would wrap after an hour of a busy cluster. If etcd is restored from a backup,
counters fall; what the fences and barriers have seen raises them again (pipeline.md §0).
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, assert_never

import msgspec

from qim.adapters.etcd.announcing import Announcements
from qim.adapters.etcd.connection import (
    CALL_MS,
    EtcdConnection,
    NotApplied,
    Unanswered,
)
from qim.adapters.etcd.instances import InstanceNumbers
from qim.adapters.etcd.keys import Keys
from qim.adapters.etcd.leases import Leases
from qim.adapters.etcd.shared import SharedNumbers
from qim.adapters.etcd.starting import check_clock, check_server
from qim.adapters.etcd.watch import Noticed, Watch
from qim.adapters.tls.outgoing import OutgoingFiles, OutgoingTls
from qim.core.ports.completion import Completion, Failed, FailReason, Unknown
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Granted,
    RaiseEpoch,
    ReadLease,
    RegisterBarrier,
    RegistryReply,
    RegistryRequest,
    Release,
    Renew,
    Renewed,
    Resource,
)

Answer = Callable[[RegistryReply | Completion], None]
REQUESTS_MAX: Final = 512
"""In flight together; what comes beyond is refused at once."""
BACKGROUND_MAX: Final = 256
PREFIX: Final = "/qim/"


class EtcdRegistry:
    """``start``, then ``submit`` from the event loop; ``answer`` is called on the loop exactly once.

    ``endpoints``: host:port of the members, with http:// or https:// before it if one likes. With ``watch`` the lease
    keeper is told of instances that come and go, of leases that others take, and of those that are free again.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        loop: AbstractEventLoop,
        *,
        tls: OutgoingTls | None = None,
        user: str | None = None,
        password: str | None = None,
        call_ms: int = CALL_MS,
    ) -> None:
        self._loop = loop
        self._call_ms = call_ms
        self._endpoints = tuple(_host_and_port(endpoint) for endpoint in endpoints)
        if tls is None and any(endpoint.startswith("https://") for endpoint in endpoints):
            tls = OutgoingTls("etcd", OutgoingFiles())
        self._tls = tls
        self._keys = Keys(prefix if prefix.endswith("/") else f"{prefix}/")
        self._connection = EtcdConnection(
            self._endpoints, loop, tls=tls, user=user, password=password
        )
        self._leases = Leases(self._connection, self._keys, self._in_background)
        self._announcements = Announcements(self._connection, self._keys, self._leases)
        self._watch: Watch | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._behind: set[asyncio.Task[None]] = set()
        self._closed = False
        self._held: set[Resource] = set()
        self._answers: dict[tuple[str, str], int] = {}
        self._busy: dict[str, float] = {}
        self._slowest: dict[str, float] = {}

    async def start(self) -> None:
        """Check the server. Raises StartRefused."""
        await check_server(self._connection, self._keys, self._tls)

    def watch(self, tell: Callable[[Noticed], None]) -> None:
        """From now on tell, once, what the keeper of this process would otherwise learn seconds later."""
        assert self._watch is None, "one keeper a process"
        parts = (self._connection, self._keys, self._announcements)
        self._watch = Watch(*parts, tell, self._loop)
        self._watch.start()

    async def check_clock(self, wall_ms: int, ahead_max_ms: int) -> int | None:
        """By how many ms ``wall_ms`` is ahead of etcd's clock; None where etcd doesn't tell. Raises StartRefused."""
        return await check_clock(self._connection.endpoint, self._tls, wall_ms, ahead_max_ms)

    async def read_shared(self) -> dict[str, str]:
        """The numbers as they stand, written by nobody here. Raises StartRefused."""
        shared = SharedNumbers(self._connection, self._keys, self._endpoints)
        return await shared.read(self._connection.within(self._call_ms))

    async def replace_shared(self, numbers: dict[str, str]) -> None:
        """The operator's tools alone: a topic that was made anew has another id. Raises StartRefused."""
        shared = SharedNumbers(self._connection, self._keys, self._endpoints)
        await shared.replace(numbers, self._connection.within(self._call_ms))

    async def fix_shared(
        self, numbers: dict[str, str], *, commands: dict[str, str] | None = None
    ) -> None:
        """Write them at first start, compare them later. Raises StartRefused naming each difference."""
        shared = SharedNumbers(self._connection, self._keys, self._endpoints)
        await shared.fix(numbers, commands or {}, self._connection.within(self._call_ms))

    async def lease_instance_number(
        self, owner: str, address: str, ttl_ms: int, *, number: int | None = None
    ) -> tuple[int, int]:
        """(number, epoch): a free writer instance number, or the one that was configured. Raises StartRefused."""
        numbers = InstanceNumbers(self._connection, self._keys, self._leases)
        return await numbers.lease(owner, address, ttl_ms, number, self._call_ms)

    def submit(self, request: RegistryRequest, answer: Answer) -> None:
        """See ports/registry.py."""
        if self._closed or len(self._requests) >= REQUESTS_MAX:
            self._told(request, Failed(op=request.op, why=FailReason.OVERLOADED), 0.0, answer)
            return
        task = self._loop.create_task(self._run(request, answer))
        self._requests.add(task)
        task.add_done_callback(partial(self._ended, request, answer))

    def _ended(self, request: RegistryRequest, answer: Answer, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        if task.cancelled():
            # Before its first step, so that it could not answer for itself.
            self._told(request, Failed(op=request.op, why=FailReason.CANCELLED), 0.0, answer)

    async def close(self) -> None:
        """Answer what is in flight as Failed or Unknown, cut the connections."""
        self._closed = True
        if self._watch is not None:
            await self._watch.stop()
        tasks = (*self._requests, *self._behind)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._connection.close()

    def connected(self) -> bool:
        """The watch stands; true as well before it does for the first time."""
        return self._watch is None or self._watch.up or not self._watch.has_stood

    def why(self) -> str:
        """What ended the watch last."""
        return "" if self._watch is None else self._watch.last_failure

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """(name, label, value): depth and capacity, answers by kind and outcome, time in them, leases held by role."""
        yield "registry_requests_inflight", "", len(self._requests)
        yield "registry_requests_inflight_max", "", REQUESTS_MAX
        yield "registry_reconnects", "", self._connection.reconnects
        yield "registry_watch_up", "", int(self._watch is not None and self._watch.up)
        for (kind, outcome), count in self._answers.items():
            yield "registry_answers", f"{kind}.{outcome}", count
        for kind, seconds in self._busy.items():
            yield "registry_busy_seconds", kind, seconds
            yield "registry_slowest_seconds", kind, self._slowest[kind]
        self._slowest = dict.fromkeys(self._slowest, 0.0)
        held: dict[str, int] = {}
        for resource in sorted(self._held):
            held[resource.role.value] = held.get(resource.role.value, 0) + 1
        for role, count in held.items():
            yield "registry_leases_held", role, count

    # ------------------------------------------------------------ one request

    async def _run(self, request: RegistryRequest, answer: Answer) -> None:
        began = self._loop.time()
        reply: RegistryReply | Completion
        try:
            reply = await self._handle(request, self._connection.within(self._call_ms))
        except NotApplied as error:
            reply = Failed(op=request.op, why=error.why)
        except msgspec.MsgspecError:
            # Somebody else's bytes under our prefix: read, before anything was changed.
            reply = Failed(op=request.op, why=FailReason.INVALID)
        except (Unanswered, asyncio.CancelledError):
            reply = Unknown(op=request.op)
        except Exception:
            # Our own bug: seen by the loop's handler, and the asker must not wait for ever.
            self._told(request, Unknown(op=request.op), self._loop.time() - began, answer)
            raise
        if isinstance(request, ReadLease) and isinstance(reply, Unknown):
            reply = Failed(op=request.op, why=FailReason.CANCELLED)
        self._told(request, reply, self._loop.time() - began, answer)

    def _handle(self, request: RegistryRequest, within: float) -> Awaitable[RegistryReply]:
        match request:
            case Acquire():
                return self._leases.acquire(request, within)
            case Renew():
                return self._leases.renew(request, within)
            case Release():
                return self._leases.release(request, within)
            case RaiseEpoch():
                return self._leases.raise_epoch(request, within)
            case ReadLease():
                return self._leases.read(request, within)
            case RegisterBarrier():
                return self._leases.register(request, within)
            case Announce():
                return self._announcements.announce(request, within)
            case _:
                assert_never(request)

    def _told(
        self,
        request: RegistryRequest,
        reply: RegistryReply | Completion,
        seconds: float,
        answer: Answer,
    ) -> None:
        kind, outcome = type(request).__name__, type(reply).__name__
        self._answers[kind, outcome] = self._answers.get((kind, outcome), 0) + 1
        self._busy[kind] = self._busy.get(kind, 0.0) + seconds
        self._slowest[kind] = max(self._slowest.get(kind, 0.0), seconds)
        match request, reply:
            case Acquire(), Granted():
                self._held.add(request.resource)
            case Renew(), Renewed():
                self._held.difference_update(reply.lost)
            case Release(), _:
                self._held.difference_update(resource for resource, _ in request.leases)
            case _:
                pass
        answer(reply)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Something nobody waits for and that time does by itself, too: revoking an etcd lease."""
        if self._closed or len(self._behind) >= BACKGROUND_MAX:
            work.close()
            return

        async def run() -> None:
            try:
                await work
            except (NotApplied, Unanswered):
                return

        task: asyncio.Task[Any] = self._loop.create_task(run())
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)


def _host_and_port(endpoint: str) -> str:
    return endpoint.removeprefix("https://").removeprefix("http://").rstrip("/")
