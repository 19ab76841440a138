"""The client machine's driver: one inbox, one TCP stream, one store thread (what a driver owes a machine: architecture.md)."""

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, get_args

from qim.client.local_store import LocalStore
from qim.core.client import Client as ClientMachine
from qim.core.client.vocabulary import ClientConfig, ClientEvent, ClientNotice
from qim.core.ports.completion import Unknown
from qim.core.ports.local_store import LocalStoreRequest
from qim.core.ports.observe import Count, Gauge, StageReached, Violation
from qim.core.ports.sockets import BytesReceived, CloseSocket, Dial, Dialed, SocketClosed, Write

CLOSE_FLUSH_SECONDS: Final = 5.0


def wall_ms() -> int:
    """Wall clock, stamped at this edge."""
    return time.time_ns() // 1_000_000


class _Stream(asyncio.Protocol):
    def __init__(self, conn: int, post: Callable[[ClientEvent], None]) -> None:
        self._conn = conn
        self._post = post

    def data_received(self, data: bytes) -> None:
        self._post(BytesReceived(conn=self._conn, wall=wall_ms(), data=bytes(data)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._post(SocketClosed(conn=self._conn))


class ClientDriver:
    """Steps the machine; gives every notice to ``on_notice``. From one event loop only."""

    def __init__(
        self,
        config: ClientConfig,
        store_path: Path,
        loop: asyncio.AbstractEventLoop,
        on_notice: Callable[[ClientNotice], None],
    ) -> None:
        self.store = LocalStore(store_path)
        self.violations: list[Violation] = []
        self._machine = ClientMachine(config, choose=lambda site, key: secrets.randbits(64))
        self._loop = loop
        self._on_notice = on_notice
        self._inbox: list[Any] = []
        self._scheduled = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._transports: dict[int, asyncio.Transport] = {}
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
        """Cut the connection, finish the orders under way, close the file."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._dials.values():
            task.cancel()
        for transport in self._transports.values():
            transport.abort()
        await self._loop.run_in_executor(self._threads, self.store.close)
        self._threads.shutdown(wait=False)

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
        for effect in self._machine.step(now, events):
            self._route(effect)
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
            transport = self._transports.get(effect.conn)
            if transport is not None:
                transport.write(effect.data)
        elif kind is Dial:
            self._dials[effect.conn] = self._loop.create_task(self._dial(effect))
        elif kind is CloseSocket:
            self._close(effect.conn)
        elif kind is Violation:
            self.violations.append(effect)
        else:
            assert kind in (Count, Gauge, StageReached), f"no route for {kind.__name__}"

    async def _dial(self, effect: Dial) -> None:
        host, _, port = effect.address.rpartition(":")
        try:
            transport, _protocol = await self._loop.create_connection(
                lambda: _Stream(effect.conn, self._lost_or_read), host.strip("[]"), int(port)
            )
        except (OSError, ValueError):
            self.post(SocketClosed(conn=effect.conn))
            return
        finally:
            self._dials.pop(effect.conn, None)
        self._transports[effect.conn] = transport
        self.post(Dialed(conn=effect.conn))

    def _lost_or_read(self, event: ClientEvent) -> None:
        if isinstance(event, SocketClosed):
            self._transports.pop(event.conn, None)
        self.post(event)

    def _close(self, conn: int) -> None:
        dial = self._dials.pop(conn, None)
        if dial is not None:
            dial.cancel()
            self.post(SocketClosed(conn=conn))
        transport = self._transports.get(conn)
        if transport is not None:
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
        replies = done.result() if error is None else [Unknown(op=order.op) for order in orders]
        for reply in replies:
            self.post(reply)
        self._flush_orders()
