"""Tables and statements of the embedded archive; each function runs inside one transaction of its caller.

history is clustered by (conversation, bucket, seq, message_id) through ``place``; ``message_index`` finds a message by its
id and ``expiry`` what has run out. The other tables are the facts that never expire (pipeline.md §1.8).
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from qim.core.archived import (
    MembershipStep,
    bucket_of,
    founding_of,
    membership_after,
    overlay_of,
    single_users_of,
    step_of,
)
from qim.core.contract.entities import MessageRecord, decode_stored_record
from qim.core.ports.archive import ArchivedConversation, ArchiveRow

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS history (conversation BLOB NOT NULL, bucket INTEGER NOT NULL, seq BLOB NOT NULL,
  message BLOB NOT NULL, position INTEGER NOT NULL, retained_until INTEGER NOT NULL, stored BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS place ON history (conversation, bucket, seq, message);
CREATE INDEX IF NOT EXISTS message_index ON history (message);
CREATE INDEX IF NOT EXISTS expiry ON history (retained_until);
CREATE TABLE IF NOT EXISTS conversation (id BLOB PRIMARY KEY, partition INTEGER NOT NULL, kind INTEGER NOT NULL,
  greatest BLOB NOT NULL, activity BLOB NOT NULL, users BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS conversation_partition ON conversation (partition, id);
CREATE TABLE IF NOT EXISTS founding (conversation BLOB PRIMARY KEY, creator BLOB NOT NULL, name TEXT NOT NULL,
  meta BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS step (conversation BLOB NOT NULL, version BLOB NOT NULL, digest BLOB NOT NULL,
  control BLOB NOT NULL, operation INTEGER NOT NULL, users BLOB NOT NULL,
  PRIMARY KEY (conversation, version, digest)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS overlay (conversation BLOB NOT NULL, target BLOB NOT NULL, seq BLOB NOT NULL,
  user BLOB NOT NULL, PRIMARY KEY (conversation, target, seq, user)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (partition INTEGER PRIMARY KEY, through INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS let_go (single INTEGER PRIMARY KEY CHECK (single=0), before INTEGER NOT NULL);
"""
U64_MAX: Final = (1 << 64) - 1
I64_MAX: Final = (1 << 63) - 1


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _number(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _pack(numbers: Sequence[int]) -> bytes:
    return b"".join([number.to_bytes(8, "big") for number in numbers])


def _unpack(packed: bytes) -> tuple[int, ...]:
    return tuple([_number(packed[at : at + 8]) for at in range(0, len(packed), 8)])


# ------------------------------------------------------------ writing


class _Greatest:
    """What a batch says of one conversation."""

    __slots__ = ("activity", "first", "seq")

    def __init__(self, record: MessageRecord) -> None:
        self.first = record
        self.seq = record.conversation_seq
        self.activity = record.last_activity_id


def write_batch(
    connection: sqlite3.Connection, partition: int, rows: Sequence[ArchiveRow], through: int
) -> tuple[tuple[bytes, int], ...]:
    """Rows, facts, position. Answers the (conversation_id, seq) among them that hold more than one message_id now."""
    greatest: dict[bytes, _Greatest] = {}
    for row in rows:
        record = decode_stored_record(row.stored)
        known = greatest.get(row.conversation_id)
        if known is None:
            greatest[row.conversation_id] = _Greatest(record)
        else:
            known.seq = max(known.seq, record.conversation_seq)
            known.activity = max(known.activity, record.last_activity_id)
        _write_facts(connection, row.conversation_id, record)
    doubtful = _doubtful(connection, rows, greatest)
    connection.executemany(
        "INSERT OR IGNORE INTO history VALUES (?,?,?,?,?,?,?)",
        [
            (
                row.conversation_id,
                bucket_of(row.conversation_seq),
                _u64(row.conversation_seq),
                row.message_id,
                row.outbox_offset,
                min(row.retained_until, I64_MAX),
                row.stored,
            )
            for row in rows
        ],
    )
    connection.executemany(
        "INSERT INTO conversation VALUES (?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "
        "greatest=max(greatest,excluded.greatest), activity=max(activity,excluded.activity)",
        [
            (
                conversation_id,
                partition,
                known.first.conversation_kind,
                _u64(known.seq),
                known.activity,
                _pack(single_users_of(known.first) or ()),
            )
            for conversation_id, known in greatest.items()
        ],
    )
    if through > 0:
        connection.execute(
            "INSERT INTO position VALUES (?,?) ON CONFLICT DO UPDATE SET "
            "through=max(through,excluded.through)",
            (partition, through),
        )
    return _reused(connection, doubtful)


def _write_facts(
    connection: sqlite3.Connection, conversation_id: bytes, record: MessageRecord
) -> None:
    step, overlay, founding = step_of(record), overlay_of(record), founding_of(record)
    if step is not None:
        connection.execute(
            "INSERT OR IGNORE INTO step VALUES (?,?,?,?,?,?)",
            (
                conversation_id,
                _u64(step.version),
                step.digest,
                _u64(step.control_seq),
                step.operation,
                _pack(step.users),
            ),
        )
    if founding is not None:
        connection.execute(
            "INSERT OR IGNORE INTO founding VALUES (?,?,?,?)",
            (conversation_id, _u64(founding.creator), founding.name, founding.meta),
        )
    if overlay is not None:
        connection.execute(
            "INSERT OR IGNORE INTO overlay VALUES (?,?,?,?)",
            (conversation_id, *[_u64(part) for part in overlay]),
        )


def _doubtful(
    connection: sqlite3.Connection, rows: Sequence[ArchiveRow], greatest: dict[bytes, _Greatest]
) -> list[tuple[bytes, int]]:
    """Places that may be taken: at or below what was archived before, or named twice in the batch.

    A place above everything archived can't hold another message, and that is all of them but in a repeat.
    """
    archived: dict[bytes, int] = {}
    for conversation_id in greatest:
        held = connection.execute(
            "SELECT greatest FROM conversation WHERE id=?", (conversation_id,)
        ).fetchone()
        archived[conversation_id] = _number(held[0]) if held else -1
    named: dict[tuple[bytes, int], bytes] = {}
    doubtful: dict[tuple[bytes, int], None] = {}
    for row in rows:
        place = (row.conversation_id, row.conversation_seq)
        other = named.setdefault(place, row.message_id)
        if row.conversation_seq <= archived[row.conversation_id] or other != row.message_id:
            doubtful[place] = None
    return list(doubtful)


def _reused(
    connection: sqlite3.Connection, places: list[tuple[bytes, int]]
) -> tuple[tuple[bytes, int], ...]:
    reused: list[tuple[bytes, int]] = []
    for conversation_id, seq in places:
        row = connection.execute(
            "SELECT count(*) FROM history WHERE conversation=? AND bucket=? AND seq=?",
            (conversation_id, bucket_of(seq), _u64(seq)),
        ).fetchone()
        if row[0] > 1:
            reused.append((conversation_id, seq))
    return tuple(reused)


def expire(connection: sqlite3.Connection, before_wall: int, limit: int) -> tuple[int, bool]:
    """Remove rows whose retention has run out; a hold stands at the greatest time and is never before anything."""
    due = (
        "SELECT rowid FROM history INDEXED BY expiry WHERE retained_until<? "
        "ORDER BY retained_until LIMIT ?"
    )
    before = min(before_wall, I64_MAX)
    connection.execute(
        "INSERT INTO let_go VALUES (0,?1) ON CONFLICT (single) DO UPDATE SET before=?1 WHERE before<?1",
        (before,),
    )
    cursor = connection.execute(f"DELETE FROM history WHERE rowid IN ({due})", (before, limit))
    return cursor.rowcount, connection.execute(due, (before, 1)).fetchone() is not None


# ------------------------------------------------------------ reading


def read_page(
    connection: sqlite3.Connection,
    conversation_id: bytes,
    low: int,
    high: int,
    *,
    newest_first: bool,
    limit: int,
) -> tuple[tuple[bytes, ...], bool]:
    """Bucket by bucket, as many as the page touches, and whether rows stand beyond it."""
    first, last = max(low + 1, 0), min(high - 1, U64_MAX)
    found: list[bytes] = []
    bucket = bucket_of(last if newest_first else first)
    while first <= last and len(found) <= limit:
        place = _next_bucket(connection, conversation_id, bucket, newest_first=newest_first)
        if place is None or not bucket_of(first) <= place <= bucket_of(last):
            break
        order = "DESC" if newest_first else "ASC"
        rows = connection.execute(
            "SELECT stored FROM history WHERE conversation=? AND bucket=? AND seq>=? AND seq<=? "
            f"ORDER BY seq {order}, message {order} LIMIT ?",
            (conversation_id, place, _u64(first), _u64(last), limit + 1 - len(found)),
        )
        found += [row[0] for row in rows]
        bucket = place - 1 if newest_first else place + 1
    return tuple(found[:limit]), len(found) > limit


def _next_bucket(
    connection: sqlite3.Connection, conversation_id: bytes, bucket: int, *, newest_first: bool
) -> int | None:
    """The nearest bucket with rows at or beyond ``bucket``."""
    if newest_first:
        query = "SELECT max(bucket) FROM history WHERE conversation=? AND bucket<=?"
    else:
        query = "SELECT min(bucket) FROM history WHERE conversation=? AND bucket>=?"
    place: int | None = connection.execute(query, (conversation_id, bucket)).fetchone()[0]
    return place


def read_bodies(
    connection: sqlite3.Connection, names: Sequence[tuple[bytes, int, bytes]]
) -> tuple[tuple[bytes | None, ...], int]:
    """One a name, and before which time rows were let go: read last, so that a row that just went is explained."""
    found: list[bytes | None] = []
    for conversation_id, seq, message_id in names:
        row = connection.execute(
            "SELECT stored FROM history WHERE conversation=? AND bucket=? AND seq=? AND message=?",
            (conversation_id, bucket_of(seq), _u64(seq), message_id),
        ).fetchone()
        found.append(row[0] if row else None)
    gone = connection.execute("SELECT before FROM let_go").fetchone()
    return tuple(found), gone[0] if gone else 0


def read_conversations(
    connection: sqlite3.Connection, partition: int, after: bytes, limit: int
) -> tuple[tuple[ArchivedConversation, ...], bool, int]:
    """A page in id order, whether others stand beyond it, and the archive's position."""
    rows = connection.execute(
        "SELECT id,kind,greatest,activity,users FROM conversation WHERE partition=? AND id>? "
        "ORDER BY id LIMIT ?",
        (partition, after, limit + 1),
    ).fetchall()
    held = connection.execute(
        "SELECT through FROM position WHERE partition=?", (partition,)
    ).fetchone()
    found = [_conversation(connection, *row) for row in rows[:limit]]
    return tuple(found), len(rows) > limit, held[0] if held else 0


def _conversation(
    connection: sqlite3.Connection,
    conversation_id: bytes,
    kind: int,
    greatest: bytes,
    activity: bytes,
    users: bytes,
) -> ArchivedConversation:
    steps = connection.execute(
        "SELECT version,digest,control,operation,users FROM step WHERE conversation=?",
        (conversation_id,),
    )
    versions, everyone = membership_after(
        conversation_id,
        [
            MembershipStep(
                version=_number(version),
                digest=digest,
                control_seq=_number(control),
                operation=operation,
                users=_unpack(changed),
            )
            for version, digest, control, operation, changed in steps
        ],
    )
    founding = connection.execute(
        "SELECT creator,name,meta FROM founding WHERE conversation=?", (conversation_id,)
    ).fetchone()
    overlays = connection.execute(
        "SELECT target,seq,user FROM overlay WHERE conversation=? ORDER BY target,seq,user",
        (conversation_id,),
    )
    pair = _unpack(users)
    return ArchivedConversation(
        conversation_id=conversation_id,
        conversation_kind=kind,
        greatest_seq=_number(greatest),
        last_activity_id=activity,
        single_users=(pair[0], pair[1]) if pair else None,
        versions=versions,
        everyone=everyone,
        creator=_number(founding[0]) if founding else 0,
        name=founding[1] if founding else "",
        meta=founding[2] if founding else b"",
        overlays=tuple([(_number(t), _number(s), _number(u)) for t, s, u in overlays]),
    )
