"""Who waits for which notice of the machine: futures by client_message_id, by ticket, and those for CaughtUp.

A future is registered before its command is posted and forgotten when its caller stops waiting, whatever the reason;
what nobody waits for is in the local store.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from qim.client.results import GroupResult, NotConnected, SendFailed, SendStatus, Sent, code_name
from qim.client.store_file import LocalStoreUnusable
from qim.core.client.vocabulary import (
    CaughtUp,
    GroupSettled,
    HistoryArrived,
    MembersArrived,
    QueryFailed,
    ReadByArrived,
    SendQueued,
    SendRefused,
    SendSettled,
    SessionsReady,
    StateKept,
    StateSettled,
)
from qim.core.contract.errors import ErrorCode

WAITING_MAX: Final = 10_000
TICKETS_MAX: Final = 64
STORE_SECONDS: Final = 15.0
"""A local store that takes nothing for so long can't: a full disk, a broken file."""

Answer = HistoryArrived | MembersArrived | ReadByArrived
Key = TypeVar("Key")
Value = TypeVar("Value")


class Waiting:
    """All futures of one Client; from its event loop only."""

    def __init__(self) -> None:
        self._queued: dict[bytes, list[asyncio.Future[None]]] = {}
        self._sends: dict[bytes, list[asyncio.Future[Sent]]] = {}
        self._groups: dict[bytes, list[asyncio.Future[GroupResult]]] = {}
        self._tickets: dict[int, list[asyncio.Future[Answer]]] = {}
        self._syncs: dict[None, list[asyncio.Future[int]]] = {}
        self._lists: dict[None, list[asyncio.Future[int]]] = {}
        self._kept: dict[int, list[asyncio.Future[int]]] = {}
        self._states: dict[int, list[asyncio.Future[None]]] = {}
        self._ticket_last = 0

    @contextmanager
    def send(
        self, client_message_id: bytes
    ) -> "Iterator[tuple[asyncio.Future[None], asyncio.Future[Sent]]]":
        """(durable here, settled). Raises SendFailed: QUOTA_EXCEEDED where too many wait, IDEMPOTENCY_CONFLICT where
        this one does."""
        self._bound(len(self._sends))
        if client_message_id in self._queued:
            raise SendFailed(ErrorCode.IDEMPOTENCY_CONFLICT)
        with (
            _registered(self._queued, client_message_id) as queued,
            _registered(self._sends, client_message_id) as settled,
        ):
            yield queued, settled

    @contextmanager
    def settled(self, client_message_id: bytes) -> "Iterator[asyncio.Future[Sent]]":
        """A row that stands already. Raises SendFailed as ``send``."""
        self._bound(len(self._sends))
        with _registered(self._sends, client_message_id) as future:
            yield future

    @contextmanager
    def group(
        self, client_message_id: bytes
    ) -> "Iterator[tuple[asyncio.Future[None], asyncio.Future[GroupResult]]]":
        """A membership change (durable here, settled). Raises SendFailed as ``send``."""
        self._bound(len(self._groups))
        if client_message_id in self._queued:
            raise SendFailed(ErrorCode.IDEMPOTENCY_CONFLICT)
        with (
            _registered(self._queued, client_message_id) as queued,
            _registered(self._groups, client_message_id) as settled,
        ):
            yield queued, settled

    @contextmanager
    def ticket(self) -> "Iterator[tuple[int, asyncio.Future[Answer]]]":
        """A number for one query, and its answer. Raises SendFailed RATE_LIMITED where too many are open."""
        if len(self._tickets) >= TICKETS_MAX:
            raise SendFailed(ErrorCode.RATE_LIMITED)
        self._ticket_last += 1
        ticket = self._ticket_last
        with _registered(self._tickets, ticket) as future:
            yield ticket, future

    @contextmanager
    def caught_up(self) -> "Iterator[asyncio.Future[int]]":
        """The next CaughtUp."""
        with _registered(self._syncs, None) as future:
            yield future

    @contextmanager
    def state(self) -> "Iterator[tuple[int, asyncio.Future[int], asyncio.Future[None]]]":
        """A number for one read mark or state: (number, durable here, at the server). Raises SendFailed as ``send``."""
        self._bound(len(self._states))
        self._ticket_last += 1
        ticket = self._ticket_last
        with _registered(self._kept, ticket) as kept, _registered(self._states, ticket) as settled:
            yield ticket, kept, settled

    @contextmanager
    def listed(self) -> "Iterator[asyncio.Future[int]]":
        """The next SessionsReady."""
        with _registered(self._lists, None) as future:
            yield future

    def on_state(self, notice: StateKept | StateSettled) -> None:
        """A read mark or state is durable here, at the server, or refused."""
        if isinstance(notice, StateKept):
            _resolve(self._kept.get(notice.ticket), notice.version)
        elif notice.code:
            error = SendFailed(notice.code, notice.message)
            _fail(self._kept.get(notice.ticket), error)
            _fail(self._states.get(notice.ticket), error)
        else:
            _resolve(self._states.get(notice.ticket), None)

    def on_listed(self, notice: SessionsReady) -> None:
        """List and unread are here."""
        _resolve(self._lists.get(None), notice.projected_through)

    def on_queued(self, notice: SendQueued) -> None:
        """The row is durable."""
        _resolve(self._queued.get(notice.client_message_id), None)

    def on_settled(self, notice: SendSettled) -> None:
        """Sent or failed for good."""
        sent = Sent(
            client_message_id=notice.client_message_id,
            status=SendStatus.ACKED if notice.coordinates else SendStatus.FAILED,
            coordinates=notice.coordinates,
            code=code_name(notice.code) if notice.code else "",
            message=notice.message,
        )
        _resolve(self._queued.get(notice.client_message_id), None)
        _resolve(self._sends.get(notice.client_message_id), sent)

    def on_refused(self, notice: SendRefused) -> None:
        """Never stored, never sent."""
        error = SendFailed(notice.code, notice.message)
        _fail(self._queued.get(notice.client_message_id), error)
        _fail(self._groups.get(notice.client_message_id), error)

    def on_group(self, notice: GroupSettled) -> None:
        """A membership change is done or failed for good; whoever waits for its row hears it as of a send."""
        key = notice.client_message_id
        sent = Sent(
            client_message_id=key,
            status=SendStatus.FAILED if notice.code else SendStatus.ACKED,
            code=code_name(notice.code) if notice.code else "",
            message=notice.message,
        )
        _resolve(self._queued.get(key), None)
        _resolve(self._sends.get(key), sent)
        futures = self._groups.get(key)
        if notice.code:
            _fail(futures, SendFailed(notice.code, notice.message))
            return
        result = GroupResult(
            conversation_id=notice.conversation_id,
            version=notice.version,
            control_seq=notice.control_seq,
            noop=notice.noop,
        )
        _resolve(futures, result)

    def on_answer(self, notice: Answer | QueryFailed) -> None:
        """A query is answered."""
        futures = self._tickets.get(notice.ticket)
        if isinstance(notice, QueryFailed):
            _fail(futures, SendFailed(notice.code, notice.message))
        else:
            _resolve(futures, notice)

    def on_caught_up(self, notice: CaughtUp) -> None:
        """Everything known is applied."""
        _resolve(self._syncs.get(None), notice.covered_through)

    def on_stopped(self, why: str) -> None:
        """No connection until the user acts: sends are PENDING, everything else can't be had."""
        for client_message_id, futures in self._sends.items():
            _resolve(futures, Sent(client_message_id=client_message_id, status=SendStatus.PENDING))
        error = NotConnected(why, refused=True)
        for table in (self._groups, self._tickets, self._syncs, self._lists, self._states):
            for waiting in table.values():
                _fail(waiting, error)

    def end(self, error: Exception) -> None:
        """Nothing more will be told."""
        tables: tuple[dict[Any, Any], ...] = (
            self._queued,
            self._sends,
            self._groups,
            self._tickets,
            self._syncs,
            self._lists,
            self._kept,
            self._states,
        )
        for table in tables:
            for futures in table.values():
                _fail(futures, error)

    def _bound(self, waiting: int) -> None:
        if waiting >= WAITING_MAX:
            raise SendFailed(ErrorCode.QUOTA_EXCEEDED)


async def until_kept(queued: "asyncio.Future[Any]") -> None:
    """Wait until a row is durable here. Raises LocalStoreUnusable after STORE_SECONDS, and what ``queued`` was refused with."""
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await queued
    except TimeoutError:
        raise LocalStoreUnusable(
            f"the local store took nothing in {STORE_SECONDS:g} s (is its disk full?); "
            "what was asked for may still be kept and sent"
        ) from None


@contextmanager
def _registered(
    table: "dict[Key, list[asyncio.Future[Value]]]", key: Key
) -> "Iterator[asyncio.Future[Value]]":
    """A future under ``key`` for as long as its caller waits; several may wait for one thing."""
    future: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
    futures = table.setdefault(key, [])
    futures.append(future)
    try:
        yield future
    finally:
        futures.remove(future)
        if not futures:
            table.pop(key, None)
        if future.done() and not future.cancelled():
            future.exception()  # nobody else will look: an error not waited for is no warning
        else:
            future.cancel()


def _resolve(futures: "list[asyncio.Future[Value]] | None", value: Value) -> None:
    for future in futures or ():
        if not future.done():
            future.set_result(value)


def _fail(futures: "list[asyncio.Future[Any]] | None", error: Exception) -> None:
    for future in futures or ():
        if not future.done():
            future.set_exception(error)
