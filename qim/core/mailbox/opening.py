"""From a lease to a trusted position: log start, OpenMailbox, log ends, the record before the position (§§3.0, 7).

Each ``on_*`` answers the Violation that stops the shard, or None. There is no automatic reset.
"""

from qim.core.contract.invariants import Invariant
from qim.core.contract.sequences import split_mailbox_seq
from qim.core.machine import Ms
from qim.core.mailbox.lanes import Lanes
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.shard import Shard, Stage
from qim.core.mailbox.vocabulary import POSITION_MISMATCH
from qim.core.opener import Opener
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, Position, ReadEnds, Topic
from qim.core.ports.observe import Violation
from qim.core.ports.store_mailbox import MailboxOpened, OpenMailbox
from qim.core.position import (
    NO_DIGEST,
    Verdict,
    judge_ends,
    judge_predecessor,
    why_strange,
)


def _stop(shard: Shard, check: str, detail: str) -> Violation:
    return Violation(check=check, detail=f"dispatch/{shard.number}: {detail}")


def read_ends(orders: Orders, shard: Shard) -> None:
    """Before the Open for the log's start, after it to judge the position: a last owner may have moved on meanwhile."""
    request = ReadEnds(op=orders.op(What.ENDS, shard), topic=Topic.DISPATCH, partition=shard.number)
    orders.ask(What.ENDS, shard, request)


def open_mailbox(orders: Orders, shard: Shard, initial: int, opener: Opener) -> None:
    """Raise the fence and ask for W, trim, floors, days and position."""
    shard.stage = Stage.OPENING
    op = orders.op(What.OPEN, shard)
    request = OpenMailbox(
        op=op,
        shard=shard.number,
        epoch=shard.epoch,
        fresh_key=opener.fresh_key(shard.number, shard.epoch, op),
        opener=opener.name,
        initial=initial,
    )
    orders.ask(What.OPEN, shard, request)


def on_opened(orders: Orders, shard: Shard, event: MailboxOpened) -> Violation | None:
    """The fence stands; take over the stored state."""
    if event.counter_lost:
        detail = "the store has data of this shard but not its watermark"
        return _stop(shard, Invariant.MAILBOX_SEQ_REGRESSION, detail)
    shard.incarnation = event.incarnation
    shard.lanes = Lanes(event.base, event.lanes)
    shard.trim = event.trim
    shard.floors = dict(event.floors)
    shard.days = list(event.days)
    # The epoch is that of the record behind min W: before the first record the top bits of W are one less.
    shard.shard_epoch, shard.next_offset = split_mailbox_seq(shard.lanes.minimum() + 1)
    shard.ready = shard.lanes.minimum()
    for day, first in shard.days:
        if first < shard.next_offset:
            shard.day = day
    shard.position = event.position
    shard.stage = Stage.READING_ENDS
    read_ends(orders, shard)
    return None


def on_ends_read(orders: Orders, shard: Shard, event: EndsRead) -> Violation | None:
    """First judgement of the position, which is min W."""
    shard.topic_id = event.topic_id
    shard.end_offset = event.end
    position = shard.position
    if position is None:
        position = Position(event.topic_id, shard.next_offset, NO_DIGEST)
        shard.position = position
    if position.offset != shard.next_offset:
        detail = f"position {position.offset} is not behind min W {shard.next_offset - 1}"
        return _stop(shard, Invariant.MAILBOX_SEQ_REGRESSION, detail)
    highest = max([shard.lanes.base, *shard.lanes.own.values()])
    if highest > shard.end_seq() and position.topic_id == event.topic_id:
        # Lanes ahead of min W have passed records that are gone: others in their places would be skipped by them.
        detail = f"a lane stands at {split_mailbox_seq(highest)[1]}, log {event.start}..{event.end}"
        return _stop(shard, Invariant.MAILBOX_SEQ_REGRESSION, detail)
    shard.before = position.digest
    verdict = judge_ends(position, event.topic_id, event.start, event.end)
    if verdict is Verdict.TRUSTED:
        shard.stage = Stage.RUNNING
        return None
    if verdict is Verdict.NEEDS_PREDECESSOR:
        shard.stage = Stage.CHECKING
        fetch(orders, shard, position.offset - 1, limit=1, bytes_max=1, wait_ms=0)
        return None
    detail = f"{verdict.name}: position {position.offset}, log {event.start}..{event.end}"
    if verdict is Verdict.BELOW_START:
        return _stop(shard, POSITION_MISMATCH, detail)
    return _stop(shard, Invariant.MAILBOX_SEQ_REGRESSION, detail)


def on_predecessor(orders: Orders, shard: Shard, event: Fetched | OutOfRange) -> Violation | None:
    """Second judgement: is the record at min W the one it remembers?"""
    position = shard.position
    assert position is not None
    if isinstance(event, OutOfRange) or not event.records:
        # Retention moved on since the ends were read: they decide again.
        shard.stage = Stage.READING_ENDS
        read_ends(orders, shard)
        return None
    if judge_predecessor(position, event.records[0]) is not Verdict.TRUSTED:
        detail = f"{Verdict.OTHER_RECORD.name}: another record stands before {position.offset}"
        return _stop(shard, Invariant.MAILBOX_SEQ_REGRESSION, detail)
    shard.stage = Stage.RUNNING
    return None


def on_running_fetch_strange(shard: Shard, event: Fetched | OutOfRange) -> Violation | None:
    """A topic made anew, or an offset that is no longer (or not yet) in the log: detected, stopped, nothing skipped."""
    why = why_strange(shard.topic_id, shard.next_offset, event)
    if why is None:
        return None
    # Only what comes next is missing: all that was read stands in this log, or retention took it.
    ahead = event.topic_id == shard.topic_id and (
        shard.next_offset < event.start
        if isinstance(event, OutOfRange)
        else shard.next_offset <= event.end
    )
    return _stop(shard, POSITION_MISMATCH if ahead else Invariant.MAILBOX_SEQ_REGRESSION, why)


def fetch(
    orders: Orders, shard: Shard, offset: int, *, limit: int, bytes_max: int, wait_ms: Ms
) -> None:
    """One fetch in flight a shard."""
    request = Fetch(
        op=orders.op(What.FETCH, shard),
        topic=Topic.DISPATCH,
        partition=shard.number,
        offset=offset,
        limit=limit,
        bytes_max=bytes_max,
        wait_ms=wait_ms,
        before=shard.before if offset == shard.next_offset else b"",
    )
    orders.ask(What.FETCH, shard, request)
