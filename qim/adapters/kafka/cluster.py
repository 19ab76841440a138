"""What we know of the brokers: addresses, leaders with their epochs, topic ids; and one connection a broker and lane.

A broker serves one request of a connection at a time, so what must not wait for each other has a lane of its own:
appends, long polls, reads, small questions. A connection that is late with an answer is closed: nothing it still
carries may be taken for the answer of another question, and what we wrote but it didn't send is dropped with it.
"""

import asyncio
import contextlib
import logging
import ssl
from asyncio import AbstractEventLoop
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from msgspec import Struct

from qim.adapters.kafka.doubts import Doubts
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.wire import NO_TOPIC_ID, AskMetadata

LOG: Final = logging.getLogger(__name__)

NOT_TRUSTED: Final = (
    ssl.SSLCertVerificationError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
    IllegalSaslStateError,
)

Node = int | tuple[str, int]
"""A broker by its id; by its address before its id is known."""


class Lane(StrEnum):
    """What a connection is used for."""

    ASK = "ask"
    APPEND = "append"
    POLL = "poll"
    READ = "read"


class BrokerGone(Exception):
    """No answer. ``sent``: the request may have reached the broker all the same, and may yet be carried out.

    ``hopeless``: the broker or we are not trusted, which no waiting mends.
    """

    def __init__(self, why: str, *, sent: bool, hopeless: bool = False) -> None:
        super().__init__(why)
        self.sent = sent
        self.hopeless = hopeless


class Leader(Struct, frozen=True):
    """Who leads a partition, and since which leadership; ``copies`` counts its replicas."""

    node: int
    epoch: int
    copies: int


class Cluster:
    """``start``, then ``leader`` and ``topic_id`` answer from memory and ``ask`` sends. A task keeps the memory fresh."""

    def __init__(self, settings: KafkaSettings, loop: AbstractEventLoop, names: list[str]) -> None:
        self._settings = settings
        self._loop = loop
        self._names = names
        self._addresses: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], Leader] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._copies: dict[str, dict[int, int]] = {}
        self._connections: dict[tuple[Node, Lane], AIOKafkaConnection] = {}
        self._locks: dict[tuple[Node, Lane], asyncio.Lock] = {}
        self._not_reached: dict[tuple[Node, Lane], float] = {}
        """When a connection could not be had last (loop time)."""
        self._ending: set[asyncio.Future[None]] = set()
        """Of connections that were cut: done when their sockets are closed."""
        self._last_good: Node | None = None
        self._doubts = Doubts()
        self._looks = 0
        """Begun, answered or not."""
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.on_refreshed: list[Callable[[], None]] = []
        """Called after every answer about leaders, on the loop."""
        self.refreshes = 0
        self.refreshes_failed = 0
        self.last_gone: BrokerGone | None = None
        """Why the last refresh failed; None after one that didn't."""
        self.topics_recreated = 0
        """Topics that were seen with another id than before."""

    async def start(self) -> None:
        """The first view. Raises BrokerGone when no broker answers within start_ms."""
        deadline = self._loop.time() + self._settings.start_ms / 1000
        while not await self.refresh():
            assert self.last_gone is not None
            if self._loop.time() > deadline or self.last_gone.hopeless:
                raise self.last_gone
            await asyncio.sleep(self._settings.backoff_ms / 1000)
        self._task = self._loop.create_task(self._keep_fresh())

    async def close(self) -> None:
        """Every connection closed."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for connection in self._connections.values():
            self._cut(connection)
        self._connections.clear()
        # Sockets are closed in a later turn of the loop, which may be closed itself after this.
        if self._ending:
            await asyncio.wait([*self._ending], timeout=self._settings.close_ms / 1000)
        await asyncio.sleep(0)

    # ---------------------------------------------------------------- what is known

    def leader(self, name: str, partition: int) -> Leader | None:
        """None where nobody leads, as far as we know."""
        return self._leaders.get((name, partition))

    def topic_id(self, name: str) -> bytes:
        """16 bytes; zero where the topic is not there or has none."""
        return self._topic_ids.get(name, NO_TOPIC_ID)

    def partitions(self, name: str) -> dict[int, int] | None:
        """Copies a partition; None where no broker knows the topic."""
        return self._copies.get(name)

    def broker_ids(self) -> list[int]:
        """Of every broker."""
        return sorted(self._addresses)

    def hosts(self) -> list[str]:
        """Where the brokers say they are."""
        return [host for host, _ in self._addresses.values()]

    # ---------------------------------------------------------------- asking

    async def ask(self, node: Node, lane: Lane, request: Any) -> Any:
        """The answer's structure. Raises BrokerGone."""
        connection = await self._connection(node, lane)
        try:
            return await connection.send(request)
        except asyncio.CancelledError:
            self._drop(node, lane, connection)
            raise
        except (KafkaError, OSError, TimeoutError, NotImplementedError) as error:
            self._drop(node, lane, connection)
            self.want_refresh()
            raise BrokerGone(f"{node}: {error!r}", sent=True) from error

    async def ask_any(self, request: Any) -> Any:
        """From whichever broker answers first, one after the other. Raises BrokerGone."""
        gone: BrokerGone | None = None
        for node in self._candidates():
            try:
                answer = await self.ask(node, Lane.ASK, request)
            except BrokerGone as error:
                gone = error
                continue
            self._last_good = node
            return answer
        raise gone or BrokerGone("no broker known", sent=False)

    def renew(self, node: int, *lanes: Lane) -> None:
        """Close what we have there; the next question connects anew."""
        for lane in lanes:
            connection = self._connections.get((node, lane))
            if connection is not None:
                self._drop(node, lane, connection)

    def want_refresh(self) -> None:
        """Soon; several of these are one."""
        self._wanted.set()

    def doubt(self, node: int) -> int:
        """It may speak from a past it slept through: ask soon, and somebody else if there is one. ``settled`` takes the answer."""
        self._doubts.begin(node, self._looks + 1)
        self.want_refresh()
        return self._looks + 1

    def settled(self, node: int, doubt: int) -> bool:
        """Whether another was asked since. One under way already may be that node's own word, as may be one that only it has answered."""
        return self._doubts.settled(node, doubt)

    async def refresh(self) -> bool:
        """Ask now; whether somebody answered."""
        self._looks += 1
        look = self._looks
        try:
            answer = await self.ask_any(AskMetadata(self._names))
        except BrokerGone as error:
            self.refreshes_failed += 1
            if self.last_gone is None:
                # Once an outage: it is tried ten times a second.
                LOG.warning("no broker tells of the topics: %s", error)
            self.last_gone = error
            return False
        if self.last_gone is not None:
            LOG.warning("a broker tells of the topics again")
            self.last_gone = None
        self.refreshes += 1
        if self._doubts.answered(look, self._last_good, alone=len(answer.brokers) <= 1):
            self.want_refresh()
        self._take(answer)
        for listener in self.on_refreshed:
            listener()
        return True

    async def _keep_fresh(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.identity_ms / 1000):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                if not await self.refresh():
                    self.want_refresh()
            except Exception:
                # The view would grow stale unseen if this task ended: every lane waits for it.
                LOG.exception("the view of the brokers could not be taken")
            await asyncio.sleep(self._settings.backoff_ms / 1000)

    def _candidates(self) -> list[Node]:
        """Who answered last, then the known brokers in turn, then those we were told to begin with."""
        known: list[Node] = [*self.broker_ids()]
        if known:
            turn = (self.refreshes + self.refreshes_failed) % len(known)
            known = known[turn:] + known[:turn]
        first = [self._last_good] if self._last_good is not None else []
        begin: list[Node] = [*self._settings.bootstrap()]
        found = list(dict.fromkeys([*first, *known, *begin]))
        ids = self.broker_ids()
        return sorted(found, key=lambda node: self._doubts.rank(node, ids))

    def _take(self, answer: Any) -> None:
        if answer.brokers:
            self._addresses = {one[0]: (one[1], one[2]) for one in answer.brokers}
        for error, name, topic_id, _, partitions, *_ in answer.topics:
            if error != 0:
                # Deleted, or this broker hasn't heard of it: nobody leads, the id stays to be compared with.
                partitions = []
            elif self._topic_ids.get(name, topic_id) != topic_id:
                self.topics_recreated += 1
                self._forget(name)
            if error == 0:
                self._topic_ids[name] = topic_id
                self._copies[name] = {part[1]: len(part[4]) for part in partitions}
            self._take_leaders(name, partitions)

    def _take_leaders(self, name: str, partitions: list[Any]) -> None:
        before = {key: self._leaders[key] for key in self._leaders if key[0] == name}
        self._forget(name)
        for _, number, node, epoch, replicas, *_ in partitions:
            known = before.get((name, number))
            if known is not None and epoch < known.epoch:
                # A broker that was paused tells of leaders that are no more.
                self._leaders[name, number] = known
            elif node >= 0:
                self._leaders[name, number] = Leader(node, epoch, len(replicas))

    def _forget(self, name: str) -> None:
        for key in [key for key in self._leaders if key[0] == name]:
            del self._leaders[key]

    # ---------------------------------------------------------------- connections

    async def _connection(self, node: Node, lane: Lane) -> AIOKafkaConnection:
        key = (node, lane)
        asked_at = self._loop.time()
        async with self._locks.setdefault(key, asyncio.Lock()):
            if self._not_reached.get(key, asked_at) > asked_at:
                # Else all who wait would try one after the other, and more come than are answered.
                raise BrokerGone(f"{node}: not reached while this waited", sent=False)
            known = self._connections.get(key)
            if known is not None:
                if known.connected():
                    return known
                self._drop(node, lane, known)
            address = self._addresses.get(node) if isinstance(node, int) else node
            if address is None or self._closed:
                raise BrokerGone(f"no broker {node}", sent=False)
            made = self._make(address, lane)
            try:
                async with asyncio.timeout(self._settings.connect_ms / 1000):
                    await made.connect()
            except asyncio.CancelledError:
                self._cut(made)
                raise
            except (KafkaError, OSError, TimeoutError, AssertionError) as error:
                self._cut(made)
                self._not_reached[key] = self._loop.time()
                self.want_refresh()
                hopeless = isinstance(error, NOT_TRUSTED)
                why = f"{address[0]}:{address[1]}: {error!r}"
                raise BrokerGone(why, sent=False, hopeless=hopeless) from error
            self._connections[key] = made
            return made

    def _make(self, address: tuple[str, int], lane: Lane) -> AIOKafkaConnection:
        settings = self._settings
        patience = {
            Lane.APPEND: settings.acks_ms + settings.ask_ms,
            Lane.POLL: settings.poll_wait_ms + settings.ask_ms,
        }
        secure = "SASL_" if settings.sasl_mechanism else ""
        return AIOKafkaConnection(
            *address,
            client_id=f"{settings.client_id}-{lane.value}",
            request_timeout_ms=patience.get(lane, settings.ask_ms),
            ssl_context=settings.ssl_context,
            security_protocol=secure + ("SSL" if settings.ssl_context else "PLAINTEXT"),
            sasl_mechanism=settings.sasl_mechanism,
            sasl_plain_username=settings.sasl_username,
            sasl_plain_password=settings.sasl_password,
        )

    def _drop(self, node: Node, lane: Lane, connection: AIOKafkaConnection) -> None:
        if self._connections.get((node, lane)) is connection:
            del self._connections[node, lane]
        self._cut(connection)

    def _cut(self, connection: AIOKafkaConnection) -> None:
        """Closed without flushing: an append that was given up must not go out a minute later, when a broker reads again."""
        protocol = connection._protocol
        closed: asyncio.Future[None] | None = connection.close()
        transport = getattr(protocol, "_transport", None)
        if transport is not None and closed is not None:
            transport.abort()
            self._ending.add(closed)
            closed.add_done_callback(self._ending.discard)
