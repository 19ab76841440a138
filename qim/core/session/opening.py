"""From a lease to two trusted positions: OpenSession, log ends, the records before the positions (pipeline.md §§4, 7).

Each ``on_*`` answers the Violation that stops the shard, or None. There is no automatic reset; a missing position starts at
its log's start.
"""

from qim.core.machine import Ms
from qim.core.opener import Opener
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, Position, ReadEnds, Topic
from qim.core.ports.observe import Violation
from qim.core.ports.store_session import OpenSession, SessionOpened
from qim.core.position import (
    NO_DIGEST,
    Verdict,
    judge_ends,
    judge_predecessor,
    why_strange,
)
from qim.core.session.orders import Orders, What
from qim.core.session.shard import Feed, FeedStage, Shard, Stage
from qim.core.session.vocabulary import POSITION_MISMATCH


def stop(shard: Shard, feed: Feed, detail: str) -> Violation:
    """The position, or the log, is not the one this shard followed."""
    where = f"session on {feed.topic.value}/{shard.number}"
    return Violation(check=POSITION_MISMATCH, detail=f"{where}: {detail}")


def open_session(orders: Orders, shard: Shard, opener: Opener) -> None:
    """Raise the fence and ask for both positions."""
    op = orders.op(What.OPEN, shard)
    request = OpenSession(
        op=op,
        shard=shard.number,
        epoch=shard.epoch,
        fresh_key=opener.fresh_key(shard.number, shard.epoch, op),
        opener=opener.name,
    )
    orders.ask(What.OPEN, shard, request)


def on_opened(orders: Orders, shard: Shard, event: SessionOpened) -> None:
    """The fence stands; take over the positions and judge them."""
    shard.incarnation = event.incarnation
    shard.dispatch.position = event.dispatch
    shard.state.position = event.state
    shard.shard_epoch = event.shard_epoch
    shard.stage = Stage.JUDGING
    for feed in shard.feeds():
        _read_ends(orders, shard, feed)


def _read_ends(orders: Orders, shard: Shard, feed: Feed) -> None:
    feed.stage = FeedStage.READING_ENDS
    what = What.DISPATCH_ENDS if feed.topic is Topic.DISPATCH else What.STATE_ENDS
    request = ReadEnds(op=orders.op(what, shard), topic=feed.topic, partition=shard.number)
    orders.ask(what, shard, request)


def on_ends_read(orders: Orders, shard: Shard, feed: Feed, event: EndsRead) -> Violation | None:
    """First judgement of a position."""
    feed.topic_id = event.topic_id
    feed.end_offset = event.end
    position = feed.position
    if position is None:
        position = feed.position = Position(event.topic_id, event.start, NO_DIGEST)
    feed.next_offset = feed.began = position.offset
    feed.before = position.digest
    verdict = judge_ends(position, event.topic_id, event.start, event.end)
    if verdict is Verdict.TRUSTED:
        _trust(shard, feed)
        return None
    if verdict is Verdict.NEEDS_PREDECESSOR:
        feed.stage = FeedStage.CHECKING
        fetch(orders, shard, feed, position.offset - 1, limit=1, bytes_max=1, wait_ms=0)
        return None
    detail = f"{verdict.name}: position {position.offset}, log {event.start}..{event.end}"
    return stop(shard, feed, detail)


def on_predecessor(
    orders: Orders, shard: Shard, feed: Feed, event: Fetched | OutOfRange
) -> Violation | None:
    """Second judgement: is the record before the position the one it remembers?"""
    position = feed.position
    assert position is not None
    if isinstance(event, OutOfRange):
        # Retention moved on since the ends were read: they decide again.
        _read_ends(orders, shard, feed)
        return None
    if not event.records or event.records[0].offset != position.offset - 1:
        if feed.topic is not Topic.USER_STATE:
            return stop(shard, feed, f"no record stands before {position.offset}")
        # Compaction took it, as retention may: the topic's identity decides alone (pipeline.md §7).
    elif judge_predecessor(position, event.records[0]) is not Verdict.TRUSTED:
        detail = f"{Verdict.OTHER_RECORD.name}: another record stands before {position.offset}"
        return stop(shard, feed, detail)
    _trust(shard, feed)
    return None


def _trust(shard: Shard, feed: Feed) -> None:
    feed.stage = FeedStage.TRUSTED
    if all(other.stage is FeedStage.TRUSTED for other in shard.feeds()):
        shard.stage = Stage.RUNNING


def on_running_fetch_strange(
    shard: Shard, feed: Feed, event: Fetched | OutOfRange
) -> Violation | None:
    """A topic made anew, or an offset that is no longer (or not yet) in the log: detected, stopped, nothing skipped."""
    compacted = feed.topic is Topic.USER_STATE
    why = why_strange(feed.topic_id, feed.next_offset, event, compacted=compacted)
    return stop(shard, feed, why) if why is not None else None


def fetch(
    orders: Orders,
    shard: Shard,
    feed: Feed,
    offset: int,
    *,
    limit: int,
    bytes_max: int,
    wait_ms: Ms,
) -> None:
    """One fetch in flight a feed."""
    what = What.DISPATCH_FETCH if feed.topic is Topic.DISPATCH else What.STATE_FETCH
    request = Fetch(
        op=orders.op(what, shard),
        topic=feed.topic,
        partition=shard.number,
        offset=offset,
        limit=limit,
        bytes_max=bytes_max,
        wait_ms=wait_ms,
        before=feed.before if offset == feed.next_offset else b"",
    )
    orders.ask(what, shard, request)
