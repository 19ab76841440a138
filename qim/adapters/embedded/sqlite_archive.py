"""The archive port on SQLite: WAL, synchronous=FULL, one commit a batch; reads on a connection of their own (pipeline.md §5).

Every table is a set of rows that inserting again leaves as they are, so a batch may be repeated, late or twice. u64 values
stand as 8 bytes big-endian: SQLite's integers are signed. A reader never waits for a writer's fsync.
"""

import sqlite3
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from qim.adapters.embedded.archive_rows import (
    SCHEMA,
    expire,
    read_bodies,
    read_conversations,
    read_page,
    write_batch,
)
from qim.adapters.embedded.database_thread import DatabaseThread, mishap
from qim.core.ports.archive import (
    ArchiveBodiesRead,
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
from qim.core.ports.completion import Completion

Answer = Callable[[ArchiveReply | Completion], None]

ROWS_MAX: Final = 4_096
"""Rows of one WriteArchive: more would hold the others of its commit up."""


class SqliteArchive:
    """``submit`` an ArchiveRequest from the event loop; ``answer`` is called on the loop exactly once."""

    def __init__(self, path: Path, loop: AbstractEventLoop) -> None:
        self._writes = DatabaseThread(path, loop, schema=SCHEMA, name="qim-archive")
        self._reads = DatabaseThread(path, loop, schema="", name="qim-archive-reads", reads=True)

    @property
    def waiting(self) -> int:
        """Jobs that wait for either database thread (metric)."""
        return self._writes.waiting + self._reads.waiting

    async def close(self) -> None:
        """Answer what was submitted, make it durable, close."""
        await self._writes.close()
        await self._reads.close()

    def submit(self, request: ArchiveRequest, answer: Answer) -> None:
        """See ports/archive.py."""
        op = request.op
        work = _work(request)
        writing = isinstance(request, WriteArchive | ExpireArchive)

        def done(result: object) -> None:
            if isinstance(result, Exception):
                answer(mishap(op, result))
            else:
                answer(result)  # type: ignore[arg-type]

        (self._writes if writing else self._reads).submit(work, done)


def _work(request: ArchiveRequest) -> Callable[[sqlite3.Connection], ArchiveReply]:
    match request:
        case WriteArchive():
            return lambda connection: _write(connection, request)
        case ReadArchive():
            return lambda connection: _read(connection, request)
        case ReadArchiveBodies():
            return lambda connection: _bodies(connection, request)
        case ReadArchivedConversations():
            return lambda connection: _conversations(connection, request)
        case ExpireArchive():
            return lambda connection: _expire(connection, request)
        case _:
            assert_never(request)


def _write(connection: sqlite3.Connection, request: WriteArchive) -> ArchiveWritten:
    assert len(request.rows) <= ROWS_MAX, len(request.rows)
    reused = write_batch(connection, request.partition, request.rows, request.through)
    return ArchiveWritten(op=request.op, reused=reused)


def _read(connection: sqlite3.Connection, request: ReadArchive) -> ArchiveRead:
    stored, more = read_page(
        connection,
        request.conversation_id,
        request.low,
        request.high,
        newest_first=request.newest_first,
        limit=request.limit,
    )
    return ArchiveRead(op=request.op, stored=stored, more=more)


def _conversations(
    connection: sqlite3.Connection, request: ReadArchivedConversations
) -> ArchivedConversationsRead:
    found, more, position = read_conversations(
        connection, request.partition, request.after, request.limit
    )
    return ArchivedConversationsRead(
        op=request.op, conversations=found, more=more, position=position
    )


def _bodies(connection: sqlite3.Connection, request: ReadArchiveBodies) -> ArchiveBodiesRead:
    stored, let_go = read_bodies(connection, request.names)
    return ArchiveBodiesRead(op=request.op, stored=stored, let_go=let_go)


def _expire(connection: sqlite3.Connection, request: ExpireArchive) -> ArchiveExpired:
    removed, more = expire(connection, request.before_wall, request.limit)
    return ArchiveExpired(op=request.op, removed=removed, more=more)
