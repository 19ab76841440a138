"""Where a consumer stands still until newer code comes: at its position stands a record of a newer format (pipeline.md §2).

The session projection's positions are its own, and a writer judges the outbox at its open only: those two tell it themselves.
"""

from collections.abc import Sequence

from msgspec import Struct

from qim.core.contract.logvalue import NewerFormat, read_dispatch, read_outbox
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.mending.asking import Procedure, ask, record_at
from qim.core.ports.log import Topic
from qim.core.ports.store_history import ArchivePositionRead, ReadArchivePosition
from qim.core.ports.store_mailbox import ReadShardState, ShardStateRead
from qim.core.ports.store_source import ReadSource, SourceRead


class Halt(Struct, frozen=True, kw_only=True):
    """``consumer``: fanout, archiver or mailbox. ``size_bytes`` and ``version`` are the record's."""

    consumer: str
    topic: Topic
    number: int
    offset: int
    size_bytes: int
    version: int


def halts(
    partitions: Sequence[int], shards: Sequence[int], *, tiered: bool
) -> Procedure[tuple[Halt, ...]]:
    """Of these outbox partitions and mailbox shards; ``tiered``: there is an archiver."""
    found: list[Halt | None] = []
    for partition in partitions:
        source = ReadSource(op=0, partition=partition, low=0, high=0, limit=1)
        checkpoint = (yield from ask(source, SourceRead)).checkpoint
        found.append((yield from halt("fanout", Topic.OUTBOX, partition, max(checkpoint, 0))))
        if tiered:
            request = ReadArchivePosition(op=0, partition=partition)
            archived = (yield from ask(request, ArchivePositionRead)).offset
            found.append((yield from halt("archiver", Topic.OUTBOX, partition, max(archived, 0))))
    for shard in shards:
        state = yield from ask(ReadShardState(op=0, shard=shard), ShardStateRead)
        if state.base >= 0:
            offset = split_mailbox_seq(state.min_watermark + 1)[1]
            found.append((yield from halt("mailbox", Topic.DISPATCH, shard, offset)))
    return tuple(one for one in found if one is not None)


def halt(consumer: str, topic: Topic, number: int, offset: int) -> Procedure[Halt | None]:
    """Whether the record at ``offset`` is of a newer format; None also where there is none."""
    stored = yield from record_at(topic, number, offset)
    if stored is None:
        return None
    read = read_outbox if topic is Topic.OUTBOX else read_dispatch
    entry = read(stored.value)
    if not isinstance(entry, NewerFormat):
        return None
    return Halt(
        consumer=consumer,
        topic=topic,
        number=number,
        offset=offset,
        size_bytes=len(stored.value),
        version=entry.version,
    )
