"""Appends as few SQL statements as can be, whatever their number (components.md, Log).

Every statement lets go of the interpreter's lock and waits to get it back from a busy event loop, up to a switch interval
each time. So all appends of a commit are ONE look at the ends of their partitions and a handful of inserts of many rows,
padded to few sizes so that the statements stay prepared.
"""

import sqlite3
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from qim.core.ports.log import Append, StoredRecord, Topic

INSERT_ROWS: Final = (1, 4, 16, 64, 128)
"""Sizes of prepared inserts; six parameters a row stay under the 999 of any SQLite."""
_NO_ROW: Final[tuple[Any, ...]] = (None,) * 6
_END: Final = (
    "max(coalesce((SELECT max(position)+1 FROM record WHERE topic=? AND partition=?),0),"
    "coalesce((SELECT last_end FROM span WHERE topic=? AND partition=?),0))"
)


def ends_of(
    connection: sqlite3.Connection, partitions: Sequence[tuple[Topic, int]]
) -> dict[tuple[Topic, int], int]:
    """The offset that each partition's next record gets, as the file has it."""
    names = [
        part for topic, number in partitions for part in (topic.value, number, topic.value, number)
    ]
    row = connection.execute(_ends_query(len(partitions)), names).fetchone()
    return dict(zip(partitions, row, strict=True))


def write_appends(
    connection: sqlite3.Connection, appends: Sequence[Append]
) -> list[list[StoredRecord]]:
    """Write the records of all ``appends`` in their order; what was stored, for each of them."""
    now = time.time_ns() // 1_000_000
    ends = ends_of(
        connection, tuple(dict.fromkeys((append.topic, append.partition) for append in appends))
    )
    rows: list[tuple[Any, ...]] = []
    stored: list[list[StoredRecord]] = []
    for append in appends:
        place = append.topic, append.partition
        topic, number, offset = append.topic.value, append.partition, ends[place]
        records = [
            StoredRecord(offset=offset + index, append_time=now, key=record.key, value=record.value)
            for index, record in enumerate(append.records)
        ]
        rows += [(topic, number, one.offset, now, one.key, one.value) for one in records]
        ends[place] = offset + len(records)
        stored.append(records)
    _insert(connection, rows)
    return stored


def _insert(connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    most = INSERT_ROWS[-1]
    for first in range(0, len(rows), most):
        part = rows[first : first + most]
        size = next(size for size in INSERT_ROWS if size >= len(part))
        part += [_NO_ROW] * (size - len(part))
        connection.execute(_insert_query(size), [value for row in part for value in row])


@cache
def _ends_query(count: int) -> str:
    return "SELECT " + ",".join([_END] * count)


@cache
def _insert_query(rows: int) -> str:
    values = ",".join(["(?,?,?,?,?,?)"] * rows)
    return f"INSERT INTO record SELECT * FROM (VALUES {values}) WHERE column1 IS NOT NULL"
