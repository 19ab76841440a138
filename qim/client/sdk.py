"""``Client``: what a product embeds. Send, sync, listen, groups, history, over one connection that heals itself.

A send is durable in the local store before it is transmitted; its result says where it stands: PENDING (kept and sent
again until settled, across restarts too), ACKED (durable on the server, with coordinates) or FAILED (with an error code).
"""

import asyncio
import os
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from msgspec import Struct

from qim.client.driver import ClientDriver, wall_ms
from qim.client.local_store import LocalStore
from qim.core.client.vocabulary import (
    CaughtUp,
    ClientConfig,
    ClientNotice,
    ClientState,
    GroupChangeRequested,
    GroupSettled,
    HistoryArrived,
    HistoryRequested,
    MembersArrived,
    MembersRequested,
    MessageApplied,
    OfflineWanted,
    OnlineWanted,
    QueryFailed,
    SendQueued,
    SendRefused,
    SendRequested,
    SendSettled,
    StateChanged,
    SyncRequested,
)
from qim.core.contract.entities import MembershipOp, MessageKind, RetentionClass
from qim.core.contract.errors import ErrorCode
from qim.core.ports.local import Started
from qim.core.ports.local_store import Coordinates, LocalMessage

TICKETS_MAX: Final = 64
UNTOLD_PAGE: Final = 500

Value = TypeVar("Value")


class SendStatus(StrEnum):
    """Where a send stands."""

    PENDING = "pending"
    ACKED = "acked"
    FAILED = "failed"


class Sent(Struct, frozen=True, kw_only=True):
    """``coordinates`` only when ACKED, ``code`` (ErrorCode name) only when FAILED."""

    client_message_id: bytes
    status: SendStatus
    coordinates: Coordinates | None = None
    code: str = ""


class GroupResult(Struct, frozen=True, kw_only=True):
    """A settled membership change; version 0: done, but the version was not told."""

    conversation_id: bytes
    version: int
    control_seq: int
    noop: bool


class SendFailed(Exception):
    """The server refused for good; ``code`` says why and whether a new attempt with a new id makes sense."""

    def __init__(self, code: int) -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{self.code.name}")


class NotConnected(Exception):
    """No connection in time, or one that can't be had: the state and its reason are in the message."""


class Client:
    """One device of one user. Use as an async context manager; one event loop only."""

    def __init__(
        self,
        *,
        user_id: int,
        access_token: str,
        addresses: tuple[str, ...],
        store_path: Path,
        device_id: bytes = b"default",
        tenant_id: str = "default",
        config: ClientConfig | None = None,
    ) -> None:
        self.config = config or ClientConfig(
            user_id=user_id,
            device_id=device_id,
            access_token=access_token,
            addresses=addresses,
            tenant_id=tenant_id,
        )
        self._store_path = store_path
        self._driver: ClientDriver | None = None
        self._state = StateChanged(state=ClientState.OFFLINE)
        self._changed = asyncio.Event()
        self._sends: dict[bytes, asyncio.Future[Sent]] = {}
        self._queued: dict[bytes, asyncio.Future[None]] = {}
        self._groups: dict[bytes, asyncio.Future[GroupResult]] = {}
        self._tickets: dict[int, asyncio.Future[HistoryArrived | MembersArrived]] = {}
        self._next_ticket = 1
        self._syncs: list[asyncio.Future[int]] = []
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._driver = ClientDriver(self.config, self._store_path, loop, self._on_notice)
        self._driver.post(Started(address="", wall=wall_ms()))
        self._driver.post(OnlineWanted(wall=wall_ms()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; pending sends stay in the local store and go out at the next start."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.post(OfflineWanted())
            await asyncio.sleep(0)
            await driver.stop()
        for future in self._open_futures():
            future.cancel()

    @property
    def state(self) -> StateChanged:
        """The last state told by the machine, with its reason."""
        return self._state

    async def online(self, timeout: float = 15.0) -> None:
        """Wait until ONLINE. Raises NotConnected after ``timeout`` seconds or at once when the server refused for good."""
        try:
            async with asyncio.timeout(timeout):
                while self._state.state != ClientState.ONLINE:
                    if self._state.state == ClientState.STOPPED:
                        raise NotConnected(self._why())
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            where = ", ".join(self.config.addresses)
            raise NotConnected(
                f"not online at {where} after {timeout:g} s: {self._why()}"
            ) from None

    async def send(
        self,
        body: str | bytes,
        *,
        to: int | None = None,
        conversation_id: bytes | None = None,
        client_message_id: bytes | None = None,
        kind: MessageKind = MessageKind.TEXT,
        custom_type: str = "",
        retention_class: RetentionClass = RetentionClass.DEFAULT,
        timeout: float | None = 15.0,
    ) -> Sent:
        """Send and wait until settled, at most ``timeout`` seconds (None: only until durable here): then PENDING.

        Raises SendFailed when it was never taken (too many pending rows, bad arguments).
        """
        cmid = client_message_id or os.urandom(16)
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[Sent] = loop.create_future()
        queued: asyncio.Future[None] = loop.create_future()
        self._sends[cmid], self._queued[cmid] = settled, queued
        request = SendRequested(
            client_message_id=cmid,
            conversation_id=conversation_id,
            peer_user_id=to,
            kind=int(kind),
            custom_type=custom_type,
            body=body.encode() if isinstance(body, str) else body,
            retention_class=int(retention_class),
            wall=wall_ms(),
        )
        self._alive().post(request)
        try:
            await queued
            if timeout is None:
                return Sent(client_message_id=cmid, status=SendStatus.PENDING)
            return await asyncio.wait_for(settled, timeout)
        except TimeoutError:
            return Sent(client_message_id=cmid, status=SendStatus.PENDING)
        finally:
            self._sends.pop(cmid, None)
            self._queued.pop(cmid, None)

    async def create_group(
        self, members: tuple[int, ...], name: str = "", meta: bytes = b""
    ) -> GroupResult:
        """A new group of which this user is the creator. Raises SendFailed, TimeoutError (it stays pending)."""
        return await self._group(MembershipOp.CREATE, None, members, name, meta)

    async def add_members(self, conversation_id: bytes, members: tuple[int, ...]) -> GroupResult:
        """Add users. Raises SendFailed, TimeoutError."""
        return await self._group(MembershipOp.ADD, conversation_id, members)

    async def remove_members(self, conversation_id: bytes, members: tuple[int, ...]) -> GroupResult:
        """Remove users. Raises SendFailed, TimeoutError."""
        return await self._group(MembershipOp.REMOVE, conversation_id, members)

    async def leave(self, conversation_id: bytes) -> GroupResult:
        """Leave a group. Raises SendFailed, TimeoutError."""
        return await self._group(MembershipOp.LEAVE, conversation_id, ())

    async def sync(self, timeout: float = 30.0) -> int:
        """Pull until everything that stood when this was called is applied; returns covered_through_seq."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._syncs.append(future)
        self._alive().post(SyncRequested())
        try:
            return await asyncio.wait_for(future, timeout)
        except TimeoutError:
            raise NotConnected(f"not in sync after {timeout:g} s: {self._why()}") from None
        finally:
            if future in self._syncs:
                self._syncs.remove(future)

    async def take_new(self) -> list[LocalMessage]:
        """Messages applied and not yet taken by any call, in order of arrival; a restart forgets none."""
        return list(await self._alive().on_store_thread(_take))

    async def messages(self) -> AsyncIterator[LocalMessage]:
        """Every message once, in order of arrival, for as long as the client lives; the own ones of other devices too."""
        while self._driver is not None:
            self._arrived.clear()
            for message in await self.take_new():
                yield message
            await self._arrived.wait()

    async def history(
        self,
        conversation_id: bytes,
        *,
        anchor: int = 0,
        direction: int = 0,
        limit: int = 50,
        timeout: float = 15.0,
    ) -> HistoryArrived:
        """A page of PULL_HISTORY (direction 0 older, 1 newer, 2 around). Raises SendFailed with the server's code."""
        ticket, future = self._ticket()
        request = HistoryRequested(
            ticket=ticket,
            conversation_id=conversation_id,
            anchor=anchor,
            direction=direction,
            limit=limit,
        )
        self._alive().post(request)
        answer = await asyncio.wait_for(future, timeout)
        assert isinstance(answer, HistoryArrived)
        return answer

    async def members(
        self, conversation_id: bytes, *, since_version: int = 0, timeout: float = 15.0
    ) -> MembersArrived:
        """Who is in a group. Raises SendFailed with the server's code."""
        ticket, future = self._ticket()
        self._alive().post(
            MembersRequested(
                ticket=ticket, conversation_id=conversation_id, since_version=since_version
            )
        )
        answer = await asyncio.wait_for(future, timeout)
        assert isinstance(answer, MembersArrived)
        return answer

    async def _group(
        self,
        operation: MembershipOp,
        conversation_id: bytes | None,
        members: tuple[int, ...],
        name: str = "",
        meta: bytes = b"",
        timeout: float = 15.0,
    ) -> GroupResult:
        cmid = os.urandom(16)
        future: asyncio.Future[GroupResult] = asyncio.get_running_loop().create_future()
        self._groups[cmid] = future
        request = GroupChangeRequested(
            client_message_id=cmid,
            operation=int(operation),
            conversation_id=conversation_id,
            members=members,
            name=name,
            meta=meta,
            wall=wall_ms(),
        )
        self._alive().post(request)
        try:
            return await asyncio.wait_for(future, timeout)
        finally:
            self._groups.pop(cmid, None)

    def _ticket(self) -> tuple[int, "asyncio.Future[HistoryArrived | MembersArrived]"]:
        if len(self._tickets) >= TICKETS_MAX:
            raise SendFailed(ErrorCode.RATE_LIMITED)
        ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        future: asyncio.Future[HistoryArrived | MembersArrived] = (
            asyncio.get_running_loop().create_future()
        )
        self._tickets[ticket] = future
        future.add_done_callback(lambda _: self._tickets.pop(ticket, None))
        return ticket, future

    def _alive(self) -> ClientDriver:
        if self._driver is None:
            raise NotConnected("the client is closed; use it as `async with Client(...)`")
        return self._driver

    def _why(self) -> str:
        told = ClientState(self._state.state).name
        if self._state.refused:
            return f"{told}, refused with {ErrorCode(self._state.reason).name}"
        return told

    def _open_futures(self) -> "list[asyncio.Future[Any]]":
        open_: list[asyncio.Future[Any]] = list(self._syncs)
        open_ += [*self._sends.values(), *self._queued.values()]
        open_ += [*self._groups.values(), *self._tickets.values()]
        return open_

    def _on_notice(self, notice: ClientNotice) -> None:
        match notice:
            case MessageApplied():
                self._arrived.set()
            case SendSettled():
                self._settled(notice)
            case SendQueued():
                _resolve(self._queued.get(notice.client_message_id), None)
            case SendRefused():
                self._refused(notice)
            case CaughtUp():
                for future in self._syncs:
                    _resolve(future, notice.covered_through)
            case GroupSettled():
                self._group_settled(notice)
            case StateChanged():
                self._state = notice
                self._changed.set()
            case HistoryArrived() | MembersArrived() | QueryFailed():
                self._query(notice)

    def _settled(self, notice: SendSettled) -> None:
        sent = Sent(
            client_message_id=notice.client_message_id,
            status=SendStatus.ACKED if notice.coordinates else SendStatus.FAILED,
            coordinates=notice.coordinates,
            code=ErrorCode(notice.code).name if notice.code else "",
        )
        _resolve(self._queued.get(notice.client_message_id), None)
        _resolve(self._sends.get(notice.client_message_id), sent)

    def _refused(self, notice: SendRefused) -> None:
        waiting: list[asyncio.Future[Any] | None] = [
            self._queued.get(notice.client_message_id),
            self._groups.get(notice.client_message_id),
        ]
        for future in waiting:
            if future is not None and not future.done():
                future.set_exception(SendFailed(notice.code))

    def _group_settled(self, notice: GroupSettled) -> None:
        future = self._groups.get(notice.client_message_id)
        if future is None or future.done():
            return
        if notice.code:
            future.set_exception(SendFailed(notice.code))
            return
        result = GroupResult(
            conversation_id=notice.conversation_id,
            version=notice.version,
            control_seq=notice.control_seq,
            noop=notice.noop,
        )
        future.set_result(result)

    def _query(self, notice: HistoryArrived | MembersArrived | QueryFailed) -> None:
        future = self._tickets.get(notice.ticket)
        if future is None or future.done():
            return
        if isinstance(notice, QueryFailed):
            future.set_exception(SendFailed(notice.code))
        else:
            future.set_result(notice)


def _take(store: LocalStore) -> list[LocalMessage]:
    return store.take_untold(UNTOLD_PAGE)


def _resolve(future: "asyncio.Future[Value] | None", value: Value) -> None:
    if future is not None and not future.done():
        future.set_result(value)
