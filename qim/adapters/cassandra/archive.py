"""The archive port on a cluster: LOCAL_QUORUM both ways, no transaction, every row harmless when late (pipeline.md §5).

A batch goes out in three steps, each begun when all of the one before is confirmed: rows and facts; greatest seqs; the
position. So the archive never claims what is not there, whatever becomes of the batch in between.
"""

import asyncio
import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, assert_never

from cassandra import DriverException
from cassandra.cluster import EXEC_PROFILE_DEFAULT, NoHostAvailable

from qim.adapters.cassandra import durability, schema
from qim.adapters.cassandra.failures import not_applied, read_failure
from qim.adapters.cassandra.in_flight import InFlight, Rows, Statement
from qim.adapters.cassandra.rows import (
    U64_MAX,
    Batch,
    Prepared,
    conversation_from,
    number,
    prepare,
    slice_of,
    u64,
)
from qim.adapters.cassandra.session import READING, open_session, unreachable
from qim.adapters.cassandra.settings import CassandraSettings
from qim.core.archived import bucket_of
from qim.core.ports.archive import (
    ArchiveBodiesRead,
    ArchivedConversation,
    ArchivedConversationsRead,
    ArchiveExpired,
    ArchiveRead,
    ArchiveReply,
    ArchiveRequest,
    ArchiveWritten,
    ExpireArchive,
    ReadArchive,
    ReadArchiveBodies,
    ReadArchivedConversations,
    WriteArchive,
)
from qim.core.ports.completion import Completion, Failed, FailReason, Unknown

Answer = Callable[[ArchiveReply | Completion], None]

LOG: Final = logging.getLogger(__name__)
ROWS_MAX: Final = 4_096
"""Rows of one WriteArchive, as in every archive."""
DRIVER_SILENT: Final = 3
"""Times the time of a statement, which the driver ends by itself."""
BUCKETS_AHEAD: Final = 16
"""Bucket names read at once while a page is filled."""


class _NotAll(Exception):
    """Some statement of a step has no confirmation; ``surely`` where none of them was applied."""

    def __init__(self, surely: FailReason | None) -> None:
        super().__init__(str(surely))
        self.surely = surely


class CassandraArchive:
    """``start`` first; then ``submit`` from the event loop, ``answer`` is called on it exactly once; ``close`` at the end."""

    def __init__(
        self,
        settings: CassandraSettings,
        loop: asyncio.AbstractEventLoop,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls``: instead of one made of the settings' file, where somebody reads that again."""
        self._settings = settings
        self._tls = tls
        self._loop = loop
        self._cluster: Any = None
        self._prepared: Prepared | None = None
        self._reads: InFlight | None = None
        self._writes: InFlight | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.advice: tuple[tuple[str, str], ...] = ()
        """(what was found, what to do): what a start may serve with, and somebody should look at."""
        self.refused = 0
        self.failed = 0
        """Requests answered OVERLOADED here (metric)."""
        self.unknown = 0
        """Writes answered Unknown (metric)."""

    async def start(self) -> None:
        """Connect, judge the schema, prepare. Raises StartRefused."""
        await self._loop.run_in_executor(None, self._open)

    def _open(self) -> None:
        cluster, session = open_session(self._settings, self._tls)
        try:
            replicas = schema.check(session, self._settings)
            self.advice = durability.judge(session, self._settings, replicas)
            prepared = prepare(session, self._settings.keyspace)
        except (DriverException, NoHostAvailable) as error:
            cluster.shutdown()
            raise unreachable(self._settings, error) from None
        except BaseException:
            cluster.shutdown()
            raise
        self._cluster, self._prepared = cluster, prepared
        bound = self._settings.inflight_ops_max
        silent_s = DRIVER_SILENT * self._settings.request_timeout_ms / 1_000
        self._reads, self._writes = (
            InFlight(session, self._loop, profile=profile, bound=bound, silent_s=silent_s)
            for profile in (READING, EXEC_PROFILE_DEFAULT)
        )

    async def close(self) -> None:
        """Answer what was submitted, then disconnect; what has no answer in time is Unknown, a driver that hangs is left."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.close_timeout_ms / 1_000)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            # Cancelled, so each answers Unknown in its next turn and waits for nobody.
            await asyncio.wait(self._tasks)
        if self._cluster is not None:
            await self._disconnected(self._cluster)

    async def _disconnected(self, cluster: Any) -> None:
        """The driver joins threads of its own, which a node that hangs may hold: it gets the closing time and no more.

        On a thread that nothing joins either, neither the loop's end nor the interpreter's.
        """
        done: asyncio.Future[None] = self._loop.create_future()

        def ended() -> None:
            if not done.done():
                done.set_result(None)

        def shut() -> None:
            try:
                cluster.shutdown()
            except Exception:
                LOG.exception("the archive's driver did not close in order")
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(ended)

        threading.Thread(target=shut, name="qim-archive-close", daemon=True).start()
        try:
            async with asyncio.timeout(self._settings.close_timeout_ms / 1_000):
                await done
        except TimeoutError:
            LOG.error("the archive's driver still closes: left behind")

    @property
    def waiting(self) -> int:
        """Requests submitted and not answered (metric)."""
        return len(self._tasks)

    def gauges(self) -> Iterator[tuple[str, str, float]]:
        """Depths and capacities, (name, label, value)."""
        yield "archive_requests_waiting", "", self.waiting
        yield "archive_requests_waiting_max", "", self._settings.waiting_requests_max
        for label, flight in (("read", self._reads), ("write", self._writes)):
            if flight is not None:
                yield "archive_statements_inflight", label, flight.count
                yield "archive_statements_inflight_max", label, flight.bound
                yield "archive_statements_queued", label, flight.queued
        yield "archive_requests_refused", "", self.refused
        yield "archive_requests_failed", "", self.failed
        yield "archive_writes_unknown", "", self.unknown

    def submit(self, request: ArchiveRequest, answer: Answer) -> None:
        """See ports/archive.py."""
        assert self._reads is not None and self._writes is not None, "start() comes first"
        assert self._prepared is not None
        if self._closed or len(self._tasks) >= self._settings.waiting_requests_max:
            self.refused += 1
            refusal = Failed(op=request.op, why=FailReason.OVERLOADED)
            self._loop.call_soon(answer, refusal)
            return
        work = _Work(self._reads, self._writes, self._prepared)
        task = self._loop.create_task(self._serve(work, request, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, work: "_Work", request: ArchiveRequest, answer: Answer) -> None:
        reply: ArchiveReply | Completion
        try:
            reply = await work.carry_out(request)
        except _NotAll as error:
            if error.surely is None:
                self.unknown += 1
                reply = Unknown(op=request.op)
            else:
                self.failed += 1
                reply = Failed(op=request.op, why=error.surely)
        except asyncio.CancelledError:
            answer(Unknown(op=request.op))
            raise
        except (
            Exception
        ) as error:  # a bad row or a failed read: nothing was sent, or nothing can change
            self.failed += 1
            reply = Failed(op=request.op, why=read_failure(error))
        answer(reply)


class _Work:
    """One request carried out."""

    def __init__(self, reads: InFlight, writes: InFlight, prepared: Prepared) -> None:
        self._reads = reads
        self._writes = writes
        self._prepared = prepared

    async def carry_out(self, request: ArchiveRequest) -> ArchiveReply:
        """The typed reply. Raises _NotAll of a write, the driver's exceptions of a read."""
        match request:
            case WriteArchive():
                return await self._write(request)
            case ReadArchive():
                return await self._page(request)
            case ReadArchiveBodies():
                return await self._bodies(request)
            case ReadArchivedConversations():
                return await self._conversations(request)
            case ExpireArchive():
                # Every row was written with its end: the servers remove it, and nobody has to look for it.
                return ArchiveExpired(op=request.op, removed=0, more=False)
            case _:
                assert_never(request)

    async def _write(self, request: WriteArchive) -> ArchiveWritten:
        assert len(request.rows) <= ROWS_MAX, len(request.rows)
        batch = Batch(self._prepared, request.partition, request.rows, request.through)
        try:
            reused = await self._write_out(batch, position_alone=not request.rows)
        except _NotAll:
            raise
        except Exception as error:
            # Our own bug, and nobody can say any more that nothing was sent.
            LOG.exception("a batch of partition %d failed", request.partition)
            raise _NotAll(None) from error
        return ArchiveWritten(op=request.op, reused=reused)

    async def _write_out(
        self, batch: Batch, *, position_alone: bool
    ) -> tuple[tuple[bytes, int], ...]:
        await self._confirmed(batch.facts, first=True)
        places = await self._reads.gather(batch.places)
        found: list[Rows] = []
        for rows in places:
            if isinstance(rows, BaseException):
                raise _NotAll(None)
            found.append(rows)
        await self._confirmed(batch.greatest, first=False)
        await self._confirmed(batch.position, first=position_alone)
        return batch.reused(found)

    async def _confirmed(self, statements: Sequence[Statement], *, first: bool) -> None:
        """All of them. Raises _NotAll; certain only where ``first`` and no single one may have been applied."""
        results = await self._writes.gather(statements)
        failures = [result for result in results if isinstance(result, BaseException)]
        if not failures:
            return
        reasons = [not_applied(failure) for failure in failures]
        certain = first and len(failures) == len(results) and None not in reasons
        raise _NotAll(reasons[0] if certain else None)

    async def _read(self, statement: Any, *values: object) -> Rows:
        return await self._reads.run((statement, values))

    # ------------------------------------------------------------ history

    async def _page(self, request: ReadArchive) -> ArchiveRead:
        """Bucket by bucket, as many as the page touches."""
        first, last = max(request.low + 1, 0), min(request.high - 1, U64_MAX)
        found: list[bytes] = []
        page = self._prepared.page_down if request.newest_first else self._prepared.page_up
        low, high = bucket_of(first), bucket_of(last)
        while first <= last and low <= high and len(found) <= request.limit:
            buckets = await self._buckets(request, low, high)
            for bucket in buckets:
                room = request.limit + 1 - len(found)
                bounds = (u64(first), u64(last), room)
                rows = await self._read(page, request.conversation_id, bucket, *bounds)
                found += [row[0] for row in rows]
                if len(found) > request.limit:
                    break
            if len(buckets) < BUCKETS_AHEAD:
                break
            low, high = (low, buckets[-1] - 1) if request.newest_first else (buckets[-1] + 1, high)
        more = len(found) > request.limit
        return ArchiveRead(op=request.op, stored=tuple(found[: request.limit]), more=more)

    async def _buckets(self, request: ReadArchive, low: int, high: int) -> list[int]:
        prepared = self._prepared
        statement = prepared.buckets_down if request.newest_first else prepared.buckets_up
        name = request.conversation_id
        if not name:
            return []  # no conversation's name, and no key the servers would take
        return [row[0] for row in await self._read(statement, name, low, high, BUCKETS_AHEAD)]

    async def _bodies(self, request: ReadArchiveBodies) -> ArchiveBodiesRead:
        body = self._prepared.body
        reads = [
            self._read(body, conversation, bucket_of(seq), u64(seq), message)
            for conversation, seq, message in request.names
        ]
        found = await asyncio.gather(*reads)
        stored = tuple([rows[0][0] if rows else None for rows in found])
        return ArchiveBodiesRead(op=request.op, stored=stored)

    # ------------------------------------------------------------ facts

    async def _conversations(self, request: ReadArchivedConversations) -> ArchivedConversationsRead:
        # Before the conversations: a position read after them could vouch for one that came in between.
        through = await self._read(self._prepared.position_of, request.partition)
        rows: list[tuple[Any, ...]] = []
        for part in range(slice_of(request.after), schema.SLICES):
            room = request.limit + 1 - len(rows)
            where = (request.partition, part, request.after, room)
            rows += await self._read(self._prepared.conversations, *where)
            if len(rows) > request.limit:
                break
        found = await asyncio.gather(*[self._conversation(row) for row in rows[: request.limit]])
        return ArchivedConversationsRead(
            op=request.op,
            conversations=tuple(found),
            more=len(rows) > request.limit,
            position=number(through[0][0]) if through else 0,
        )

    async def _conversation(self, row: tuple[Any, ...]) -> ArchivedConversation:
        prepared, name = self._prepared, row[0]
        steps, founding, overlays = await asyncio.gather(
            self._read(prepared.steps_of, name),
            self._read(prepared.founding_of, name),
            self._read(prepared.overlays_of, name),
        )
        return conversation_from(row, steps, founding, overlays)
