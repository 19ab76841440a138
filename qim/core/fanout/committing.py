"""Receipts, dead letters and checkpoint of a prefix, in ONE fenced script (pipeline.md §2)."""

from collections.abc import Sequence

from qim.core.contract.entities import FanoutAuditReceipt, ReceiptShard, encode_receipt
from qim.core.fanout.orders import Orders, What
from qim.core.fanout.partition import Partition, SourceItem
from qim.core.ports.log import Position
from qim.core.ports.store_source import CommitSource
from qim.core.position import record_digest

TRACES_MAX = 4


def commit_source(orders: Orders, partition: Partition, prefix: Sequence[SourceItem]) -> None:
    """Order the checkpoint to pass ``prefix``, whose dispatches are all durable."""
    receipts: list[tuple[int, bytes]] = []
    dead_letters: list[tuple[int, bytes]] = []
    traces: list[int] = []
    for item in prefix:
        assert not item.missing, "no checkpoint passes a dispatch that isn't durable"
        if item.outboxed is not None:
            receipts.append((item.stored.offset, encode_receipt(_receipt(item))))
            traces.append(item.outboxed.record.trace_id)
        elif item.dead_letter:
            dead_letters.append((item.stored.offset, item.stored.value))
    last = prefix[-1]
    partition.commit = CommitSource(
        op=orders.op(What.COMMIT, partition),
        partition=partition.number,
        epoch=partition.epoch,
        incarnation=partition.incarnation,
        from_offset=partition.checkpoint,
        to=Position(partition.topic_id, last.stored.offset + 1, record_digest(last.stored)),
        filter_epoch=last.filter_epoch,
        receipts=tuple(receipts),
        dead_letters=tuple(dead_letters),
        traces=tuple(traces[:TRACES_MAX]),
        log_start=partition.start,
    )
    orders.give(partition.commit)


def _receipt(item: SourceItem) -> FanoutAuditReceipt:
    assert item.outboxed is not None
    places: list[ReceiptShard] = []
    for place in item.places or ():
        assert place is not None
        places.append(place)
    return FanoutAuditReceipt(
        source_offset=item.stored.offset,
        message_id=item.outboxed.record.message_id,
        source_epoch=item.outboxed.epoch,
        shards=tuple(places),
    )


def committed(partition: Partition) -> None:
    """The checkpoint stands: what it passed leaves the window, and f rises."""
    commit = partition.commit
    assert commit is not None
    partition.commit = None
    while partition.sent and partition.sent[0].stored.offset < commit.to.offset:
        partition.window_bytes -= len(partition.sent.popleft().stored.value)
    partition.checkpoint = partition.durable = commit.to.offset
