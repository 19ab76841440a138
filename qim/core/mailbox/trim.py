"""What a shard may forget: claims below a floor, day ranges beyond retention (pipeline.md §3.4)."""

from qim.core.machine import Ms
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.shard import Shard
from qim.core.mailbox.vocabulary import MailboxConfig
from qim.core.ports.store_mailbox import FloorRaised, MailboxTrimmed, RaiseFloor, TrimMailbox


def raise_floor(orders: Orders, shard: Shard, config: MailboxConfig) -> None:
    """One source partition's greatest f that every lane has passed; lowest partition first, one in flight."""
    if What.FLOOR in shard.requests or not shard.passed:
        return
    source = min(shard.passed)
    request = RaiseFloor(
        op=orders.op(What.FLOOR, shard),
        shard=shard.number,
        epoch=shard.epoch,
        incarnation=shard.incarnation,
        source_partition=source,
        floor=shard.passed[source],
        limit=config.floor_claims_max,
    )
    orders.ask(What.FLOOR, shard, request)


def on_floor_raised(shard: Shard, request: RaiseFloor, event: FloorRaised) -> bool:
    """True where there is more to do: claims of this source, or another source."""
    source = request.source_partition
    shard.floors[source] = request.floor
    if not event.more and shard.passed.get(source, 0) <= request.floor:
        del shard.passed[source]
        return bool(shard.passed)
    return True


def trim(orders: Orders, shard: Shard, config: MailboxConfig, wall: int) -> None:
    """Drop the leading day range if its whole day is older than retention and every lane has passed its end.

    Not while wall clock and append times differ by more than a day: one of the two is wrong, and what is dropped is gone.
    A range is as old as the one behind it says: a log whose clock was behind (no RTC) called its records older than they were,
    and they would go with the mending of the clock. So a shard with little traffic keeps days longer, which costs little.
    """
    if What.TRIM in shard.requests or len(shard.days) < 2:
        return
    if abs(wall - shard.newest_append_time) > config.mailbox_day_ms:
        return
    (day, _), (following, first) = shard.days[:2]
    end = shard.seq_of(first) - 1
    ended = following if following == day + 1 else following + 1
    too_young = ended * config.mailbox_day_ms + config.mailbox_retention_ms > wall
    if too_young or end > shard.lanes.minimum():
        return
    request = TrimMailbox(
        op=orders.op(What.TRIM, shard),
        shard=shard.number,
        epoch=shard.epoch,
        incarnation=shard.incarnation,
        day=day,
        to=end,
        limit=config.trim_keys_max,
    )
    orders.ask(What.TRIM, shard, request)


def on_trimmed(shard: Shard, request: TrimMailbox, event: MailboxTrimmed) -> None:
    """The watermark of what is gone; the range leaves our list when its last keys are dropped."""
    shard.trim = max(shard.trim, event.trim)
    if not event.more and event.trim >= request.to:
        assert shard.days[0][0] == request.day
        del shard.days[0]


def read_back_seq(shard: Shard, config: MailboxConfig, wall: Ms, lane: int) -> int:
    """Where a new device starts: before the first day within the read-back window, or at trim if that is later."""
    oldest = (wall - config.read_back_ms) // config.mailbox_day_ms
    first = next((first for day, first in shard.days if day >= oldest), None)
    seq = shard.watermark(lane) if first is None else shard.seq_of(first) - 1
    return max(min(seq, shard.watermark(lane)), shard.trim)
