"""The outbox still has what it confirmed: a log that lost its tail stops the shard, also where it has grown again (§§1.6, 7).

A shard has one appender. What it was confirmed stands below whatever is confirmed later, and the record before ``applied``
is the one the store remembers. Where not, acknowledged records are gone: the store still has them, and ``qim repair outbox``
publishes them again. To go on would leave them undispatched for ever, and let other records have their offsets.
"""

from typing import Final

from qim.core.contract.logvalue import outbox_value
from qim.core.ports.log import Fetch, StoredRecord, Topic
from qim.core.position import record_digest
from qim.core.writer.commit import Commit
from qim.core.writer.freeze import stored_of
from qim.core.writer.lifecycle import stop
from qim.core.writer.orders import Call, Orders
from qim.core.writer.shard import Shard

OUTBOX_TRUNCATED: Final = "outbox_truncated"
"""Violation: records the log had confirmed, or the store has applied, are not in it any more."""


def confirmed(orders: Orders, shard: Shard, offsets: tuple[int, ...]) -> bool:
    """An append stands at ``offsets``. False: the log went back before it, and the shard is stopped."""
    if offsets[0] < shard.confirmed:
        detail = f"appended at {offsets[0]}, and had confirmed all below {shard.confirmed}"
        truncated(orders, shard, detail)
        return False
    shard.confirmed = offsets[-1] + 1
    return True


def truncated(orders: Orders, shard: Shard, detail: str) -> None:
    """No retry brings back what is gone."""
    stop(orders, shard, OUTBOX_TRUNCATED, f"outbox {shard.number}: {detail}")


def other_record(orders: Orders, shard: Shard, offset: int) -> None:
    """The log has grown again over what it lost."""
    truncated(orders, shard, f"another record stands before {offset} than was applied")


def read_before(orders: Orders, shard: Shard) -> None:
    """Have the log compare the record before ``applied``."""
    walk = shard.walk
    request = Fetch(
        op=orders.next_op(),
        topic=Topic.OUTBOX,
        partition=shard.number,
        offset=walk.applied,
        limit=1,
        bytes_max=1,
        wait_ms=0,
        before=walk.before,
    )
    orders.ask(Call.BEFORE, shard, request)


def digest_of(shard: Shard, commit: Commit) -> bytes:
    """Of the record that ``commit`` is in the log, as appended under this epoch."""
    value = outbox_value(shard.epoch, stored_of(commit))
    return record_digest(
        StoredRecord(offset=commit.offset, append_time=0, key=commit.message_id, value=value)
    )
