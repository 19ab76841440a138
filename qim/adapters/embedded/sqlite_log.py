"""The log port on SQLite: WAL, synchronous=FULL, one commit for all appends that wait (architecture.md, Embedded).

Offsets are dense a partition; compaction of the user-state log leaves holes in the file, never at its end. Fetches of the
newest records are served from a bounded memory tail (log_tail.py), older ones from the file (log_file.py). A waiting fetch is answered by the next append or at its ``wait_ms``. What is durable but was answered Unknown (a
commit that failed and is found whole later) stands in the log all the same: memory follows the file, never the reverse.
"""

import sqlite3
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from qim.adapters.embedded import log_file
from qim.adapters.embedded.database_thread import DatabaseThread, mishap
from qim.adapters.embedded.log_rows import write_appends
from qim.adapters.embedded.log_tail import Answer, LogTail, Waiter
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import (
    Append,
    Appended,
    AppendRefused,
    EndsRead,
    Fetch,
    Fetched,
    LogRequest,
    OutOfRange,
    ReadEnds,
    StoredRecord,
    Topic,
)
from qim.core.position import is_other

RECORD_BYTES_MAX: Final = 1024 * 1024
COMPACT_LAG_MS: Final = 3_600_000
"""A superseded record stays this long: an applier whose store lost its tail must meet again what it met before."""


class SqliteLog:
    """``submit`` a LogRequest from the event loop; ``answer`` is called on the loop exactly once."""

    def __init__(
        self, path: Path, loop: AbstractEventLoop, *, partitions: dict[Topic, int]
    ) -> None:
        self._loop = loop
        self._database = DatabaseThread(path, loop, schema=log_file.SCHEMA, name="qim-log")
        self._topic_ids: dict[Topic, bytes] = {}
        self._partitions: dict[tuple[Topic, int], LogTail] = {}
        self._stopped = False
        self._database.at_start(lambda connection: self._load_all(connection, partitions))

    def _load_all(self, connection: sqlite3.Connection, partitions: dict[Topic, int]) -> None:
        for topic, count in partitions.items():
            self._topic_ids[topic] = log_file.topic_id(connection, topic)
            for number in range(count):
                self._partitions[topic, number] = log_file.load(connection, topic, number)

    @property
    def waiting(self) -> int:
        """Jobs that wait for the database thread (metric)."""
        return self._database.waiting

    @property
    def commits(self) -> int:
        """Commits so far, each with its fsync (metric)."""
        return self._database.commits

    @property
    def busy_us(self) -> int:
        """Microseconds spent inside them (metric)."""
        return self._database.busy_us

    async def close(self) -> None:
        """Answer waiting fetches with nothing, make every accepted append durable and answer it, close."""
        self._stopped = True
        for partition in self._partitions.values():
            self._wake(partition)
        await self._database.close()

    def submit(self, request: LogRequest, answer: Answer) -> None:
        """Append, Fetch or ReadEnds; see ports/log.py."""
        partition = self._partitions.get((request.topic, request.partition))
        if partition is None:
            answer(Failed(op=request.op, why=FailReason.INVALID))
            return
        match request:
            case Append():
                self._append(request, partition, answer)
            case Fetch():
                self._fetch(request, partition, answer)
            case ReadEnds():
                answer(
                    EndsRead(
                        op=request.op,
                        topic_id=self._topic_ids[request.topic],
                        start=partition.start,
                        end=partition.end,
                    )
                )
            case _:
                assert_never(request)

    def partition_count(self, topic: Topic) -> int:
        """How many partitions the topic has."""
        return sum(held is topic for held, _ in self._partitions)

    def start_of(self, topic: Topic, number: int) -> int:
        """The first retained offset."""
        return self._partitions[topic, number].start

    def trim(
        self, topic: Topic, number: int, *, before: int, done: Callable[[object], None]
    ) -> None:
        """Retention: forget offsets below ``before`` (never beyond the end); ``done`` gets the new start, or an exception."""
        partition = self._partitions[topic, number]
        before = min(before, partition.end)

        def work(connection: sqlite3.Connection) -> int:
            return log_file.trim(connection, topic, number, before)

        self._database.submit(work, lambda result: self._trimmed(partition, result, done))

    def trim_older(
        self,
        topic: Topic,
        number: int,
        *,
        older_than: int,
        keep_from: int,
        done: Callable[[object], None],
    ) -> None:
        """Retention by age: of the oldest ``TRIM_RECORDS_MAX`` records forget those that lead, appended before
        ``older_than`` (wall ms of the log) and below offset ``keep_from``; ``done`` gets the new start, or an exception.

        Append times follow a wall clock that may step back: the first young record stops, whatever stands behind it.
        """
        partition = self._partitions[topic, number]
        keep_from = min(keep_from, partition.end)

        def work(connection: sqlite3.Connection) -> int:
            before = log_file.first_young(connection, topic, number, older_than, keep_from)
            return log_file.trim(connection, topic, number, before)

        self._database.submit(work, lambda result: self._trimmed(partition, result, done))

    def compact(
        self, number: int, *, older_than: int, done: Callable[[object], None] = lambda _: None
    ) -> None:
        """Go on through the user-state partition: records superseded by one appended before ``older_than`` (wall ms) go.

        ``done`` gets the offset up to which it went, or an exception. One job a partition at a time.
        """
        partition = self._partitions[Topic.USER_STATE, number]
        partition.compacting, partition.appended = True, 0

        def work(connection: sqlite3.Connection) -> int:
            return log_file.compact(connection, number, partition.compacted_to, older_than)

        def compacted(result: object) -> None:
            partition.compacting = False
            if isinstance(result, int):
                partition.compacted_to = result
            done(result)

        self._database.submit(work, compacted)

    def _trimmed(self, partition: LogTail, result: object, done: Callable[[object], None]) -> None:
        if isinstance(result, int):
            partition.starts_at(result)
            result = partition.start
        done(result)

    def _append(self, request: Append, partition: LogTail, answer: Answer) -> None:
        if not request.records:
            answer(Failed(op=request.op, why=FailReason.INVALID))
            return
        for index, record in enumerate(request.records):
            if len(record.value) > RECORD_BYTES_MAX:
                why = f"record of {len(record.value)} bytes, at most {RECORD_BYTES_MAX}"
                answer(AppendRefused(op=request.op, index=index, why=why))
                return
        self._database.submit_together(
            write_appends,
            request,
            lambda result: self._appended(request, partition, answer, result),
        )

    def _appended(
        self, request: Append, partition: LogTail, answer: Answer, result: object
    ) -> None:
        if isinstance(result, list):
            partition.grew(result)
            offsets = tuple(record.offset for record in result)
            answer(Appended(op=request.op, offsets=offsets, append_time=result[0].append_time))
            self._wake(partition)
            partition.appended += len(result)
            due = partition.appended >= log_file.COMPACT_RECORDS_MAX and not partition.compacting
            if request.topic is Topic.USER_STATE and due and not self._stopped:
                self.compact(request.partition, older_than=result[0].append_time - COMPACT_LAG_MS)
        else:
            answer(mishap(request.op, result))

    def _fetch(self, fetch: Fetch, partition: LogTail, answer: Answer) -> None:
        if not partition.start <= fetch.offset <= partition.end:
            self._out_of_range(fetch, partition, answer)
        elif partition.differs(fetch):
            self._out_of_range(fetch, partition, answer, other_record=True)
        elif fetch.offset == partition.end and fetch.wait_ms > 0 and not self._stopped:
            waiter = Waiter(fetch, answer)
            waiter.timer = self._loop.call_later(
                fetch.wait_ms / 1000, self._expired, partition, waiter
            )
            partition.waiters.append(waiter)
        else:
            self._serve(fetch, partition, answer)

    def _serve(self, fetch: Fetch, partition: LogTail, answer: Answer) -> None:
        records = partition.served(fetch)
        if records is not None:
            self._fetched(fetch, partition, answer, records)
            return

        def work(connection: sqlite3.Connection) -> list[StoredRecord]:
            return log_file.read(connection, fetch)

        def done(result: object) -> None:
            if not isinstance(result, list):
                answer(Failed(op=fetch.op, why=FailReason.UNREACHABLE))
            elif fetch.offset < partition.start:
                # Retention overtook the reading: what was found begins behind a hole.
                self._out_of_range(fetch, partition, answer)
            elif result and result[0].offset < fetch.offset:
                other = is_other(fetch.before, result[0])
                if other:
                    self._out_of_range(fetch, partition, answer, other_record=True)
                else:
                    self._fetched(fetch, partition, answer, result[1:])
            else:
                self._fetched(fetch, partition, answer, result)

        self._database.submit(work, done)

    def _out_of_range(
        self, fetch: Fetch, partition: LogTail, answer: Answer, *, other_record: bool = False
    ) -> None:
        answer(
            OutOfRange(
                op=fetch.op,
                topic_id=self._topic_ids[fetch.topic],
                start=partition.start,
                end=partition.end,
                other_record=other_record,
            )
        )

    def _fetched(
        self, fetch: Fetch, partition: LogTail, answer: Answer, records: list[StoredRecord]
    ) -> None:
        answer(
            Fetched(
                op=fetch.op,
                topic_id=self._topic_ids[fetch.topic],
                start=partition.start,
                end=partition.end,
                records=tuple(records),
            )
        )

    def _expired(self, partition: LogTail, waiter: Waiter) -> None:
        partition.waiters.remove(waiter)
        self._serve(waiter.fetch, partition, waiter.answer)

    def _wake(self, partition: LogTail) -> None:
        waiters, partition.waiters = partition.waiters, []
        for waiter in waiters:
            if waiter.timer is not None:
                waiter.timer.cancel()
            self._serve(waiter.fetch, partition, waiter.answer)
