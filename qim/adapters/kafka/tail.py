"""One partition that is read from: a window of records ahead of the reader, and who waits for more.

empty --a read says where--> seated --polled--> window grows --asked for--> what was passed leaves the window
seated --out of range, another topic id, another leadership, a connection lost--> empty

A window is what one leadership told: a log is cut under no leader, but between two, and what comes then need not follow what
stands in the window. So whoever reads on after that reads anew, and has the record before its place compared (reader.py).
"""

from asyncio import TimerHandle
from bisect import bisect_left
from collections.abc import Callable

from msgspec import Struct

from qim.adapters.kafka.ends import Ends
from qim.adapters.kafka.reader import Outside, Span
from qim.adapters.kafka.record_batches import bytes_of, within
from qim.core.ports.completion import Completion
from qim.core.ports.log import Fetch, Fetched, LogReply, OutOfRange, StoredRecord
from qim.core.position import is_other, names_record

Answer = Callable[[LogReply | Completion], object]


class Waiter(Struct):
    """A fetch that waits until ``deadline`` (loop time); ``reading``: a direct read of it is under way."""

    fetch: Fetch
    answer: Answer
    deadline: float
    timer: TimerHandle | None = None


class Tail:
    """The window covers [low, next): offsets in it without a record are holes that compaction left."""

    __slots__ = (
        "asked_at", "asked_until", "before", "behind_since", "bytes", "ends", "epoch", "hungry", "key", "low", "next", "ready_at",
        "records", "waiters"
    )  # fmt: skip

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.ends: Ends | None = None
        self.epoch = -1
        """The leadership under which all of the window was read."""
        self.before = b""
        """The digest of the record before ``low``, as compared; empty: not known."""
        self.low = 0
        self.next = 0
        self.records: list[StoredRecord] = []
        self.bytes = 0
        self.waiters: list[Waiter] = []
        self.asked_at = 0
        """The offset last asked for: what lag is measured from."""
        self.asked_until = 0.0
        """Until then it is read ahead (loop time)."""
        self.ready_at = 0.0
        self.hungry = False
        """Its next batch is larger than a poll's share."""
        self.behind_since: float | None = None

    @property
    def seated(self) -> bool:
        """It has a position."""
        return self.ends is not None

    @property
    def lag(self) -> int:
        """Records between what was asked for last and the end, as far as we know."""
        return max(0, self.ends.end - self.asked_at) if self.ends is not None else 0

    def seat(self, span: Span, low: int, before: bytes) -> None:
        """Begin (again) with what a direct read found."""
        self.ends = span.ends
        self.epoch = span.epoch
        self.low, self.next = low, max(low, span.next)
        self.before = before
        self.records = [*span.records]
        self.bytes = sum(map(bytes_of, span.records))
        self.hungry = False
        self.behind_since = None

    def empty(self) -> None:
        """No position any more."""
        self.ends = None
        self.epoch = -1
        self.records = []
        self.bytes = 0
        self.hungry = False
        self.behind_since = None

    def covers(self, fetch: Fetch) -> bool:
        """It can serve the fetch now or as soon as something comes: the offset, and what stands before it as named."""
        offset = fetch.offset
        if not self.seated or not self.low <= offset <= self.next:
            return False
        if not names_record(fetch.before):
            return True
        if offset == self.low:
            return self.before == fetch.before
        place = bisect_left(self.records, offset - 1, key=_offset_of)
        if place == len(self.records) or self.records[place].offset != offset - 1:
            return True
        return not is_other(fetch.before, self.records[place])

    def grew(self, ends: Ends, records: list[StoredRecord], following: int) -> None:
        """A poll brought what stands from ``next`` on."""
        self.ends = ends
        self.records += records
        self.bytes += sum(map(bytes_of, records))
        if following > self.next:
            self.behind_since = None
        self.next = max(self.next, following)
        self.hungry = False

    def passed(self, fetch: Fetch) -> None:
        """Everything below was asked beyond."""
        count = bisect_left(self.records, fetch.offset, key=_offset_of)
        self.bytes -= sum(map(bytes_of, self.records[:count]))
        del self.records[:count]
        if fetch.offset >= self.low:
            self.low, self.before = fetch.offset, fetch.before

    def take(self, fetch: Fetch) -> list[StoredRecord]:
        """What the window, which covers it, has for it."""
        first = bisect_left(self.records, fetch.offset, key=_offset_of)
        return within(self.records, first, fetch.limit, fetch.bytes_max)

    def fetched(self, fetch: Fetch, records: list[StoredRecord]) -> Fetched:
        """The answer in the port's words."""
        assert self.ends is not None
        return fetched(fetch, self.ends, records)


def fetched(fetch: Fetch, ends: Ends, records: list[StoredRecord]) -> Fetched:
    """An end below the asked offset can only be a new leader's that hasn't caught up with its own past: what stands before
    the offset was compared, or nobody named it."""
    return Fetched(
        op=fetch.op,
        topic_id=ends.topic_id,
        start=ends.start,
        end=max(ends.end, fetch.offset),
        records=tuple(records),
    )


def outside(fetch: Fetch, found: Outside) -> OutOfRange:
    """The answer in the port's words."""
    ends = found.ends
    return OutOfRange(
        op=fetch.op,
        topic_id=ends.topic_id,
        start=ends.start,
        end=ends.end,
        other_record=found.other_record,
    )


def _offset_of(record: StoredRecord) -> int:
    return record.offset
