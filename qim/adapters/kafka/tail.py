"""One partition that is read from: a window of records ahead of the reader, and who waits for more.

empty --a read says where--> seated --polled--> window grows --asked for--> what was passed leaves the window
seated --out of range, another topic id--> empty
"""

from asyncio import TimerHandle
from bisect import bisect_left
from collections.abc import Callable

from msgspec import Struct

from qim.adapters.kafka.reader import Ends
from qim.adapters.kafka.record_batches import bytes_of, within
from qim.core.ports.completion import Completion
from qim.core.ports.log import Fetch, Fetched, LogReply, StoredRecord

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
        "asked_at", "asked_until", "behind_since", "bytes", "ends", "hungry", "key", "low", "next", "ready_at",
        "records", "waiters"
    )  # fmt: skip

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.ends: Ends | None = None
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

    def seat(self, ends: Ends, low: int, following: int, records: list[StoredRecord]) -> None:
        """Begin (again) with what a direct read found."""
        self.ends = ends
        self.low, self.next = low, following
        self.records = records
        self.bytes = sum(map(bytes_of, records))
        self.hungry = False
        self.behind_since = None

    def empty(self) -> None:
        """No position any more."""
        self.ends = None
        self.records = []
        self.bytes = 0
        self.hungry = False
        self.behind_since = None

    def covers(self, offset: int) -> bool:
        """It can serve the offset now or as soon as something comes."""
        return self.seated and self.low <= offset <= self.next

    def grew(self, ends: Ends, records: list[StoredRecord], following: int) -> None:
        """A poll brought what stands from ``next`` on."""
        self.ends = ends
        self.records += records
        self.bytes += sum(map(bytes_of, records))
        if following > self.next:
            self.behind_since = None
        self.next = max(self.next, following)
        self.hungry = False

    def passed(self, offset: int) -> None:
        """Everything below was asked beyond."""
        count = bisect_left(self.records, offset, key=_offset_of)
        self.bytes -= sum(map(bytes_of, self.records[:count]))
        del self.records[:count]
        self.low = max(self.low, offset)

    def take(self, fetch: Fetch) -> list[StoredRecord]:
        """What the window has for it."""
        first = bisect_left(self.records, fetch.offset, key=_offset_of)
        return within(self.records, first, fetch.limit, fetch.bytes_max)

    def fetched(self, fetch: Fetch, records: list[StoredRecord]) -> Fetched:
        """The answer in the port's words."""
        assert self.ends is not None
        return fetched(fetch, self.ends, records)


def fetched(fetch: Fetch, ends: Ends, records: list[StoredRecord]) -> Fetched:
    """An end below the asked offset can only be a new leader's that hasn't caught up with its own past."""
    return Fetched(
        op=fetch.op,
        topic_id=ends.topic_id,
        start=ends.start,
        end=max(ends.end, fetch.offset),
        records=tuple(records),
    )


def _offset_of(record: StoredRecord) -> int:
    return record.offset
