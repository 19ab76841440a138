"""How a procedure asks: one request at a time, an answer of the expected kind or a refusal that says what stood there."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from qim.core.contract.logvalue import Barrier, NewerFormat, Outboxed, Undecodable, read_outbox
from qim.core.ports.completion import Failed, FailReason, Fenced, StoreReset, Unknown
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds, StoredRecord, Topic
from qim.core.ports.registry import (
    Acquire,
    Denied,
    Granted,
    LeaseRead,
    ReadLease,
    Release,
    Resource,
    Role,
)

T = TypeVar("T")
R = TypeVar("R")
Procedure = Generator[Any, Any, T]
"""Yields requests of qim/core/ports, is sent what the port answers, returns its report."""

LEASE_TTL_MS = 120_000
"""Of a procedure's leases, which are renewed while it goes on (carrying.py); one that was killed keeps others away no longer."""
FETCH_RECORDS = 512
FETCH_BYTES = 4 * 1024 * 1024
OutboxEntry = Barrier | Outboxed | NewerFormat | Undecodable


class NotMended(Exception):
    """It can't be done as things stand; the text says why and what to do."""


class Unanswered(NotMended):
    """A server is away or doesn't say: what is asked next would fare no better."""


class NothingYet(NotMended):
    """There is nothing that could be mended: it begins by itself."""


class Moved(NotMended):
    """Somebody else moved what was judged: look again."""


class Overtaken(NotMended):
    """Another owner came between: what was to be done amid that is not, and a run that begins anew finds what is left."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"overtaken: {what}. Nothing is lost by that, and not all of it is done: order it again, with every process that "
            "holds these leases stopped"
        )


def ask(request: Any, kind: type[R]) -> Procedure[R]:
    """The answer, if it is a ``kind``. Raises NotMended, Unanswered, Moved where a fence or another incarnation stands there."""
    reply = yield request
    if isinstance(reply, kind):
        return reply
    name = type(request).__name__
    if isinstance(reply, Fenced | StoreReset):
        raise Moved(
            f"{name}: {type(reply).__name__}, somebody else opened it meanwhile; run it again"
        )
    if isinstance(reply, Unknown):
        raise Unanswered(f"{name}: no answer; it may have been done. Run it again: it looks first")
    why = reply.why.value if isinstance(reply, Failed) else repr(reply)
    raise _failure(reply)(f"{name}: {why}")


def _failure(reply: Any) -> type[NotMended]:
    away = isinstance(reply, Failed) and reply.why in (
        FailReason.UNREACHABLE,
        FailReason.OVERLOADED,
    )
    return Unanswered if away or isinstance(reply, Unknown) else NotMended


def leased(
    resource: Resource, owner: str, address: str, work: Callable[[int], Procedure[T]]
) -> Procedure[T]:
    """``work(epoch)`` while we hold the lease, so that nobody serves it. Raises NotMended where another holds it."""
    reply = yield Acquire(
        op=0, resource=resource, owner=owner, address=address, ttl_ms=LEASE_TTL_MS
    )
    if isinstance(reply, Denied):
        raise NotMended(
            f"{resource.role.value} {resource.number} is held by {reply.owner}: stop every process of this role first "
            f"(the lease of one that is gone ends within {reply.remaining_ms / 1000:.0f} s)"
        )
    if not isinstance(reply, Granted):
        raise _failure(reply)(f"the registry grants no lease of {resource.role.value}: {reply!r}")
    release = Release(op=0, owner=owner, leases=((resource, reply.epoch),))
    try:
        result = yield from work(reply.epoch)
    except NotMended:
        # Whatever answers this, the refusal is told: a lease that is not given back ends by itself.
        yield release
        raise
    yield release
    return result


def epoch_of(role: Role, number: int) -> Procedure[int]:
    """The highest epoch ever granted: the one under which its owner, if any, works."""
    resource = Resource(role=role, number=number)
    found = yield from ask(ReadLease(op=0, resource=resource), LeaseRead)
    return found.epoch


def barrier_below(partition: int, offset: int) -> Procedure[int]:
    """The greatest barrier epoch at a smaller offset of the outbox: what was published under a lower one means nothing."""
    return (yield from registered_below(partition, offset)) or 0


def registered_below(partition: int, offset: int) -> Procedure[int | None]:
    """As ``barrier_below``; None where none is registered. A partition begins with one, and the lowest are pruned."""
    resource = Resource(role=Role.WRITER, number=partition)
    request = ReadLease(op=0, resource=resource, barriers_below=offset)
    found = yield from ask(request, LeaseRead)
    return found.barrier_epoch if found.barrier_offset >= 0 else None


def ends(topic: Topic, partition: int) -> Procedure[EndsRead]:
    """Topic id, start and end."""
    return (yield from ask(ReadEnds(op=0, topic=topic, partition=partition), EndsRead))


def fetch(
    topic: Topic, partition: int, offset: int, limit: int = FETCH_RECORDS
) -> Procedure[tuple[StoredRecord, ...]]:
    """Records from ``offset`` on, none where it is not in the log."""
    request = Fetch(
        op=0,
        topic=topic,
        partition=partition,
        offset=offset,
        limit=limit,
        bytes_max=FETCH_BYTES,
        wait_ms=0,
    )
    reply = yield request
    if isinstance(reply, OutOfRange):
        return ()
    if not isinstance(reply, Fetched):
        raise _failure(reply)(f"{topic.value} {partition} is not readable at {offset}: {reply!r}")
    return reply.records


def record_at(topic: Topic, partition: int, offset: int) -> Procedure[StoredRecord | None]:
    """The record at exactly this offset."""
    for record in (yield from fetch(topic, partition, offset, 1)):
        if record.offset == offset:
            return record
    return None


def records_at(
    topic: Topic, partition: int, offsets: Sequence[int]
) -> Procedure[list[StoredRecord]]:
    """Those at these ascending offsets. Raises NotMended where one of them is not in the log any more."""
    found: list[StoredRecord] = []
    while len(found) < len(offsets):
        wanted = offsets[len(found) :]
        span = min(wanted[-1] + 1 - wanted[0], FETCH_RECORDS)
        by_offset = {
            one.offset: one for one in (yield from fetch(topic, partition, wanted[0], span))
        }
        if wanted[0] not in by_offset:
            raise NotMended(f"{topic.value} {partition} is not readable at {wanted[0]}")
        for offset in wanted:
            if offset not in by_offset:
                break
            found.append(by_offset[offset])
    return found


def read(stored: StoredRecord) -> OutboxEntry:
    """An outbox record decoded; never raises."""
    return read_outbox(stored.value)
