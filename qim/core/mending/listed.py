"""What a projection had not read of a lost dispatch log, put into the lists of users before anybody asks for them (pipeline.md §7).

A device that rebuilds finds what its mailbox had before the bump by the list alone, and is done when that goes as far as the
mailbox does now: what fanout dispatches again comes after that, as a duplicate that nobody is told of.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from qim.core.contract.entities import FanoutAuditReceipt
from qim.core.contract.logvalue import Dispatched, Outboxed, read_dispatch, read_outbox
from qim.core.mending.asking import FETCH_RECORDS, Procedure, ask, fetch, record_at
from qim.core.mending.dispatching import audience_of
from qim.core.ports.log import EndsRead, Position, Topic
from qim.core.ports.store_session import (
    DispatchesProjected,
    ProjectDispatches,
    ProjectedRow,
    SessionOpened,
)
from qim.core.position import NO_DIGEST
from qim.core.session.projecting import RowName, merge

ROWS_MAX: Final = 1_000
"""Of one script call."""
Owed = tuple[tuple[int, FanoutAuditReceipt], ...]
"""(outbox partition, receipt) of what a shard's projection may not have read."""


def gone_from(
    log: EndsRead, shard: int, named: Iterable[tuple[int, bytes]]
) -> Procedure[dict[int, None]]:
    """Places where another record stands than a receipt names (offset, dispatch_id). What a log loses is its tail: pages are
    read from the last one back, until all that is named in one stands there."""
    wanted = dict(named)
    gone: dict[int, None] = {}
    high = max(wanted, default=-1) + 1
    while high > log.start and wanted:
        low = max(high - FETCH_RECORDS, log.start)
        here = {at: one for at, one in wanted.items() if low <= at < high}
        for stored in (yield from fetch(Topic.DISPATCH, shard, low, high - low)):
            read = read_dispatch(stored.value)
            if (
                isinstance(read, Dispatched)
                and here.get(stored.offset) == read.dispatch.dispatch_id
            ):
                del here[stored.offset], wanted[stored.offset]
                if not here:
                    return gone
        gone.update(dict.fromkeys(here))
        wanted = {at: one for at, one in wanted.items() if at < low}
        high = max(wanted, default=-1) + 1
    return gone


def rows_of(
    owed: Iterable[tuple[int, FanoutAuditReceipt]], shard: int, shard_count: int
) -> Procedure[tuple[ProjectedRow, ...]]:
    """Of the shard's users. A record that the outbox let go has none; what is to be dispatched again is never one of these."""
    rows: dict[RowName, ProjectedRow] = {}
    for partition, receipt in owed:
        stored = yield from record_at(Topic.OUTBOX, partition, receipt.source_offset)
        entry = read_outbox(stored.value) if stored is not None else None
        if not isinstance(entry, Outboxed) or entry.record.message_id != receipt.message_id:
            continue
        by_shard = yield from audience_of(partition, entry.record, shard_count)
        for user_id in dict(by_shard).get(shard, ()):
            merge(rows, entry.record, user_id)
    return tuple(rows.values())


def put_in_lists(
    rows: Sequence[ProjectedRow], shard: int, epoch: int, session: SessionOpened, log: EndsRead
) -> Procedure[None]:
    """Under the lease of the projection, whose position stays where it is. A row is only ever raised."""
    position = session.dispatch or Position(log.topic_id, log.start, NO_DIGEST)
    for first in range(0, len(rows), ROWS_MAX):
        request = ProjectDispatches(
            op=0,
            shard=shard,
            epoch=epoch,
            incarnation=session.incarnation,
            from_offset=position.offset,
            to=position,
            rows=tuple(rows[first : first + ROWS_MAX]),
        )
        yield from ask(request, DispatchesProjected)
