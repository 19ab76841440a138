"""Fanout put behind everything that stands in a repaired outbox, with a receipt for each record of it (pipeline.md §§2, 7).

    its position made one that nobody trusts --> what was dispatched is published again (outbox.py)
    --> receipts written where their records stand now --> what has none dispatched by hand
    --> receipts of places that mean something else now dropped, page by page --> the position behind all of it

A stop anywhere leaves the receipt of every record that was dispatched, at one place or another, and a fanout that does not begin: what
it met a second time it would dispatch a second time, and the claims of the first are gone.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from qim.core.contract.entities import FanoutAuditReceipt, encode_receipt
from qim.core.contract.hashing import H
from qim.core.contract.sequences import U64_MAX
from qim.core.mending import source
from qim.core.mending.asking import Procedure, barrier_below, ends, record_at
from qim.core.mending.dead_letters import dispatched
from qim.core.mending.lost import walk
from qim.core.ports.log import Topic

HELD: Final = H("qim.position", "held by a repair")
"""The digest of no record."""

Row = tuple[int, bytes]


def hold(partition: int, fresh_key: bytes) -> Procedure[None]:
    """Until its position is put, no fanout takes it for that of this log."""
    opened = yield from source.opened(partition, fresh_key)
    to = msgspec.structs.replace(opened.position, digest=HELD)
    yield from source.amend(opened, to, opened.filter_epoch)


def settle(
    partition: int,
    differs_from: int,
    receipts: dict[bytes, FanoutAuditReceipt],
    shard_count: int,
    fresh_key: bytes,
) -> Procedure[int]:
    """``receipts``: by message_id. How many had none, and are dispatched."""
    log = yield from ends(Topic.OUTBOX, partition)
    placed = (yield from walk(partition, log)).placed
    above = {at: message_id for at, message_id in placed.items() if at >= differs_from}
    # The last first: a record that was published again has its receipt behind, before its old place is taken.
    moved = [
        msgspec.structs.replace(
            receipts[message_id],
            source_offset=at,
            moved_from=receipts[message_id].dispatched_under(),
        )
        for at, message_id in reversed(above.items())
        if message_id in receipts
    ]
    yield from source.put_receipts(partition, fresh_key, moved)
    bare = [at for at, message_id in above.items() if message_id not in receipts]
    for at in bare:
        stored = yield from record_at(Topic.OUTBOX, partition, at)
        assert stored is not None, "walked"
        yield from dispatched(partition, at, stored.value, shard_count, fresh_key, apply=True)
    known = yield from source.evidence(partition, differs_from)
    standing = [
        (at, encode_receipt(one))
        for at, one in known.receipts.items()
        if above.get(at) == one.message_id
    ]
    opened = yield from source.opened(partition, fresh_key)
    to = yield from source.position_at(Topic.OUTBOX, partition, log.end)
    filter_epoch = yield from barrier_below(partition, log.end)
    for low, high, page in _pages(differs_from, standing):
        last = high == U64_MAX
        yield from source.amend(
            opened,
            to if last else opened.position,
            filter_epoch if last else opened.filter_epoch,
            drop_from=low,
            drop_to=high,
            receipts=page,
        )
    return len(bare)


def _pages(low: int, rows: Sequence[Row]) -> Iterator[tuple[int, int, tuple[Row, ...]]]:
    """[low, high) of all offsets above, and the receipts that stay there."""
    step = source.AMENDED_RECEIPTS_MAX
    for at in range(0, max(len(rows), 1), step):
        behind = at + step
        high = rows[behind][0] if behind < len(rows) else U64_MAX
        yield low, high, tuple(rows[at:behind])
        low = high
