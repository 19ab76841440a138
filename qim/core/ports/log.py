"""The log port: outbox and dispatch logs (pipeline.md §§0-3, 7). A log carries no fence.

A partition is a sequence of records with dense offsets from ``start`` (retention moves it up) to ``end``. ``Append`` is
acks=all and keeps the order of its records in one contiguous-in-order batch; two Appends of one partition by one machine
are never in flight together. ``Unknown`` of an Append means: appended, not, or LATER. ``Fetch`` waits up to ``wait_ms``
for records at ``offset``. A position that is not in the log answers ``OutOfRange``; nothing is ever reset by itself.
"""

from enum import StrEnum

from msgspec import Struct


class Topic(StrEnum):
    """Log topics; partition of OUTBOX = writer shard, of DISPATCH and USER_STATE = mailbox shard.

    USER_STATE is compacted by key (the last record of a key stays): read marks and user state (pipeline.md §4).
    """

    OUTBOX = "outbox"
    DISPATCH = "dispatch"
    USER_STATE = "user_state"


class LogRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A record to append: key = message_id (16 B; empty for a barrier), value framed by contract/logvalue.py."""

    key: bytes
    value: bytes


class StoredRecord(Struct, frozen=True, kw_only=True, gc=False):
    """A record as the log holds it; ``append_time`` is the log's own wall ms (LogAppendTime)."""

    offset: int
    append_time: int
    key: bytes
    value: bytes


class Position(Struct, frozen=True, array_like=True, gc=False):
    """Where a consumer stands in a partition (pipeline.md §7): next offset, and the digest of the record before it."""

    topic_id: bytes
    offset: int
    digest: bytes


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """Append ``records`` in order to one partition. Answers: Appended, AppendRefused, Failed, Unknown."""

    op: int
    topic: Topic
    partition: int
    epoch: int
    records: tuple[LogRecord, ...]
    traces: tuple[int, ...] = ()


class Appended(Struct, frozen=True, kw_only=True, gc=False):
    """All records are durable; ``offsets[i]`` is where records[i] stands."""

    op: int
    offsets: tuple[int, ...]
    append_time: int


class AppendRefused(Struct, frozen=True, kw_only=True, gc=False):
    """The log names record ``index`` itself as the reason (too large, invalid): nothing of the batch was appended."""

    op: int
    index: int
    why: str


class Fetch(Struct, frozen=True, kw_only=True, gc=False):
    """Read up to ``limit`` records or ``bytes_max`` (at least one) from ``offset``. Answers: Fetched, OutOfRange, Failed.

    ``before``: the digest of the record at ``offset - 1`` as the reader knows it (core/position.py), empty where it knows
    none. A log that lost its tail and grew again has another record there: a running reader would skip what it never saw.
    Compared whenever the log still has a record at that place, also when the fetch had waited; retention and compaction
    may have taken it, then the topic's identity decides alone (pipeline.md §7).
    """

    op: int
    topic: Topic
    partition: int
    offset: int
    limit: int
    bytes_max: int
    wait_ms: int
    before: bytes = b""


class Fetched(Struct, frozen=True, kw_only=True, gc=False):
    """Records from the asked offset on (maybe none); topic_id (16 B) identifies this creation of the topic."""

    op: int
    topic_id: bytes
    start: int
    end: int
    records: tuple[StoredRecord, ...]


class OutOfRange(Struct, frozen=True, kw_only=True, gc=False):
    """The asked offset is not within [start, end]; or, ``other_record``, another record stands before it than the one named."""

    op: int
    topic_id: bytes
    start: int
    end: int
    other_record: bool = False


class ReadEnds(Struct, frozen=True, kw_only=True, gc=False):
    """Ask for topic id, start and end of a partition. Answers: EndsRead, Failed."""

    op: int
    topic: Topic
    partition: int


class EndsRead(Struct, frozen=True, kw_only=True, gc=False):
    """``start`` is the first retained offset, ``end`` the offset the next record will get."""

    op: int
    topic_id: bytes
    start: int
    end: int


LogRequest = Append | Fetch | ReadEnds
LogReply = Appended | AppendRefused | Fetched | OutOfRange | EndsRead
