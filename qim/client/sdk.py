"""``Client``: what a product embeds. Send, sync, listen, groups, history, over one connection that heals itself.

A send is durable in the local store before it is transmitted; its result says where it stands: PENDING (kept and sent
again until settled, across restarts too), ACKED (durable on the server, with coordinates) or FAILED (with an error code).
A call that is cancelled or times out stops waiting, and takes nothing back.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Self

from qim.client import given
from qim.client.driver import ClientDriver, wall_ms
from qim.client.group_calls import GroupCalls
from qim.client.handover import Handover
from qim.client.local_store import LocalStore, Outgoing
from qim.client.repeated import settled_before
from qim.client.results import NotConnected, SendStatus, Sent, code_name, state_text
from qim.client.session_calls import SessionCalls
from qim.client.tls import ClientTls
from qim.client.waiting import Waiting, until_kept
from qim.core.client.vocabulary import (
    CaughtUp,
    ClientConfig,
    ClientNotice,
    ClientState,
    DevicesTold,
    GroupSettled,
    HistoryArrived,
    HistoryRequested,
    MembersArrived,
    MessageApplied,
    OfflineWanted,
    OnlineWanted,
    OverlayRequested,
    QueryFailed,
    ReadByArrived,
    SendQueued,
    SendRefused,
    SendRequested,
    SendSettled,
    SessionsReady,
    StateChanged,
    StateKept,
    StateSettled,
    SyncRequested,
    TokenRenewed,
)
from qim.core.contract.entities import MessageKind, RetentionClass
from qim.core.contract.errors import ErrorCode
from qim.core.ports.local import Started
from qim.core.ports.local_store import LocalMessage
from qim.core.ports.observe import Violation


class Client(SessionCalls, GroupCalls):
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
        tls: ClientTls | None = None,
    ) -> None:
        """addresses: host:port, tried in turn. store_path: this device's own file, for it alone. tls None: plaintext.

        config: instead of the values before it. Raises TypeError, ValueError on what no server could take.
        """
        self.config = given.checked(
            config
            or ClientConfig(
                user_id=user_id,
                device_id=device_id,
                access_token=access_token,
                addresses=addresses,
                tenant_id=tenant_id,
            )
        )
        self._store_path = Path(store_path)
        self._tls = tls
        self._driver: ClientDriver | None = None
        self._state = StateChanged(state=ClientState.OFFLINE)
        self._changed = asyncio.Event()
        self._waiting = Waiting()
        self._handover = Handover()
        self._ready = False
        self._devices = ()
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Raises LocalStoreUnusable: the file is in use, another user's, from a later version, or no store."""
        loop = asyncio.get_running_loop()
        self._driver = ClientDriver(
            self.config, self._store_path, loop, self._on_notice, self._on_death, self._tls
        )
        self._handover.begin(self._driver)
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

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What this device's own checks found since it was opened: each is a broken promise of Q-IM, so none may be."""
        return () if self._driver is None else tuple(self._driver.violations)

    async def close(self) -> None:
        """Disconnect; pending sends stay in the local store and go out at the next start. Again: nothing."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        driver.post(OfflineWanted())
        await asyncio.sleep(0)  # the machine has its step, and says goodbye
        try:
            await self._handover.end()
        finally:
            self._waiting.end(NotConnected("the client was closed"))
            self._changed.set()
            await driver.stop()

    @property
    def state(self) -> StateChanged:
        """The last state told by the machine, with its reason."""
        return self._state

    async def next_state(self) -> StateChanged:
        """Wait until the state changes or the client is closed. Raises NotConnected where it is closed already."""
        self._alive()
        self._changed.clear()
        await self._changed.wait()
        return self._state

    async def online(self, timeout: float = 15.0) -> None:
        """Wait until ONLINE. Raises NotConnected after ``timeout`` seconds or at once when the server refused for good."""
        try:
            async with asyncio.timeout(timeout):
                while self._state.state != ClientState.ONLINE:
                    self._alive()
                    if self._state.state == ClientState.STOPPED:
                        raise NotConnected(state_text(self._state), refused=True)
                    await self.next_state()
        except TimeoutError:
            where = ", ".join(self.config.addresses)
            raise NotConnected(
                f"not online at {where} after {timeout:g} s: {state_text(self._state)}{self._fault()}"
            ) from None

    async def reconnect(self) -> None:
        """The user's act that ends a final KICKED(REPLACED)."""
        self._alive().post(OnlineWanted(wall=wall_ms()))
        await asyncio.sleep(0)  # the machine has its step: ``state`` is no longer the old one

    async def renew_token(self, access_token: str) -> None:
        """A new access token; a client that STOPPED for want of one connects again."""
        token = given.access_token(access_token)
        self._alive().post(TokenRenewed(access_token=token, wall=wall_ms()))
        await asyncio.sleep(0)

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

        PENDING at once where the client is STOPPED, or closed meanwhile. Raises SendFailed when it was never taken (too
        many pending rows, values out of bounds, IDEMPOTENCY_CONFLICT where a row with this client_message_id is pending:
        see ``settled``), TypeError and ValueError on values of another type, LocalStoreUnusable where the local store
        takes nothing. Given again under its client_message_id, a settled send is answered as it was, and not sent.
        """
        self._alive()
        cmid = given.octets_or_none("client_message_id", client_message_id) or os.urandom(16)
        request = SendRequested(
            client_message_id=cmid,
            conversation_id=given.octets_or_none("conversation_id", conversation_id),
            peer_user_id=None if to is None else given.whole("to", to),
            kind=given.whole("kind", kind),
            custom_type=given.text("custom_type", custom_type),
            body=given.body(body),
            retention_class=given.whole("retention_class", retention_class),
            wall=wall_ms(),
        )
        if client_message_id is not None:
            known = await settled_before(self._alive(), self.config, request)
            if known is not None:
                return _sent(cmid, known)
        return await self._submitted(cmid, request, timeout)

    async def _submitted(
        self,
        client_message_id: bytes,
        request: SendRequested | OverlayRequested,
        timeout: float | None,
    ) -> Sent:
        pending = Sent(client_message_id=client_message_id, status=SendStatus.PENDING)
        with self._waiting.send(client_message_id) as (queued, settled):
            self._alive().post(request)
            await until_kept(queued)
            if timeout is None or (self._stopped() and not settled.done()):
                return pending
            try:
                async with asyncio.timeout(timeout):
                    return await settled
            except (TimeoutError, NotConnected):
                return pending  # it is kept, also where the client was closed

    async def outcome(self, client_message_id: bytes) -> Sent | None:
        """Where a send or membership change of this device stands, also one of an earlier run; None: never taken."""
        key = given.octets("client_message_id", client_message_id)
        row = await self._alive().on_store_thread(lambda store: store.outgoing(key))
        return None if row is None else _sent(client_message_id, row)

    async def settled(self, client_message_id: bytes, *, timeout: float = 15.0) -> Sent | None:
        """As ``outcome``, waiting up to ``timeout`` seconds for what is pending."""
        with self._waiting.settled(client_message_id) as future:
            sent = await self.outcome(client_message_id)
            if sent is None or sent.status is not SendStatus.PENDING or self._stopped():
                return sent
            try:
                async with asyncio.timeout(timeout):
                    return await future
            except TimeoutError:
                return sent

    async def pending_count(self) -> int:
        """Sends and membership changes kept here and not settled yet."""
        return int(await self._alive().on_store_thread(LocalStore.pending_count))

    async def sync(self, timeout: float = 30.0) -> int:
        """Pull until everything that stood in this user's mailbox when this was called is applied; returns covered_through_seq.

        What was acked to its sender a moment ago may still be on its way there.
        States of other devices are asked for too; ``listed`` waits for them.
        """
        driver = self._alive()
        # What was ready before is not what is asked for now: the machine says it again once the states are here.
        self._ready = False
        driver.post(SyncRequested())
        # The step that takes the request may still say CaughtUp about what was pulled before it.
        await asyncio.sleep(0)
        with self._waiting.caught_up() as future:
            if self._stopped():
                raise NotConnected(state_text(self._state), refused=True)
            try:
                async with asyncio.timeout(timeout):
                    return await future
            except TimeoutError:
                raise NotConnected(
                    f"not in sync after {timeout:g} s: {state_text(self._state)}"
                ) from None

    async def take_new(self) -> list[LocalMessage]:
        """Messages applied and not yet taken by any call, in order of arrival, at most 500; a restart forgets none."""
        self._alive()
        return await self._handover.take()

    def messages(self, *, follow: bool = True) -> AsyncIterator[LocalMessage]:
        """Every message once, in order of arrival, for as long as the client lives; the own ones of other devices too.

        follow False: only what is here. A process killed in the middle shows the last ones (at most a page) again.
        """
        return self._handover.each(follow=follow)

    async def history(
        self,
        conversation_id: bytes,
        *,
        anchor: int = 0,
        direction: int = 0,
        limit: int = 50,
        timeout: float = 15.0,
    ) -> HistoryArrived:
        """A page of PULL_HISTORY beyond conversation_seq ``anchor``; direction: HistoryDirection (0 older, anchor 0 from the
        newest; 1 newer; 2 around). Raises SendFailed with the server's code (UNAVAILABLE: not connected now), TimeoutError.
        """
        driver = self._alive()
        with self._waiting.ticket() as (ticket, future):
            driver.post(
                HistoryRequested(
                    ticket=ticket,
                    conversation_id=given.octets("conversation_id", conversation_id),
                    anchor=given.whole("anchor", anchor),
                    direction=given.whole("direction", direction),
                    limit=given.whole("limit", limit),
                )
            )
            async with asyncio.timeout(timeout):
                answer = await future
        assert isinstance(answer, HistoryArrived)
        return answer

    def _fault(self) -> str:
        """Why there is no connection, as far as the driver knows."""
        driver = self._driver
        fault = (driver.store_fault or driver.dial_fault) if driver is not None else ""
        return f" ({fault})" if fault else ""

    def _stopped(self) -> bool:
        return self._state.state == ClientState.STOPPED

    def _alive(self) -> ClientDriver:
        if self._driver is None:
            raise NotConnected("the client is closed; use it as `async with Client(...)`")
        return self._driver

    def _on_death(self, error: Exception) -> None:
        """The machine failed one of its own asserts: whoever waits is told, what is stored stays."""
        self._state = StateChanged(
            state=ClientState.STOPPED,
            reason=ErrorCode.INTERNAL,
            refused=True,
            detail=f"the client died of {error!r}; open it again",
        )
        self._waiting.end(error)
        self._changed.set()
        self._handover.nothing_follows()

    def _on_notice(self, notice: ClientNotice) -> None:
        match notice:
            case MessageApplied():
                self._handover.arrived()
            case SendSettled():
                self._waiting.on_settled(notice)
            case SendQueued():
                self._waiting.on_queued(notice)
            case SendRefused():
                self._waiting.on_refused(notice)
            case CaughtUp():
                self._waiting.on_caught_up(notice)
            case GroupSettled():
                self._waiting.on_group(notice)
            case HistoryArrived() | MembersArrived() | ReadByArrived() | QueryFailed():
                self._waiting.on_answer(notice)
            case StateKept() | StateSettled():
                self._waiting.on_state(notice)
            case DevicesTold():
                self._devices = notice.devices
            case SessionsReady():
                self._ready = True
                self._waiting.on_listed(notice)
            case StateChanged():
                self._state = notice
                self._ready = self._ready and notice.state == ClientState.ONLINE
                self._changed.set()
                if notice.state == ClientState.STOPPED:
                    self._waiting.on_stopped(state_text(notice))


def _sent(client_message_id: bytes, row: Outgoing) -> Sent:
    status = {"pending": SendStatus.PENDING, "sent": SendStatus.ACKED}.get(
        row.status, SendStatus.FAILED
    )
    return Sent(
        client_message_id=client_message_id,
        status=status,
        coordinates=row.coordinates,
        code=code_name(row.code) if row.code else "",
    )
