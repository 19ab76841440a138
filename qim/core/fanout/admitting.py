"""Judging fetched records, in offset order: effective or not, decodable or not, which version they name (pipeline.md §2)."""

from typing import assert_never

from qim.core.audience import named_version
from qim.core.contract.logvalue import Barrier, NewerFormat, Outboxed, Undecodable, read_outbox
from qim.core.fanout.orders import Orders
from qim.core.fanout.partition import Partition, SourceItem
from qim.core.ports.log import StoredRecord
from qim.core.ports.observe import Count, halted


def admit(orders: Orders, partition: Partition, stored: StoredRecord) -> SourceItem | None:
    """Put the record at ``next_offset`` into the window; None where a newer format halts the partition before it."""
    assert stored.offset == partition.next_offset and not partition.halted
    entry = read_outbox(stored.value)
    outboxed: Outboxed | None = None
    dead_letter = False
    match entry:
        case Outboxed():
            outboxed = entry if partition.filter.admits(entry) else None
        case Barrier():
            partition.filter.admits(entry)
        case NewerFormat():
            partition.halted = True
            orders.give(Count(name="fanout_newer_format", label=str(partition.number)))
            orders.give(halted("outbox", partition.number, stored.offset, entry.version))
            return None
        case Undecodable():
            dead_letter = True
            orders.give(Count(name="fanout_dead_letter", label=str(partition.number)))
        case _:
            assert_never(entry)
    item = SourceItem(
        stored=stored,
        filter_epoch=partition.filter.epoch,
        outboxed=outboxed,
        dead_letter=dead_letter,
        named=named_version(outboxed.record) if outboxed is not None else None,
    )
    partition.next_offset += 1
    partition.window_bytes += len(stored.value)
    partition.undispatched.append(item)
    return item
