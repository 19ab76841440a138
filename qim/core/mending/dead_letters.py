"""Dead letters of fanout: what there is, and what a version that can read it dispatches after all (pipeline.md §2).

found --this version can't read it--> kept
      --of a newer format, and fanout stands before it--> halting: no letter, it waits
      --a barrier, or ineffective--> nothing to deliver
      --below every barrier that is kept--> barrier_unknown: kept, it may be one that means nothing
      --a record--> dispatched without a source --all durable--> receipt at its offset --> resolved for the audit
"""

from collections.abc import Sequence

from msgspec import Struct

from qim.core.contract.entities import FanoutAuditReceipt, ReceiptShard
from qim.core.contract.logvalue import Barrier, NewerFormat, Outboxed, Undecodable, read_outbox
from qim.core.mending import dispatching, source
from qim.core.mending.asking import NotMended, Procedure, registered_below
from qim.core.mending.halts import halt
from qim.core.ports.log import Topic


class DeadLetter(Struct, frozen=True, kw_only=True):
    """``state``: undecodable, newer_format, barrier, ineffective, barrier_unknown, readable, resolved. message_id "" where unknown.

    halting: no dead letter, but the record of a newer format before which fanout stands still.
    """

    partition: int
    offset: int
    size_bytes: int
    state: str
    message_id: str = ""
    detail: str = ""


class Redispatch(Struct, frozen=True, kw_only=True):
    """What became of one record. ``outcome``: would_dispatch, dispatched, or why not; shards ascending."""

    partition: int
    offset: int
    message_id: str
    outcome: str
    shards: tuple[int, ...] = ()
    recipients: int = 0
    detail: str = ""


def listed(partitions: Sequence[int]) -> Procedure[tuple[DeadLetter, ...]]:
    """Every dead letter of these outbox partitions, in the order of partition and offset, and what halts fanout behind them."""
    found: list[DeadLetter] = []
    for partition in partitions:
        known = yield from source.evidence(partition)
        for offset, value in sorted(known.dead_letters.items()):
            resolved = offset in known.receipts
            found.append((yield from _judged(partition, offset, value, resolved)))
        halted = yield from halt("fanout", Topic.OUTBOX, partition, max(known.checkpoint, 0))
        if halted is not None:
            found.append(
                DeadLetter(
                    partition=partition,
                    offset=halted.offset,
                    size_bytes=halted.size_bytes,
                    state="halting",
                    detail=f"format {halted.version}: fanout stands before it and waits for newer code",
                )
            )
    return tuple(found)


def _judged(partition: int, offset: int, value: bytes, resolved: bool) -> Procedure[DeadLetter]:
    entry = read_outbox(value)
    message_id, detail = "", ""
    if resolved:
        state = "resolved"
    elif isinstance(entry, Undecodable):
        state, detail = "undecodable", entry.why
    elif isinstance(entry, NewerFormat):
        state, detail = "newer_format", f"format {entry.version}"
    elif isinstance(entry, Barrier):
        state = "barrier"
    else:
        barrier = yield from registered_below(partition, offset)
        if barrier is None:
            state, detail = "barrier_unknown", "the barrier below it is pruned: it may mean nothing"
        else:
            state = "readable" if entry.epoch >= barrier else "ineffective"
    if isinstance(entry, Outboxed):
        message_id = entry.record.message_id.hex()
    return DeadLetter(
        partition=partition,
        offset=offset,
        size_bytes=len(value),
        state=state,
        message_id=message_id,
        detail=detail,
    )


def redriven(
    letters: Sequence[DeadLetter], shard_count: int, fresh_key: bytes, *, apply: bool
) -> Procedure[tuple[Redispatch, ...]]:
    """Dispatch those that are readable; the others are told with what they are."""
    done: list[Redispatch] = []
    for letter in letters:
        if letter.state != "readable":
            done.append(
                Redispatch(
                    partition=letter.partition,
                    offset=letter.offset,
                    message_id=letter.message_id,
                    outcome=letter.state,
                    detail=letter.detail,
                )
            )
            continue
        known = yield from source.evidence(letter.partition, letter.offset)
        value = known.dead_letters[letter.offset]
        done.append(
            (
                yield from dispatched(
                    letter.partition, letter.offset, value, shard_count, fresh_key, apply=apply
                )
            )
        )
    return tuple(done)


def dispatched(
    partition: int, offset: int, value: bytes, shard_count: int, fresh_key: bytes, *, apply: bool
) -> Procedure[Redispatch]:
    """One record of the outbox, dispatched by hand and its receipt written (anew)."""
    entry = read_outbox(value)
    assert isinstance(entry, Outboxed), "only a record is dispatched"
    record = entry.record
    try:
        made = yield from dispatching.dispatches_of(partition, record, shard_count)
    except NotMended as missing:
        return _told(partition, offset, record.message_id, "version_missing", (), str(missing))
    if not apply:
        return _told(partition, offset, record.message_id, "would_dispatch", made)
    places: tuple[ReceiptShard, ...] = yield from dispatching.append(made)
    receipt = FanoutAuditReceipt(
        source_offset=offset,
        message_id=record.message_id,
        source_epoch=entry.epoch,
        shards=places,
    )
    yield from source.put_receipts(partition, fresh_key, (receipt,))
    return _told(partition, offset, record.message_id, "dispatched", made)


def _told(
    partition: int,
    offset: int,
    message_id: bytes,
    outcome: str,
    made: Sequence[dispatching.Dispatchable],
    detail: str = "",
) -> Redispatch:
    return Redispatch(
        partition=partition,
        offset=offset,
        message_id=message_id.hex(),
        outcome=outcome,
        shards=tuple(one.shard for one in made),
        recipients=sum(one.recipients for one in made),
        detail=detail,
    )
