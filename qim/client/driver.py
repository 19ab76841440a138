"""The client machine's driver: one inbox, one TCP stream, one store thread (what a driver owes a machine: architecture.md)."""

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, get_args

from qim.client.local_store import LocalStore
from qim.client.store_file import Owner
from qim.client.tls import ClientTls, agreed
from qim.core.client import Client as ClientMachine
from qim.core.client.vocabulary import ClientConfig, ClientEvent, ClientNotice
from qim.core.ports.completion import Unknown
from qim.core.ports.local_store import LocalStoreRequest
from qim.core.ports.observe import Count, Gauge, StageReached, Violation
from qim.core.ports.sockets import (
    Backlog,
    BytesReceived,
    CloseSocket,
    Dial,
    Dialed,
    SocketClosed,
    Write,
)

CLOSE_FLUSH_SECONDS: Final = 5.0
VIOLATIONS_KEPT_MAX: Final = 1_000


def wall_ms() -> int:
    """Wall clock, stamped at this edge."""
    return time.time_ns() // 1_000_000


class _Stream(asyncio.Protocol):
    """One dialled stream; tells the driver what comes, from the moment it is open."""

    def __init__(self, conn: int, driver: "ClientDriver") -> None:
        self._conn = conn
        self._driver = driver
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and not agreed(secured):
            self._driver.dial_fault = "the server speaks TLS, but not our protocol (ALPN qim/1)"
            transport.abort()
            return
        # Here, not where the dial is awaited: a stream may be lost before that task runs again.
        self._driver.opened(self._conn, transport)

    def data_received(self, data: bytes) -> None:
        self._driver.post(BytesReceived(conn=self._conn, wall=wall_ms(), data=bytes(data)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._driver.closed(self._conn)

    def pause_writing(self) -> None:
        self._tell_backlog()

    def resume_writing(self) -> None:
        self._tell_backlog()

    def _tell_backlog(self) -> None:
        if self._transport is not None:
            queued = self._transport.get_write_buffer_size()
            self._driver.post(Backlog(conn=self._conn, bytes_queued=queued))


class ClientDriver:
    """Steps the machine; gives every notice to ``on_notice``. From one event loop only."""

    def __init__(
        self,
        config: ClientConfig,
        store_path: Path,
        loop: asyncio.AbstractEventLoop,
        on_notice: Callable[[ClientNotice], None],
        on_death: Callable[[Exception], None],
        tls: ClientTls | None = None,
    ) -> None:
        """Raises LocalStoreUnusable. ``tls`` None: plaintext. ``on_death``: the machine failed one of its own asserts; nothing follows it."""
        self.store = LocalStore(
            store_path, Owner(tenant_id=config.tenant_id, user_id=config.user_id)
        )
        self.violations: list[Violation] = []
        self.dial_fault = ""
        """Why the last dial failed, in words; empty once one succeeded."""
        self.store_fault = ""
        """Why the local store could not carry out the last orders, in words; empty once it did."""
        self._tls = tls
        self._machine = ClientMachine(config, choose=lambda site, key: secrets.randbits(64))
        self._loop = loop
        self._on_notice = on_notice
        self._on_death = on_death
        self._inbox: list[Any] = []
        self._scheduled = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._streams: dict[int, asyncio.Transport | None] = {}  # None: still being dialled
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="qim-client-store")
        self._orders: list[LocalStoreRequest] = []
        self._ordering = False
        self._store_types = frozenset(get_args(LocalStoreRequest))
        self._notice_types = frozenset(get_args(ClientNotice))

    def post(self, event: ClientEvent) -> None:
        """Hand a fact or a command to the machine."""
        self._inbox.append(event)
        self._schedule()

    async def on_store_thread(self, work: Callable[[LocalStore], Any]) -> Any:
        """Run ``work`` on the store's thread, in order with the machine's orders."""
        return await self._loop.run_in_executor(self._threads, work, self.store)

    async def stop(self) -> None:
        """Cut the connection, finish what was ordered of the store, close the file. Again: nothing."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        dials = list(self._dials.values())
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        for transport in self._streams.values():
            if transport is not None:
                transport.abort()
        orders, self._orders = self._orders, []
        await self._loop.run_in_executor(self._threads, self._finish, orders)
        self._threads.shutdown(wait=False)

    def _finish(self, orders: list[LocalStoreRequest]) -> None:
        if orders:
            self.store.execute(orders)
        self.store.close()

    def _schedule(self) -> None:
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        events, self._inbox = self._inbox, []
        now = int(time.monotonic() * 1000)
        try:
            for effect in self._machine.step(now, events):
                self._route(effect)
        except Exception as error:
            # Our own bug: the machine's state can't be trusted any more (architecture.md). What is stored stays.
            self._stopped = True
            self._on_death(error)
            return
        self._flush_orders()
        self._arm(now)

    def _arm(self, now: int) -> None:
        deadline = self._machine.deadline()
        if deadline == self._timer_at and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline is not None:
            self._timer = self._loop.call_later(max(deadline - now, 0) / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        self._timer_at = None
        self._schedule()

    def _route(self, effect: Any) -> None:
        kind = type(effect)
        if kind in self._store_types:
            self._orders.append(effect)
        elif kind in self._notice_types:
            self._on_notice(effect)
        elif kind is Write:
            transport = self._streams.get(effect.conn)
            if transport is not None:
                transport.write(effect.data)
        elif kind is Dial:
            self._streams[effect.conn] = None
            self._dials[effect.conn] = self._loop.create_task(self._dial(effect))
        elif kind is CloseSocket:
            self._close(effect.conn)
        elif kind is Violation:
            if len(self.violations) < VIOLATIONS_KEPT_MAX:
                self.violations.append(effect)
        else:
            assert kind in (Count, Gauge, StageReached), f"no route for {kind.__name__}"

    async def _dial(self, effect: Dial) -> None:
        host, _, port = effect.address.rpartition(":")
        host = host.strip("[]")
        tls = self._tls
        try:
            await self._loop.create_connection(
                lambda: _Stream(effect.conn, self),
                host,
                int(port),
                ssl=None if tls is None else tls.context,
                server_hostname=None if tls is None else tls.server_name or host,
            )
        except (OSError, ValueError, OverflowError) as error:
            self.dial_fault = str(error) or type(error).__name__
            self.closed(effect.conn)
        finally:
            self._dials.pop(effect.conn, None)

    def opened(self, conn: int, transport: asyncio.Transport) -> None:
        """From the stream: it is there."""
        if conn not in self._streams:
            transport.abort()  # closed by the machine while the dial was under way
            return
        self._streams[conn] = transport
        self.dial_fault = ""
        self.post(Dialed(conn=conn))

    def closed(self, conn: int) -> None:
        """The stream is gone; told to the machine once, whoever says so first."""
        if conn in self._streams:
            del self._streams[conn]
            self.post(SocketClosed(conn=conn))

    def _close(self, conn: int) -> None:
        transport = self._streams.get(conn)
        if transport is None:
            dial = self._dials.get(conn)
            if dial is not None:
                dial.cancel()
            self.closed(conn)
            return
        transport.close()
        self._loop.call_later(CLOSE_FLUSH_SECONDS, transport.abort)

    def _flush_orders(self) -> None:
        """One batch of orders at a time on the store's thread; what comes meanwhile rides in the next."""
        if self._ordering or not self._orders or self._stopped:
            return
        orders, self._orders = self._orders, []
        self._ordering = True
        future = self._threads.submit(self.store.execute, orders)
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._ordered, orders, done)
        )

    def _ordered(self, orders: list[LocalStoreRequest], done: Future[list[Any]]) -> None:
        self._ordering = False
        error = done.exception()
        self.store_fault = self.store.fault if error is None else f"local store: {error}"
        replies = done.result() if error is None else [Unknown(op=order.op) for order in orders]
        for reply in replies:
            self.post(reply)
        self._flush_orders()
