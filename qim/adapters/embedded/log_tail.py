"""What memory knows of a partition of the embedded log: where it starts and ends, its newest records, and who waits for more.

From its first day in memory the tail holds the last record that the file has, so that a reader at the end always has its
record before compared (decision 0029); it is empty only where the partition is.
"""

from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from qim.core.ports.completion import Completion
from qim.core.ports.log import Fetch, LogReply, StoredRecord
from qim.core.position import is_other, names_record

Answer = Callable[[LogReply | Completion], None]

TAIL_RECORDS_MAX: Final = 2_048
TAIL_BYTES_MAX: Final = 4 * 1024 * 1024


class Waiter(Struct):
    """A fetch at the end, until something comes or its time is up."""

    fetch: Fetch
    answer: Answer
    timer: TimerHandle | None = None


class LogTail:
    """``records`` end at ``end`` without a hole; older ones are in the file alone."""

    __slots__ = (
        "appended", "bytes", "compacted_to", "compacting", "end", "records", "start", "waiters"
    )  # fmt: skip

    def __init__(self, start: int, end: int, last: StoredRecord | None) -> None:
        """``last``: the record before ``end``, None where there is none."""
        self.start = start
        self.end = end
        self.records: deque[StoredRecord] = deque([] if last is None else [last])
        self.bytes = sum(map(_size, self.records))
        self.waiters: list[Waiter] = []
        self.compacted_to = start
        self.compacting = False
        self.appended = 0
        """Records since the last compaction job."""

    def grew(self, records: list[StoredRecord]) -> None:
        """Records became durable at the end."""
        if records[0].offset != self.end:
            # Something answered Unknown stands in between: the tail would have a hole, the file has none.
            self.records.clear()
            self.bytes = 0
        for record in records:
            self.records.append(record)
            self.bytes += _size(record)
        self.end = records[-1].offset + 1
        while len(self.records) > TAIL_RECORDS_MAX or self.bytes > TAIL_BYTES_MAX:
            self.bytes -= _size(self.records.popleft())

    def starts_at(self, offset: int) -> None:
        """Retention took everything below ``offset``."""
        self.start = max(self.start, offset)
        while self.records and self.records[0].offset < self.start:
            self.bytes -= _size(self.records.popleft())

    def differs(self, fetch: Fetch) -> bool:
        """Another record stands before the offset than the one named, as far as memory has it; else the file is read for it."""
        if not self.records or fetch.offset <= self.records[0].offset:
            return False
        return is_other(fetch.before, self.records[fetch.offset - 1 - self.records[0].offset])

    def served(self, fetch: Fetch) -> list[StoredRecord] | None:
        """Records from memory, or None where the file must be asked: for them, or for the one before that ``fetch`` names."""
        held = self.records[0].offset if self.records else self.end
        if fetch.offset < held:
            return None
        if fetch.offset == held and held > self.start and names_record(fetch.before):
            return None
        taken: list[StoredRecord] = []
        size = 0
        first = fetch.offset - held
        for index in range(first, min(first + fetch.limit, len(self.records))):
            size += _size(self.records[index])
            if taken and size > fetch.bytes_max:
                break
            taken.append(self.records[index])
        return taken


def _size(record: StoredRecord) -> int:
    return len(record.key) + len(record.value)
