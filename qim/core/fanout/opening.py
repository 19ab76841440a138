"""From a lease to a trusted position: OpenSource, then the log's ends, then the record before the position (§§2, 7).

Each ``on_*`` answers why the partition must stop, or None. There is no automatic reset; only a checkpoint that was never
stored starts at the log's start, with the greatest barrier that retention took as its filter.
"""

from qim.core.effective import EffectiveFilter
from qim.core.fanout.orders import Orders, What
from qim.core.fanout.partition import Partition, Stage
from qim.core.fanout.vocabulary import FanoutConfig
from qim.core.machine import Ms
from qim.core.opener import Opener
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds, Topic
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_source import OpenSource, SourceOpened
from qim.core.position import Verdict, judge_ends, judge_predecessor


def open_source(orders: Orders, partition: Partition, opener: Opener) -> None:
    """Raise the fence and ask for the checkpoint."""
    op = orders.op(What.OPEN, partition)
    orders.give(
        OpenSource(
            op=op,
            partition=partition.number,
            epoch=partition.epoch,
            fresh_key=opener.fresh_key(partition.number, partition.epoch, op),
            opener=opener.name,
        )
    )


def on_source_opened(orders: Orders, partition: Partition, event: SourceOpened) -> None:
    """The fence stands. Ends read before it could lie behind what a last owner still committed: ask only now."""
    partition.incarnation = event.incarnation
    partition.position = event.position
    partition.filter = EffectiveFilter(event.filter_epoch)
    partition.stage = Stage.READING_ENDS
    read_ends(orders, partition)


def read_ends(orders: Orders, partition: Partition) -> None:
    """Ask for topic id, start and end."""
    op = orders.op(What.ENDS, partition)
    orders.give(ReadEnds(op=op, topic=Topic.OUTBOX, partition=partition.number))


def on_ends_read(orders: Orders, partition: Partition, event: EndsRead) -> str | None:
    """First judgement of the position."""
    partition.topic_id = event.topic_id
    position = partition.position
    if position is None:
        partition.stage = Stage.READING_BARRIER
        partition.next_offset = event.start
        read_barrier(orders, partition)
        return None
    verdict = judge_ends(position, event.topic_id, event.start, event.end)
    if verdict is Verdict.TRUSTED:
        run(partition, position.offset)
    elif verdict is Verdict.NEEDS_PREDECESSOR:
        partition.stage = Stage.CHECKING
        fetch(orders, partition, position.offset - 1, limit=1, bytes_max=1, wait_ms=0)
    else:
        return f"{verdict.name}: position {position.offset}, log {event.start}..{event.end}"
    return None


def read_barrier(orders: Orders, partition: Partition) -> None:
    """Ask the registry for the greatest barrier below the log's start (pipeline.md §1.7)."""
    orders.give(
        ReadLease(
            op=orders.op(What.BARRIER, partition),
            resource=Resource(role=Role.WRITER, number=partition.number),
            barriers_below=partition.next_offset,
        )
    )


def on_barrier_read(partition: Partition, event: LeaseRead) -> None:
    """Start at the log's start. No checkpoint stands to be compared, and no promise f is known yet."""
    partition.checkpoint = partition.next_offset
    epoch = event.barrier_epoch if event.barrier_offset >= 0 else 0
    partition.filter = EffectiveFilter(epoch)
    partition.stage = Stage.RUNNING


def on_predecessor(orders: Orders, partition: Partition, event: Fetched | OutOfRange) -> str | None:
    """Second judgement: is the record before the position the one it remembers?"""
    position = partition.position
    assert position is not None
    if isinstance(event, OutOfRange) or not event.records:
        # Retention moved on since the ends were read: they decide again.
        partition.stage = Stage.READING_ENDS
        read_ends(orders, partition)
        return None
    if judge_predecessor(position, event.records[0]) is not Verdict.TRUSTED:
        return f"{Verdict.OTHER_RECORD.name}: another record stands before {position.offset}"
    run(partition, position.offset)
    return None


def run(partition: Partition, offset: int) -> None:
    """The position is trusted: all below it is dispatched."""
    assert partition.position is not None
    partition.checkpoint = partition.durable = partition.next_offset = offset
    partition.before = partition.position.digest
    partition.stage = Stage.RUNNING


def fetch_if_room(orders: Orders, config: FanoutConfig, partition: Partition) -> None:
    """The next fetch of a running partition, as far as its window takes more."""
    room = config.window_records_max - partition.window_records()
    bytes_room = config.window_bytes_max - partition.window_bytes
    if partition.fetching or partition.halted or room <= 0 or bytes_room <= 0:
        return
    fetch(
        orders,
        partition,
        partition.next_offset,
        limit=min(room, config.fetch_records_max),
        bytes_max=min(bytes_room, config.fetch_bytes_max),
        wait_ms=config.fetch_wait_ms,
    )


def fetch(
    orders: Orders, partition: Partition, offset: int, *, limit: int, bytes_max: int, wait_ms: Ms
) -> None:
    """One fetch in flight a partition."""
    partition.fetching = True
    orders.give(
        Fetch(
            op=orders.op(What.FETCH, partition),
            topic=Topic.OUTBOX,
            partition=partition.number,
            offset=offset,
            limit=limit,
            bytes_max=bytes_max,
            wait_ms=wait_ms,
            before=partition.before if offset == partition.next_offset else b"",
        )
    )
