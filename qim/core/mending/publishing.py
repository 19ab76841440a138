"""What a repair appends to an outbox, and the proof that it means something where it stands (pipeline.md §§0, 1.7).

Its lease keeps others away for as long as it is renewed, and proves nothing: an owner that came amid has put its barrier there, and
what is published behind that is skipped by everybody. So the log is read back before anything is done that rests on it.
"""

from collections.abc import Sequence
from typing import Final

from qim.core.contract.logvalue import Barrier, Outboxed, barrier_value, outbox_value
from qim.core.effective import EffectiveFilter
from qim.core.mending.asking import NotMended, Overtaken, Procedure, ask, fetch, read
from qim.core.mending.lost import Found
from qim.core.ports.log import Append, Appended, LogRecord, StoredRecord, Topic
from qim.core.ports.registry import (
    BarrierRegistered,
    EpochRaised,
    RaiseEpoch,
    RegisterBarrier,
    Resource,
    Role,
)

BATCH_RECORDS: Final = 256
BATCH_BYTES: Final = 512 * 1024


class Publishing:
    """One run's appends, under the ``epoch`` of the writer's lease, to a log that ended where it was looked at."""

    def __init__(self, partition: int, epoch: int, found: Found) -> None:
        self._partition = partition
        self._epoch = epoch
        self._passed = EffectiveFilter(found.barrier_epoch)
        self._proved_to = found.log.end
        self._end = found.log.end
        self._unproved = 0

    def pad(self, count: int) -> Procedure[None]:
        """At least one barrier: whatever a dead owner appends late means nothing behind it.

        Raises Overtaken where the log has a barrier that is not below ours: the registry was set back, and forgot a grant.
        """
        writer = Resource(role=Role.WRITER, number=self._partition)
        if self._passed.epoch >= self._epoch:
            above = self._passed.epoch
            yield from ask(RaiseEpoch(op=0, resource=writer, above=above), EpochRaised)
            raise Overtaken(
                f"outbox {self._partition} has a barrier of epoch {above}, and its writer's lease was granted {self._epoch}; the "
                "next grant is above it"
            )
        left = max(count, 1)
        first = True
        while left:
            batch = min(left, BATCH_RECORDS)
            records = (LogRecord(key=b"", value=barrier_value(self._epoch)),) * batch
            offsets = yield from self._append(records)
            left -= batch
            if first:
                first = False
                request = RegisterBarrier(
                    op=0, resource=writer, epoch=self._epoch, offset=offsets[0]
                )
                yield from ask(request, BarrierRegistered)

    def publish(self, stored: Sequence[bytes]) -> Procedure[None]:
        """In the order in which they stood: within a conversation that is the order of seq. Raises Overtaken, proved otherwise."""
        batch: list[LogRecord] = []
        size = 0
        for one in stored:
            value = outbox_value(self._epoch, one)
            entry = read(StoredRecord(offset=0, append_time=0, key=b"", value=value))
            if not isinstance(entry, Outboxed):
                raise NotMended("the hot store holds a record that this version can't read")
            if batch and (len(batch) == BATCH_RECORDS or size + len(value) > BATCH_BYTES):
                yield from self._append(tuple(batch))
                batch, size = [], 0
            batch.append(LogRecord(key=entry.record.message_id, value=value))
            size += len(value)
        if batch:
            yield from self._append(tuple(batch))
        yield from self._prove()

    def _append(self, records: tuple[LogRecord, ...]) -> Procedure[tuple[int, ...]]:
        request = Append(
            op=0, topic=Topic.OUTBOX, partition=self._partition, epoch=self._epoch, records=records
        )
        offsets = (yield from ask(request, Appended)).offsets
        self._end = offsets[-1] + 1
        self._unproved += len(records)
        return offsets

    def _prove(self) -> Procedure[None]:
        """Up to the last of ours: all of it stands there, no higher barrier before it, and of nobody else what means something.

        What comes behind changes nothing of that: whether a record is effective is a function of what stands below it.
        """
        while self._proved_to < self._end:
            records = yield from fetch(Topic.OUTBOX, self._partition, self._proved_to)
            if not records:
                raise NotMended(
                    f"outbox {self._partition} is not readable at {self._proved_to}, where this run has published: run it again"
                )
            for stored in records:
                if stored.offset >= self._end:
                    break
                self._judge(stored)
            self._proved_to = min(records[-1].offset + 1, self._end)
        if self._unproved > 0:
            raise NotMended(
                f"outbox {self._partition} lacks {self._unproved} of the records that this run has published: it lost them again; "
                "run it again"
            )
        self._unproved = 0

    def _judge(self, stored: StoredRecord) -> None:
        entry = read(stored)
        where = f"outbox {self._partition}, offset {stored.offset}"
        if not isinstance(entry, Barrier | Outboxed):
            raise Overtaken(f"{where}: a record that this version can't read stands among its own")
        effective = self._passed.admits(entry)
        if self._passed.epoch > self._epoch:
            raise Overtaken(
                f"{where}: a barrier of epoch {self._passed.epoch} stands among its own records, which have {self._epoch}, and "
                "those behind it mean nothing"
            )
        if entry.epoch == self._epoch:
            self._unproved -= 1
        elif effective:
            raise Overtaken(f"{where}: a record of epoch {entry.epoch} was appended amid the work")
