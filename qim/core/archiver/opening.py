"""From a lease to a trusted start: OpenArchive, the archive's own position, the log's ends, the record before (§§5, 7).

Two positions are compared: the hot store's, which is the watermark that trimming trusts, and the archive's, which stands
with the rows. The walk starts at the lower one. Where the log no longer holds what the archive lacks, the partition stops:
a watermark above a hole would have hot rows trimmed that stand nowhere else.

Each ``on_*`` answers (check, why) when the partition must stop, or None.
"""

from qim.core.archiver.orders import Orders, What
from qim.core.archiver.partition import Partition, Stage
from qim.core.archiver.vocabulary import ARCHIVE_HOLE, POSITION_MISMATCH
from qim.core.effective import EffectiveFilter
from qim.core.machine import Ms
from qim.core.opener import Opener
from qim.core.ports.archive import ArchivedConversationsRead, ReadArchivedConversations
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds, Topic
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_history import ArchiveOpened, OpenArchive
from qim.core.position import Verdict, judge_ends, judge_predecessor

Stop = tuple[str, str] | None


def open_archive(orders: Orders, partition: Partition, opener: Opener) -> None:
    """Raise the fence and ask for the position."""
    op = orders.op(What.OPEN, partition)
    orders.give(
        OpenArchive(
            op=op,
            partition=partition.number,
            epoch=partition.epoch,
            fresh_key=opener.fresh_key(partition.number, partition.epoch, op),
            opener=opener.name,
        )
    )


def on_opened(orders: Orders, partition: Partition, event: ArchiveOpened) -> None:
    """The fence stands."""
    partition.incarnation = event.incarnation
    partition.position = event.position
    partition.filter = EffectiveFilter(event.filter_epoch)
    partition.stage = Stage.ASKING
    ask_archive(orders, partition)


def ask_archive(orders: Orders, partition: Partition) -> None:
    """How far is the archive by its own word?"""
    op = orders.op(What.ASK, partition)
    orders.give(ReadArchivedConversations(op=op, partition=partition.number, after=b"", limit=0))


def on_archive_position(
    orders: Orders, partition: Partition, event: ArchivedConversationsRead
) -> None:
    """Ends read before the fence stood could lie behind what a last owner still committed: ask only now."""
    partition.archived = event.position
    partition.stage = Stage.READING_ENDS
    read_ends(orders, partition)


def read_ends(orders: Orders, partition: Partition) -> None:
    """Ask for topic id, start and end."""
    op = orders.op(What.ENDS, partition)
    orders.give(ReadEnds(op=op, topic=Topic.OUTBOX, partition=partition.number))


def on_ends_read(orders: Orders, partition: Partition, event: EndsRead) -> Stop:
    """First judgement of both positions."""
    partition.topic_id = event.topic_id
    partition.end = event.end
    position, archived = partition.position, partition.archived
    if archived > event.end:
        return POSITION_MISMATCH, f"archive at {archived}, log {event.start}..{event.end}"
    if archived < event.start and (position is None or archived < position.offset):
        return ARCHIVE_HOLE, f"[{archived}, {event.start}) is in neither archive nor log"
    if position is None:
        partition.checkpoint = event.start
        _start_without_filter(orders, partition, event.start)
        return None
    verdict = judge_ends(position, event.topic_id, event.start, event.end)
    if verdict is Verdict.TRUSTED:
        _start(orders, partition)
    elif verdict is Verdict.NEEDS_PREDECESSOR:
        partition.stage = Stage.CHECKING
        fetch(orders, partition, position.offset - 1, limit=1, bytes_max=1, wait_ms=0)
    else:
        why = f"{verdict.name}: position {position.offset}, log {event.start}..{event.end}"
        return POSITION_MISMATCH, why
    return None


def on_predecessor(orders: Orders, partition: Partition, event: Fetched | OutOfRange) -> Stop:
    """Second judgement: is the record before the position the one it remembers?"""
    position = partition.position
    assert position is not None
    if isinstance(event, OutOfRange) or not event.records:
        # Retention moved on since the ends were read: they decide again.
        partition.stage = Stage.READING_ENDS
        read_ends(orders, partition)
        return None
    if judge_predecessor(position, event.records[0]) is not Verdict.TRUSTED:
        why = f"{Verdict.OTHER_RECORD.name}: another record stands before {position.offset}"
        return POSITION_MISMATCH, why
    _start(orders, partition)
    return None


def _start(orders: Orders, partition: Partition) -> None:
    """The position is trusted; an archive that is behind it (another file, an older copy) is filled up first."""
    position = partition.position
    assert position is not None
    partition.checkpoint = position.offset
    if partition.archived < position.offset:
        _start_without_filter(orders, partition, partition.archived)
    else:
        partition.next_offset = position.offset
        partition.before = position.digest
        partition.stage = Stage.RUNNING


def _start_without_filter(orders: Orders, partition: Partition, offset: int) -> None:
    partition.next_offset = offset
    partition.stage = Stage.READING_BARRIER
    read_barrier(orders, partition)


def read_barrier(orders: Orders, partition: Partition) -> None:
    """Ask the registry for the greatest barrier below the start (pipeline.md §1.7)."""
    orders.give(
        ReadLease(
            op=orders.op(What.BARRIER, partition),
            resource=Resource(role=Role.WRITER, number=partition.number),
            barriers_below=partition.next_offset,
        )
    )


def on_barrier_read(partition: Partition, event: LeaseRead) -> None:
    """The filter as of the start."""
    epoch = event.barrier_epoch if event.barrier_offset >= 0 else 0
    partition.filter = EffectiveFilter(epoch)
    partition.stage = Stage.RUNNING


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
