"""From fetched records to confirmed batches, and from confirmed batches to the position (pipeline.md §5).

The order is the promise: rows confirmed, then the position, which is the watermark that hot trimming trusts.
"""

from typing import assert_never

from qim.core.archiver.orders import Orders, What
from qim.core.archiver.partition import Item, Partition
from qim.core.archiver.vocabulary import ArchiverConfig
from qim.core.contract.invariants import SideStage
from qim.core.contract.logvalue import Barrier, NewerFormat, Outboxed, Undecodable, read_outbox
from qim.core.ports.archive import ArchiveRow, WriteArchive
from qim.core.ports.log import Position, StoredRecord
from qim.core.ports.observe import Count, StageReached, halted
from qim.core.ports.store_history import CommitArchive
from qim.core.position import record_digest
from qim.core.retention import retained_until

TRACES_MAX = 4


def admit(
    orders: Orders, config: ArchiverConfig, partition: Partition, stored: StoredRecord
) -> bool:
    """Put the record at ``next_offset`` into the window; False where a newer format halts the partition before it.

    What no version can decode is skipped and counted: fanout keeps it as a dead letter, and there is nothing to show.
    """
    assert stored.offset == partition.next_offset and not partition.halted
    entry = read_outbox(stored.value)
    row: ArchiveRow | None = None
    trace_id = sent_at = 0
    match entry:
        case Outboxed():
            if partition.filter.admits(entry):
                row = _row(config, stored.offset, entry)
                trace_id, sent_at = entry.record.trace_id, entry.record.sent_at
        case Barrier():
            partition.filter.admits(entry)
        case NewerFormat():
            partition.halted = True
            orders.give(Count(name="archiver_newer_format", label=str(partition.number)))
            orders.give(halted("outbox", partition.number, stored.offset, entry.version))
            return False
        case Undecodable():
            orders.give(Count(name="archiver_undecodable", label=str(partition.number)))
        case _:
            assert_never(entry)
    partition.window.append(
        Item(
            stored=stored,
            filter_epoch=partition.filter.epoch,
            row=row,
            trace_id=trace_id,
            sent_at=sent_at,
        )
    )
    partition.next_offset += 1
    partition.window_bytes += len(stored.value)
    return True


def _row(config: ArchiverConfig, offset: int, entry: Outboxed) -> ArchiveRow:
    record = entry.record
    return ArchiveRow(
        conversation_id=record.conversation_id,
        conversation_seq=record.conversation_seq,
        message_id=record.message_id,
        outbox_offset=offset,
        retained_until=retained_until(
            config.retention, record.tenant_id, record.retention_class, record.sent_at
        ),
        stored=entry.stored,
    )


def next_batch(config: ArchiverConfig, partition: Partition) -> None:
    """Cut the head of the window, bounded by records and bytes, at least one."""
    size = 0
    while partition.window and len(partition.batch) < config.batch_rows_max:
        size += len(partition.window[0].stored.value)
        if partition.batch and size > config.batch_bytes_max:
            break
        partition.batch.append(partition.window.popleft())


def write(orders: Orders, partition: Partition) -> None:
    """Order the batch, also a second time: every row is idempotent."""
    partition.writing = True
    rows = [item for item in partition.batch if item.row is not None]
    orders.give(
        WriteArchive(
            op=orders.op(What.WRITE, partition),
            partition=partition.number,
            rows=tuple([item.row for item in rows if item.row is not None]),
            traces=tuple([item.trace_id for item in rows[:TRACES_MAX]]),
            through=partition.batch[-1].stored.offset + 1,
        )
    )


def written(orders: Orders, partition: Partition) -> int:
    """The batch is durable; how many rows it had."""
    batch, partition.batch, partition.writing = partition.batch, [], False
    partition.window_bytes -= sum([len(item.stored.value) for item in batch])
    partition.confirmed = batch[-1]
    rows = [item for item in batch if item.row is not None]
    for item in rows:
        orders.give(
            StageReached(trace_id=item.trace_id, stage=SideStage.ARCHIVED, sent_at=item.sent_at)
        )
    return len(rows)


def commit(orders: Orders, partition: Partition) -> None:
    """Move the position over everything confirmed; what lies below a position that stands is only filled up."""
    confirmed, partition.confirmed = partition.confirmed, None
    assert confirmed is not None and partition.commit is None
    to = confirmed.stored.offset + 1
    if to <= partition.checkpoint:
        return
    partition.commit = CommitArchive(
        op=orders.op(What.COMMIT, partition),
        partition=partition.number,
        epoch=partition.epoch,
        incarnation=partition.incarnation,
        from_offset=partition.checkpoint,
        to=Position(partition.topic_id, to, record_digest(confirmed.stored)),
        filter_epoch=confirmed.filter_epoch,
    )
    orders.give(partition.commit)


def committed(partition: Partition) -> None:
    """The watermark stands."""
    assert partition.commit is not None
    partition.checkpoint = partition.commit.to.offset
    partition.commit = None
