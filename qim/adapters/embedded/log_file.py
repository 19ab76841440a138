"""The file of the embedded log: its tables, and all that is read or removed; what is appended: log_rows.py.

Each function runs inside a job of the database thread, with its connection.
"""

import secrets
import sqlite3
from typing import Final

from qim.adapters.embedded.log_rows import ends_of
from qim.adapters.embedded.log_tail import LogTail
from qim.core.ports.log import Fetch, StoredRecord, Topic
from qim.core.position import names_record

COMPACT_RECORDS_MAX: Final = 1_000
"""Records one compaction job looks at; a job begins with every so many appended ones."""
TRIM_RECORDS_MAX: Final = 2_000
"""Records one retention job looks at and removes: appends ride in the same commits and must not wait for it."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS topic (name TEXT PRIMARY KEY, id BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS span (topic TEXT, partition INTEGER, first INTEGER, last_end INTEGER,
  PRIMARY KEY (topic, partition)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS record (topic TEXT, partition INTEGER, position INTEGER, time INTEGER, key BLOB, value BLOB,
  PRIMARY KEY (topic, partition, position)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS state_key ON record (partition, key, position) WHERE topic='user_state';
"""


def topic_id(connection: sqlite3.Connection, topic: Topic) -> bytes:
    """Of this creation of the topic; made when it is first asked for."""
    connection.execute(
        "INSERT OR IGNORE INTO topic VALUES (?,?)", (topic.value, secrets.token_bytes(16))
    )
    row = connection.execute("SELECT id FROM topic WHERE name=?", (topic.value,)).fetchone()
    return bytes(row[0])


def load(connection: sqlite3.Connection, topic: Topic, number: int) -> LogTail:
    """A partition as memory takes it over: its start and end, and its last record where it has one."""
    row = connection.execute(
        "SELECT first FROM span WHERE topic=? AND partition=?", (topic.value, number)
    ).fetchone()
    end = ends_of(connection, [(topic, number)])[topic, number]
    last = _record_at(connection, topic, number, end - 1)
    return LogTail(int(row[0]) if row else 0, end, last)


def trim(connection: sqlite3.Connection, topic: Topic, number: int, before: int) -> int:
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


def first_young(
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


def compact(connection: sqlite3.Connection, number: int, begin: int, older_than: int) -> int:
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


def read(connection: sqlite3.Connection, fetch: Fetch) -> list[StoredRecord]:
    """From the offset on, and before these the record at ``offset - 1`` where ``fetch`` names one and it is there."""
    before = None
    if names_record(fetch.before):
        before = _record_at(connection, fetch.topic, fetch.partition, fetch.offset - 1)
    return ([] if before is None else [before]) + _read_on(connection, fetch)


def _record_at(
    connection: sqlite3.Connection, topic: Topic, number: int, position: int
) -> StoredRecord | None:
    found = connection.execute(
        "SELECT time,key,value FROM record WHERE topic=? AND partition=? AND position=?",
        (topic.value, number, position),
    ).fetchone()
    if found is None:
        return None
    append_time, key, value = found
    return StoredRecord(offset=position, append_time=append_time, key=key, value=value)


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
