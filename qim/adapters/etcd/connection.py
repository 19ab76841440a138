"""Calls to etcd over gRPC: several endpoints, one in use; time-outs; tokens; and what a call that failed means.

A call that was never written to a connection that stood is `NotApplied`; one that was written and not answered is
`Unanswered`, unless it only asked. Nothing that may change the registry is sent twice.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from aetcd import rpc

from qim.adapters.tls.outgoing import Outgoing, OutgoingTls
from qim.core.ports.completion import FailReason

CALL_MS: Final = 2_000
"""Of one request to the registry with all its calls; below lease TTL less renewal and margin (contract.md, Parameters)."""
CONNECT_MS: Final = 700
"""How long one endpoint may take to be ready before the next is tried."""
PAUSE_MS: Final = 50
RETIRED_MS: Final = 15_000
"""How long a channel of earlier certificates stays: longer than any call, START_MS with all its tries included."""
RETIRED_MAX: Final = 8
OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A dead host must not be waited for until TCP gives up; etcd takes a ping every 5 s or more.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The registry is in our own network whatever http_proxy says.
    ("grpc.enable_http_proxy", 0),
)
Code = grpc.StatusCode
READY: Final = grpc.ChannelConnectivity.READY
REFUSALS: Final = {
    Code.INVALID_ARGUMENT: FailReason.INVALID,
    Code.PERMISSION_DENIED: FailReason.UNAUTHORISED,
    Code.UNAUTHENTICATED: FailReason.UNAUTHORISED,
    Code.UNIMPLEMENTED: FailReason.INVALID,
    Code.NOT_FOUND: FailReason.INVALID,
    Code.FAILED_PRECONDITION: FailReason.INVALID,
    Code.OUT_OF_RANGE: FailReason.INVALID,
}
"""What etcd answers before it applies anything."""
STALE_TOKEN: Final = ("invalid auth token", "revision in header is old", "user name is empty")
NO_TOKEN: Final = "user name is empty"


class NotApplied(Exception):
    """Surely not applied."""

    def __init__(self, why: FailReason, detail: str = "") -> None:
        super().__init__(detail or why.value)
        self.why = why


class LeaseUnknown(NotApplied):
    """The etcd lease that a call names ran out or was revoked; nothing was applied."""


class Unanswered(Exception):
    """It may have been applied, or may still be."""


class Stubs:
    """One endpoint: its channel and the services on it. ``tls``: what the channel was made with, for good."""

    def __init__(self, endpoint: str, tls: Outgoing | None) -> None:
        self.endpoint = endpoint
        self.tls = tls
        self.channel = (
            rpc.insecure_channel(endpoint, options=OPTIONS)
            if tls is None
            else rpc.secure_channel(endpoint, _credentials(tls), options=OPTIONS)
        )
        self.kv = rpc.KVStub(self.channel)
        self.lease = rpc.LeaseStub(self.channel)
        self.watch = rpc.WatchStub(self.channel)
        self.auth = rpc.AuthStub(self.channel)
        self.maintenance = rpc.MaintenanceStub(self.channel)


def _credentials(tls: Outgoing) -> Any:
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca or None,
        private_key=tls.key or None,
        certificate_chain=tls.certificate or None,
    )


Method = Callable[[Stubs], Callable[..., Awaitable[Any]]]


class EtcdConnection:
    """``ask`` and ``change``; both take the loop time by which the answer must be there. One event loop."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        loop: AbstractEventLoop,
        *,
        tls: OutgoingTls | None,
        user: str | None,
        password: str | None,
    ) -> None:
        assert endpoints, "no endpoint"
        assert (user is None) == (password is None), "user and password, or neither"
        self._loop = loop
        self._tls = tls
        self._endpoints = endpoints
        self._stubs: dict[int, Stubs] = {}
        """By place in ``endpoints``; made when first used, since a channel belongs to the loop that runs then."""
        self._retired: dict[Stubs, asyncio.TimerHandle] = {}
        """Of an earlier reading of the certificates, with what closes them once their calls have ended."""
        self._closing: set[asyncio.Task[None]] = set()
        self._at = 0
        self._user, self._password = user, password
        self._token: str | None = None
        self._closed = False
        self.reconnects = 0
        """How often an endpoint was given up for the next one (or, where it is alone, for another try)."""

    @property
    def endpoint(self) -> str:
        """In use now."""
        return self._endpoints[self._at]

    def within(self, ms: int) -> float:
        """The loop time in ``ms``."""
        return self._loop.time() + ms / 1000

    async def ask(self, method: Method, request: Any, within: float) -> Any:
        """Answered by some endpoint, or NotApplied: nothing that is asked here changes what the port is about."""
        pause = PAUSE_MS / 1000
        while True:
            stubs, metadata = await self._usable(within)
            share = 2 if len(self._endpoints) > 1 else 1
            left = (within - self._loop.time()) / share
            try:
                return await method(stubs)(request, timeout=max(left, 0.001), metadata=metadata)
            except rpc.AioRpcError as error:
                self._judge(error)
                again = self._loop.time() + pause
                if again >= within:
                    raise NotApplied(FailReason.UNREACHABLE, str(error.details())) from error
            except asyncio.CancelledError:
                raise NotApplied(FailReason.CANCELLED) from None
            await asyncio.sleep(pause)
            pause *= 2

    async def change(self, method: Method, request: Any, within: float) -> Any:
        """Sent at most once, but for a token that was refused. Raises NotApplied, Unanswered."""
        for last in (False, True):
            stubs, metadata = await self._usable(within)
            left = max(within - self._loop.time(), 0.001)
            try:
                return await method(stubs)(request, timeout=left, metadata=metadata)
            except rpc.AioRpcError as error:
                if self._judge(error) and not last:
                    continue  # refused for its token, so not applied
                raise Unanswered(f"{error.code()}: {error.details()}") from error
            except asyncio.CancelledError:
                raise Unanswered("cancelled") from None
        raise AssertionError

    async def keep_alive(self, leases: Sequence[int], within: float) -> frozenset[int]:
        """Those of these etcd leases that still stand, each now for its whole TTL again. Raises NotApplied, Unanswered."""
        stubs, metadata = await self._usable(within)
        requests = [rpc.LeaseKeepAliveRequest(ID=lease) for lease in leases]
        left = max(within - self._loop.time(), 0.001)
        kept: list[int] = []
        try:
            answers = stubs.lease.LeaseKeepAlive(requests, timeout=left, metadata=metadata)
            async for answer in answers:
                if answer.TTL > 0:
                    kept.append(answer.ID)
        except rpc.AioRpcError as error:
            self._judge(error)
            raise Unanswered(f"{error.code()}: {error.details()}") from error
        except asyncio.CancelledError:
            raise Unanswered("cancelled") from None
        return frozenset(kept)

    async def stream(self, within: float) -> tuple[Stubs, Any]:
        """Services that stand now and the metadata for a stream of one's own. Raises NotApplied."""
        return await self._usable(within)

    def stream_failed(self, error: Any) -> None:
        """As for a call: turn to the next endpoint. Raises NotApplied where etcd refused."""
        self._judge(error)

    async def close(self) -> None:
        """Cut all channels; calls under way end unanswered."""
        self._closed = True
        for timer in self._retired.values():
            timer.cancel()
        for stubs in (*self._stubs.values(), *self._retired):
            await stubs.channel.close()
        self._retired.clear()
        await asyncio.gather(*self._closing)

    # ------------------------------------------------------------ within

    async def _usable(self, within: float) -> tuple[Stubs, Any]:
        try:
            stubs = await self._ready(within)
            if self._user is None:
                return stubs, None
            if self._token is None:
                self._token = await self._authenticate(stubs, within)
            return stubs, (("token", self._token),)
        except asyncio.CancelledError:
            raise NotApplied(FailReason.CANCELLED) from None

    async def _ready(self, within: float) -> Stubs:
        """An endpoint whose connection stands; each is given CONNECT_MS, round and round."""
        while True:
            if self._closed:
                raise NotApplied(FailReason.CANCELLED, "closed")
            stubs = self._present()
            until = min(within, self.within(CONNECT_MS))
            if await self._stands(stubs.channel, until):
                return stubs
            if self._loop.time() >= within:
                raise NotApplied(FailReason.UNREACHABLE, f"not reachable at {stubs.endpoint}")
            self._turn()
            await asyncio.sleep(PAUSE_MS / 1000)

    def _present(self) -> Stubs:
        """Of the endpoint in use. A channel dials anew by itself with what it was made with, so other certificates need another."""
        tls = None if self._tls is None else self._tls.current
        stubs = self._stubs.get(self._at)
        if stubs is not None and stubs.tls is not tls:
            self._retire(stubs)
            stubs = None
        if stubs is None:
            stubs = self._stubs[self._at] = Stubs(self.endpoint, tls)
        return stubs

    def _retire(self, stubs: Stubs) -> None:
        """Calls on it may end; what lasts longer, a watch, is cut and begins again elsewhere."""
        while len(self._retired) >= RETIRED_MAX:
            self._cut(next(iter(self._retired)))
        self._retired[stubs] = self._loop.call_later(RETIRED_MS / 1000, self._cut, stubs)

    def _cut(self, stubs: Stubs) -> None:
        self._retired.pop(stubs).cancel()
        task = self._loop.create_task(stubs.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _stands(self, channel: Any, until: float) -> bool:
        alone = len(self._endpoints) == 1
        while True:
            state = channel.get_state(try_to_connect=True)
            if state is READY:
                return True
            if state is grpc.ChannelConnectivity.SHUTDOWN:
                raise NotApplied(FailReason.CANCELLED, "closed")
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not alone:
                return False
            left = until - self._loop.time()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(left):
                    await channel.wait_for_state_change(state)
            except TimeoutError:
                return False

    def _turn(self) -> None:
        self._at = (self._at + 1) % len(self._endpoints)
        self.reconnects += 1

    def _judge(self, error: Any) -> bool:
        """True: only the token was refused. False: nobody knows. Raises NotApplied where etcd refused to do it."""
        code, details = error.code(), error.details() or ""
        if self._user is not None and any(words in details for words in STALE_TOKEN):
            self._token = None
            return True
        if code is Code.NOT_FOUND and "lease not found" in details:
            raise LeaseUnknown(FailReason.INVALID, details) from error
        if code is Code.RESOURCE_EXHAUSTED and details.startswith("etcdserver:"):
            full = "space" in details
            why = FailReason.OUT_OF_MEMORY if full else FailReason.OVERLOADED
            raise NotApplied(why, details) from error
        if code in REFUSALS:
            why = FailReason.UNAUTHORISED if NO_TOKEN in details else REFUSALS[code]
            raise NotApplied(why, details) from error
        self._turn()
        return False

    async def _authenticate(self, stubs: Stubs, within: float) -> str:
        request = rpc.AuthenticateRequest(name=self._user, password=self._password)
        left = max(within - self._loop.time(), 0.001)
        try:
            answer = await stubs.auth.Authenticate(request, timeout=left)
        except rpc.AioRpcError as error:
            refused = error.code() not in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
            why = FailReason.UNAUTHORISED if refused else FailReason.UNREACHABLE
            if not refused:
                self._turn()
            raise NotApplied(why, str(error.details())) from error
        return str(answer.token)
