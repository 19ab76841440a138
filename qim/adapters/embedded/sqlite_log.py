"""The log port on SQLite: WAL, synchronous=FULL, one commit for all appends that wait (architecture.md, Embedded).

Offsets are dense a partition; compaction of the user-state log leaves holes in the file, never at its end. Fetches of the newest records are served from a bounded memory tail, older ones from the
file. A waiting fetch is answered by the next append or at its ``wait_ms``. What is durable but was answered Unknown (a
commit that failed and is found whole later) stands in the log all the same: memory follows the file, never the reverse.
"""

import secrets
import sqlite3
from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from msgspec import Struct

from qim.adapters.embedded.database_thread import DatabaseThread, mishap
from qim.adapters.embedded.log_rows import ends_of, write_appends
from qim.core.ports.completion import Completion, Failed, FailReason
from qim.core.ports.log import (
    Append,
    Appended,
    AppendRefused,
    EndsRead,
    Fetch,
    Fetched,
    LogReply,
    LogRequest,
    OutOfRange,
    ReadEnds,
    StoredRecord,
    Topic,
)
from qim.core.position import is_other, names_record

Answer = Callable[[LogReply | Completion], None]

RECORD_BYTES_MAX: Final = 1024 * 1024
TAIL_RECORDS_MAX: Final = 2_048
TAIL_BYTES_MAX: Final = 4 * 1024 * 1024
COMPACT_RECORDS_MAX: Final = 1_000
"""Records one compaction job looks at; a job begins with every so many appended ones."""
COMPACT_LAG_MS: Final = 3_600_000
"""A superseded record stays this long: an applier whose store lost its tail must meet again what it met before."""
TRIM_RECORDS_MAX: Final = 2_000
"""Records one retention job looks at and removes: appends ride in the same commits and must not wait for it."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, id BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS span (topic TEXT, partition INTEGER, first INTEGER, last_end INTEGER,
  PRIMARY KEY (topic, partition)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record (topic TEXT, partition INTEGER, position INTEGER, time INTEGER, key BLOB, value BLOB,
  PRIMARY KEY (topic, partition, position)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS state_key ON record (partition, key, position) WHERE topic='user_state';
"""


class _Waiter(Struct):
    fetch: Fetch
    answer: Answer
    timer: TimerHandle | None = None


class _Partition:
    """What memory knows of one partition; ``tail`` ends at ``end`` and holds its newest records."""

    __slots__ = (
        "appended", "compacted_to", "compacting", "end", "start", "tail", "tail_bytes", "waiters"
    )  # fmt: skip

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.tail: deque[StoredRecord] = deque()
        self.tail_bytes = 0
        self.waiters: list[_Waiter] = []
        self.compacted_to = start
        self.compacting = False
        self.appended = 0
        """Records since the last compaction job."""

    def grew(self, records: list[StoredRecord]) -> None:
        """Records became durable at the end."""
        if records[0].offset != self.end:
            # Something answered Unknown stands in between: the tail would have a hole, the file has none.
            self.tail.clear()
            self.tail_bytes = 0
        for record in records:
            self.tail.append(record)
            self.tail_bytes += _size(record)
        self.end = records[-1].offset + 1
        while len(self.tail) > TAIL_RECORDS_MAX or self.tail_bytes > TAIL_BYTES_MAX:
            self.tail_bytes -= _size(self.tail.popleft())

    def starts_at(self, offset: int) -> None:
        """Retention took everything below ``offset``."""
        self.start = max(self.start, offset)
        while self.tail and self.tail[0].offset < self.start:
            self.tail_bytes -= _size(self.tail.popleft())

    def differs(self, fetch: Fetch) -> bool:
        """Another record stands before the offset than the one named, as far as memory has it; else the file is read for it."""
        if not self.tail or fetch.offset <= self.tail[0].offset:
            return False
        return is_other(fetch.before, self.tail[fetch.offset - 1 - self.tail[0].offset])

    def from_tail(self, offset: int, limit: int, bytes_max: int) -> list[StoredRecord] | None:
        """Records from memory, or None where the file must be asked."""
        if not self.tail or offset < self.tail[0].offset:
            return None
        first = offset - self.tail[0].offset
        taken: list[StoredRecord] = []
        size = 0
        for index in range(first, min(first + limit, len(self.tail))):
            size += _size(self.tail[index])
            if taken and size > bytes_max:
                break
            taken.append(self.tail[index])
        return taken


class SqliteLog:
    """``submit`` a LogRequest from the event loop; ``answer`` is called on the loop exactly once."""

    def __init__(
        self, path: Path, loop: AbstractEventLoop, *, partitions: dict[Topic, int]
    ) -> None:
        self._loop = loop
        self._database = DatabaseThread(path, loop, schema=_SCHEMA, name="qim-log")
        self._topic_ids: dict[Topic, bytes] = {}
        self._partitions: dict[tuple[Topic, int], _Partition] = {}
        self._stopped = False
        self._database.at_start(lambda connection: self._load_all(connection, partitions))

    def _load_all(self, connection: sqlite3.Connection, partitions: dict[Topic, int]) -> None:
        for topic, count in partitions.items():
            self._topic_ids[topic] = _topic_id(connection, topic)
            for number in range(count):
                self._partitions[topic, number] = _load(connection, topic, number)

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
            return _trim(connection, topic, number, before)

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
            before = _first_young(connection, topic, number, older_than, keep_from)
            return _trim(connection, topic, number, before)

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
            return _compact(connection, number, partition.compacted_to, older_than)

        def compacted(result: object) -> None:
            partition.compacting = False
            if isinstance(result, int):
                partition.compacted_to = result
            done(result)

        self._database.submit(work, compacted)

    def _trimmed(
        self, partition: _Partition, result: object, done: Callable[[object], None]
    ) -> None:
        if isinstance(result, int):
            partition.starts_at(result)
            result = partition.start
        done(result)

    def _append(self, request: Append, partition: _Partition, answer: Answer) -> None:
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
        self, request: Append, partition: _Partition, answer: Answer, result: object
    ) -> None:
        if isinstance(result, list):
            partition.grew(result)
            offsets = tuple(record.offset for record in result)
            answer(Appended(op=request.op, offsets=offsets, append_time=result[0].append_time))
            self._wake(partition)
            partition.appended += len(result)
            due = partition.appended >= COMPACT_RECORDS_MAX and not partition.compacting
            if request.topic is Topic.USER_STATE and due and not self._stopped:
                self.compact(request.partition, older_than=result[0].append_time - COMPACT_LAG_MS)
        else:
            answer(mishap(request.op, result))

    def _fetch(self, fetch: Fetch, partition: _Partition, answer: Answer) -> None:
        if not partition.start <= fetch.offset <= partition.end:
            self._out_of_range(fetch, partition, answer)
        elif partition.differs(fetch):
            self._out_of_range(fetch, partition, answer, other_record=True)
        elif fetch.offset == partition.end and fetch.wait_ms > 0 and not self._stopped:
            waiter = _Waiter(fetch, answer)
            waiter.timer = self._loop.call_later(
                fetch.wait_ms / 1000, self._expired, partition, waiter
            )
            partition.waiters.append(waiter)
        else:
            self._serve(fetch, partition, answer)

    def _serve(self, fetch: Fetch, partition: _Partition, answer: Answer) -> None:
        records = partition.from_tail(fetch.offset, fetch.limit, fetch.bytes_max)
        # Who waits at the end asked once without waiting when it opened: nobody but us writes the file since.
        at_end = fetch.offset == partition.end
        unseen = fetch.wait_ms <= 0 and names_record(fetch.before) and not partition.tail
        if records is not None or (at_end and not unseen):
            self._fetched(fetch, partition, answer, records or [])
            return

        def work(connection: sqlite3.Connection) -> list[StoredRecord]:
            return _read(connection, fetch)

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
        self, fetch: Fetch, partition: _Partition, answer: Answer, *, other_record: bool = False
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
        self, fetch: Fetch, partition: _Partition, answer: Answer, records: list[StoredRecord]
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

    def _expired(self, partition: _Partition, waiter: _Waiter) -> None:
        partition.waiters.remove(waiter)
        self._serve(waiter.fetch, partition, waiter.answer)

    def _wake(self, partition: _Partition) -> None:
        waiters, partition.waiters = partition.waiters, []
        for waiter in waiters:
            if waiter.timer is not None:
                waiter.timer.cancel()
            self._serve(waiter.fetch, partition, waiter.answer)


def _size(record: StoredRecord) -> int:
    return len(record.key) + len(record.value)


def _topic_id(connection: sqlite3.Connection, topic: Topic) -> bytes:
    connection.execute(
        "INSERT OR IGNORE INTO topic VALUES (?,?)", (topic.value, secrets.token_bytes(16))
    )
    row = connection.execute("SELECT id FROM topic WHERE name=?", (topic.value,)).fetchone()
    return bytes(row[0])


def _load(connection: sqlite3.Connection, topic: Topic, number: int) -> _Partition:
    row = connection.execute(
        "SELECT first FROM span WHERE topic=? AND partition=?", (topic.value, number)
    ).fetchone()
    return _Partition(
        int(row[0]) if row else 0, ends_of(connection, [(topic, number)])[topic, number]
    )


def _trim(connection: sqlite3.Connection, topic: Topic, number: int, before: int) -> int:
    """Remove what stands below ``before``; the end must outlive the last record, hence ``last_end``. The new start."""
    end = ends_of(connection, [(topic, number)])[topic, number]
    before = min(before, end)
    connection.execute(
        "DELETE FROM record WHERE topic=? AND partition=? AND position<?",
        (topic.value, number, before),
    )
    connection.execute(
        "INSERT INTO span VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET first=max(first,excluded.first), "
        "last_end=max(last_end,excluded.last_end)",
        (topic.value, number, before, end),
    )
    row = connection.execute(
        "SELECT first FROM span WHERE topic=? AND partition=?", (topic.value, number)
    ).fetchone()
    return int(row[0])


def _first_young(
    connection: sqlite3.Connection, topic: Topic, number: int, older_than: int, keep_from: int
) -> int:
    """The first offset that stays; 0 where no record leads that is old enough."""
    rows = connection.execute(
        "SELECT position,time FROM record WHERE topic=? AND partition=? ORDER BY position LIMIT ?",
        (topic.value, number, TRIM_RECORDS_MAX),
    )
    stays = 0
    for position, append_time in rows:
        if append_time >= older_than or position >= keep_from:
            break
        stays = position + 1
    return stays


def _compact(connection: sqlite3.Connection, number: int, begin: int, older_than: int) -> int:
    """Each record looked at takes those before it with its key away; the first young one stops. Where to go on."""
    rows = connection.execute(
        "SELECT position,time,key FROM record WHERE topic='user_state' AND partition=? AND position>=? "
        "ORDER BY position LIMIT ?",
        (number, begin, COMPACT_RECORDS_MAX),
    ).fetchall()
    for position, append_time, key in rows:
        if append_time >= older_than:
            return begin
        connection.execute(
            "DELETE FROM record WHERE topic='user_state' AND partition=? AND key=? AND position<?",
            (number, key, position),
        )
        begin = int(position) + 1
    return begin


def _read(connection: sqlite3.Connection, fetch: Fetch) -> list[StoredRecord]:
    """From the offset on, and before these the record at ``offset - 1`` where ``fetch`` names one and it is there."""
    taken: list[StoredRecord] = []
    if names_record(fetch.before):
        place = (fetch.topic.value, fetch.partition, fetch.offset - 1)
        found = connection.execute(
            "SELECT position,time,key,value FROM record WHERE topic=? AND partition=? AND position=?",
            place,
        ).fetchone()
        if found is not None:
            offset, append_time, key, value = found
            taken.append(StoredRecord(offset=offset, append_time=append_time, key=key, value=value))
    return taken + _read_on(connection, fetch)


def _read_on(connection: sqlite3.Connection, fetch: Fetch) -> list[StoredRecord]:
    rows = connection.execute(
        "SELECT position,time,key,value FROM record WHERE topic=? AND partition=? AND position>=? "
        "ORDER BY position LIMIT ?",
        (fetch.topic.value, fetch.partition, fetch.offset, fetch.limit),
    )
    taken: list[StoredRecord] = []
    size = 0
    for offset, append_time, key, value in rows:
        size += len(key) + len(value)
        if taken and size > fetch.bytes_max:
            break
        taken.append(StoredRecord(offset=offset, append_time=append_time, key=key, value=value))
    return taken
