"""Records whose dispatches the dispatch log lost, dispatched once more: the audit says which (pipeline.md §§7, 8)."""

from collections.abc import Iterable

from qim.core.audit import Orphan, OrphanKind
from qim.core.contract.logvalue import Outboxed, read_outbox
from qim.core.mending.asking import Procedure, barrier_below, record_at
from qim.core.mending.dead_letters import Redispatch, dispatched
from qim.core.ports.log import Topic

MENDABLE = (OrphanKind.RECORD_WITHOUT_DISPATCH, OrphanKind.RECEIPT_MISSING)
"""What another dispatch mends. An entry that is not materialised though its dispatch stands is a bug, and is left as it is."""


def redispatched(
    orphans: Iterable[Orphan], shard_count: int, fresh_key: bytes, *, apply: bool
) -> Procedure[tuple[Redispatch, ...]]:
    """Each record once, however many shards miss it; shards that have it claim the second copy away."""
    done: list[Redispatch] = []
    seen: dict[tuple[int, int], None] = {}
    for orphan in orphans:
        place = (orphan.partition, orphan.offset)
        if orphan.kind not in MENDABLE or orphan.partition < 0 or place in seen:
            continue
        seen[place] = None
        done.append((yield from _again(orphan, shard_count, fresh_key, apply)))
    return tuple(done)


def _again(
    orphan: Orphan, shard_count: int, fresh_key: bytes, apply: bool
) -> Procedure[Redispatch]:
    partition, offset = orphan.partition, orphan.offset
    stored = yield from record_at(Topic.OUTBOX, partition, offset)
    entry = read_outbox(stored.value) if stored is not None else None
    outcome = ""
    if not isinstance(entry, Outboxed):
        outcome = "record_gone"
    else:
        barrier = yield from barrier_below(partition, offset)
        if entry.epoch < barrier:
            outcome = "ineffective"
    if outcome or stored is None:
        return Redispatch(
            partition=partition, offset=offset, message_id=orphan.message_id.hex(), outcome=outcome
        )
    return (
        yield from dispatched(partition, offset, stored.value, shard_count, fresh_key, apply=apply)
    )
