"""A source partition as fanout left it: its checkpoint, its receipts, and the one script that amends both."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from qim.core.contract.entities import FanoutAuditReceipt, decode_receipt, encode_receipt
from qim.core.contract.sequences import U64_MAX
from qim.core.mending.asking import (
    Moved,
    NothingYet,
    NotMended,
    Procedure,
    ask,
    barrier_below,
    ends,
    epoch_of,
    record_at,
)
from qim.core.ports.log import Position, Topic
from qim.core.ports.registry import (
    EpochRaised,
    LeaseRead,
    RaiseEpoch,
    ReadLease,
    Release,
    Released,
    Resource,
    Role,
)
from qim.core.ports.store_operator import AmendSource, SourceAmended
from qim.core.ports.store_source import OpenSource, ReadSource, SourceOpened, SourceRead
from qim.core.position import NO_DIGEST, record_digest

PAGE_ROWS = 512
AMENDED_RECEIPTS_MAX = 1_000
"""Of one script call."""
LOOKS_MAX = 5


class Evidence(Struct):
    """Everything fanout wrote down of a partition below its checkpoint (-1: none). Undecodable receipts are left out."""

    partition: int
    checkpoint: int
    applied: int
    receipts: dict[int, FanoutAuditReceipt]
    dead_letters: dict[int, bytes]
    applied_before: bytes = b""
    """The digest of the record before ``applied``."""


class Opened(Struct):
    """A partition opened under the epoch of its owner: nobody is disturbed by it."""

    partition: int
    epoch: int
    incarnation: bytes
    position: Position
    filter_epoch: int


def evidence(partition: int, low: int = 0) -> Procedure[Evidence]:
    """Receipts and dead letters from source offset ``low`` on, page by page."""
    found = Evidence(partition=partition, checkpoint=-1, applied=0, receipts={}, dead_letters={})
    while True:
        request = ReadSource(op=0, partition=partition, low=low, high=U64_MAX, limit=PAGE_ROWS)
        page = yield from ask(request, SourceRead)
        found.checkpoint, found.applied = page.checkpoint, page.applied
        found.applied_before = page.applied_before
        for offset, encoded in page.receipts:
            try:
                found.receipts[offset] = decode_receipt(encoded)
            except (msgspec.DecodeError, msgspec.ValidationError):
                continue
        found.dead_letters.update(page.dead_letters)
        if not page.more:
            return found
        low = max(offset for offset, _ in (*page.receipts[-1:], *page.dead_letters[-1:])) + 1


def opened(partition: int, fresh_key: bytes) -> Procedure[Opened]:
    """Under the epoch that stands: raising it would stop the owner for nothing."""
    epoch = yield from epoch_of(Role.FANOUT, partition)
    request = OpenSource(op=0, partition=partition, epoch=epoch, fresh_key=fresh_key)
    answer = yield from ask(request, SourceOpened)
    if answer.position is None:
        raise NothingYet(f"fanout has never passed a record of outbox {partition}")
    return Opened(
        partition=partition,
        epoch=epoch,
        incarnation=answer.incarnation,
        position=answer.position,
        filter_epoch=answer.filter_epoch,
    )


def put_receipts(
    partition: int, fresh_key: bytes, receipts: Iterable[FanoutAuditReceipt]
) -> Procedure[None]:
    """Write or replace receipts; the checkpoint stays where it is, also while fanout moves it."""
    rows = tuple((one.source_offset, encode_receipt(one)) for one in receipts)
    for first in range(0, len(rows), AMENDED_RECEIPTS_MAX):
        page = rows[first : first + AMENDED_RECEIPTS_MAX]
        for look in range(LOOKS_MAX):
            source = yield from opened(partition, fresh_key)
            try:
                yield from amend(source, source.position, source.filter_epoch, receipts=page)
                break
            except Moved:
                if look == LOOKS_MAX - 1:
                    raise


def amend(
    source: Opened,
    to: Position,
    filter_epoch: int,
    *,
    drop_from: int = -1,
    drop_to: int = U64_MAX,
    receipts: tuple[tuple[int, bytes], ...] = (),
    lost: tuple[int, int] = (0, 0),
) -> Procedure[None]:
    """One script. Raises Moved where the checkpoint is not where it was opened."""
    request = AmendSource(
        op=0,
        partition=source.partition,
        epoch=source.epoch,
        incarnation=source.incarnation,
        from_offset=source.position.offset,
        to=to,
        filter_epoch=filter_epoch,
        drop_from=drop_from,
        drop_to=drop_to,
        receipts=receipts,
        lost=lost,
    )
    yield from ask(request, SourceAmended)


def put_back(partition: int, fresh_key: bytes, offset: int) -> Procedure[None]:
    """Let fanout dispatch again from ``offset`` on: its receipts from there go, its filter is as of there."""
    source = yield from opened(partition, fresh_key)
    if source.position.offset <= offset:
        return
    position = yield from position_at(Topic.OUTBOX, partition, offset)
    filter_epoch = yield from barrier_below(partition, offset)
    yield from amend(source, position, filter_epoch, drop_from=offset)
    yield from woken(partition)


def fenced(partition: int, fresh_key: bytes) -> Procedure[None]:
    """A commit that its owner has under way, of dispatches that stood when it was sent, is refused from now on.

    The owner's next renewal finds its lease lost, also where it rests in a parked fetch; under the next epoch what no receipt
    tells of is dispatched again.
    """
    resource = Resource(role=Role.FANOUT, number=partition)
    epoch = (yield from epoch_of(Role.FANOUT, partition)) + 1
    yield from ask(RaiseEpoch(op=0, resource=resource, above=epoch), EpochRaised)
    request = OpenSource(op=0, partition=partition, epoch=epoch, fresh_key=fresh_key)
    yield from ask(request, SourceOpened)


def woken(partition: int) -> Procedure[None]:
    """An owner that rests in a parked fetch looks at its checkpoint at its next open only: its lease is given back for it.

    It loses nothing but that lease, which it or another takes again within seconds.
    """
    resource = Resource(role=Role.FANOUT, number=partition)
    lease = yield from ask(ReadLease(op=0, resource=resource), LeaseRead)
    if lease.owner:
        request = Release(op=0, owner=lease.owner, leases=((resource, lease.epoch),))
        yield from ask(request, Released)


def position_at(topic: Topic, partition: int, offset: int) -> Procedure[Position]:
    """The position of a consumer that goes on at ``offset`` of the log at hand. Raises NotMended outside of it."""
    log = yield from ends(topic, partition)
    if not log.start <= offset <= log.end:
        raise NotMended(
            f"{topic.value} {partition} holds [{log.start}, {log.end}), and {offset} is needed: what lies between is lost "
            "from the log; `qim repair outbox` first"
        )
    if offset == log.start:
        return Position(log.topic_id, offset, NO_DIGEST)
    before = yield from record_at(topic, partition, offset - 1)
    if before is None:
        raise NotMended(f"{topic.value} {partition} is not readable at {offset - 1}")
    return Position(log.topic_id, offset, record_digest(before))
