"""One Append on its way: cut into record batches, framed under a sequence number, settled once.

waiting --sent--> in flight --answered--> next batch or settled
                      └─ unsure or not written --backoff--> in flight, same bytes; after its time settled
"""

from collections.abc import Callable, Sequence
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from msgspec import Struct

from qim.adapters.kafka.settings import BATCH_OVERHEAD_BYTES
from qim.core.ports.completion import Completion, Failed, FailReason, Unknown
from qim.core.ports.log import Append, Appended, AppendRefused, LogRecord, LogReply

Answer = Callable[[LogReply | Completion], object]

RECORD_FRAME_BYTES: Final = 32
"""Length, attributes, time and offset deltas, two lengths, no headers: 21 at most, rounded up."""
SEQUENCE_END: Final = 1 << 31
"""Sequence numbers go round after this."""


class Identity(Struct, frozen=True):
    """A producer id and its epoch; sequence numbers of a partition count under it from 0."""

    producer_id: int
    epoch: int


class AppendJob:
    """``unsure`` says that some attempt may have been written: from then on nothing ends as Failed."""

    __slots__ = (
        "_answer", "_append", "_built", "_done_records", "_offsets", "_parts", "_time", "attempts", "deadline",
        "size", "submitted", "unsure"
    )  # fmt: skip

    def __init__(
        self, append: Append, answer: Answer, *, submitted: float, deadline: float
    ) -> None:
        self._append = append
        self._answer: Answer | None = answer
        self._parts: list[tuple[LogRecord, ...]] = []
        self._built: tuple[Identity, int, bytes] | None = None
        self._offsets: list[int] = []
        self._done_records = 0
        self._time = 0
        self.submitted = submitted
        self.deadline = deadline
        self.unsure = False
        self.attempts = 0
        self.size = sum(map(framed_bytes, append.records))

    def cut(self, batch_bytes_max: int) -> None:
        """Into as few record batches as the limit allows. Nearly always one: only that is contiguous for sure."""
        self._parts = list(cut(self._append.records, batch_bytes_max))

    def halve(self) -> bool:
        """The broker takes less than we were told; False when one record alone is too much."""
        part = self._parts[0]
        if len(part) == 1:
            return False
        middle = len(part) // 2
        self._parts[0:1] = [part[:middle], part[middle:]]
        self._built = None
        return True

    @property
    def records(self) -> int:
        """In the batch that goes next."""
        return len(self._parts[0])

    def bytes_under(self, identity: Identity, sequence: int, wall_ms: int) -> bytes:
        """The next batch; the same bytes again for the same identity and sequence."""
        if self._built is None or self._built[:2] != (identity, sequence):
            self._built = (identity, sequence, build(self._parts[0], identity, sequence, wall_ms))
        return self._built[2]

    def stands(self, base: int, append_time: int) -> bool:
        """The batch in flight is in the log from offset ``base`` on; True when it was the last one."""
        count = self.records
        self.unsure = False
        self._offsets.extend(range(base, base + count))
        self._time = self._time or append_time
        self._done_records += count
        del self._parts[0]
        self._built = None
        return not self._parts

    @property
    def complete(self) -> bool:
        """Every batch stands."""
        return not self._parts

    # ---------------------------------------------------------------- settled

    def appended(self) -> None:
        """All of it is durable."""
        self._settle(
            Appended(op=self._append.op, offsets=tuple(self._offsets), append_time=self._time)
        )

    def refused(self, index: int | None, why: str) -> None:
        """The record with this index in the batch in flight (None: the largest) is the reason; nothing was written."""
        part = self._parts[0]
        if index is None or not 0 <= index < len(part):
            index = max(range(len(part)), key=lambda n: framed_bytes(part[n]))
        if self.unsure or self._done_records:
            self.unknown()
        else:
            self._settle(AppendRefused(op=self._append.op, index=index, why=why))

    def failed(self, why: FailReason) -> None:
        """Surely not written; Unknown where that can't be said of every batch."""
        if self.unsure or self._done_records:
            self.unknown()
        else:
            self._settle(Failed(op=self._append.op, why=why))

    def unknown(self) -> None:
        """Written, not, or still to be."""
        self._settle(Unknown(op=self._append.op))

    def _settle(self, reply: LogReply | Completion) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None, f"append {self._append.op} settled twice"
        answer(reply)


def framed_bytes(record: LogRecord) -> int:
    """An upper bound of what the record takes in a batch."""
    return len(record.key) + len(record.value) + RECORD_FRAME_BYTES


def cut(records: Sequence[LogRecord], batch_bytes_max: int) -> list[tuple[LogRecord, ...]]:
    """In order, each part within the limit (or a single record)."""
    parts: list[tuple[LogRecord, ...]] = []
    part: list[LogRecord] = []
    size = BATCH_OVERHEAD_BYTES
    for record in records:
        size += framed_bytes(record)
        if part and size > batch_bytes_max:
            parts.append(tuple(part))
            part, size = [], BATCH_OVERHEAD_BYTES + framed_bytes(record)
        part.append(record)
    return [*parts, tuple(part)]


def build(part: Sequence[LogRecord], identity: Identity, sequence: int, wall_ms: int) -> bytes:
    """A record batch of format 2, uncompressed; the broker puts its own time over ours."""
    size = BATCH_OVERHEAD_BYTES + sum(map(framed_bytes, part))
    builder = DefaultRecordBatchBuilder(
        2, 0, 0, identity.producer_id, identity.epoch, sequence, size
    )
    for number, record in enumerate(part):
        taken = builder.append(number, wall_ms, record.key, record.value, [])
        assert taken is not None, "the bound on a framed record is too small"
    return bytes(builder.build())


def sequence_after(sequence: int, count: int) -> int:
    """Of the batch behind one of ``count`` records."""
    return (sequence + count) % SEQUENCE_END
