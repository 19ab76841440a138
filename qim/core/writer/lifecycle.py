"""How a shard leaves service: for a fresh epoch, for good until the lease comes anew, or because the lease is gone."""

from qim.core.contract.errors import ErrorCode
from qim.core.writer.orders import Orders
from qim.core.writer.shard import CLOSED, REFRESHING, STOPPED, Shard


def refresh(orders: Orders, shard: Shard, why: str, above: int = 0) -> None:
    """StoreReset, Fenced, MarkLost, Unknown of an append: forget pending work, take a fresh epoch, OPEN (§0, §1.6a)."""
    restart(orders, shard)
    shard.move(REFRESHING)
    orders.count("shard_refresh", label=why)
    orders.fresh_epoch(shard, above)


def stop(orders: Orders, shard: Shard, check: str, detail: str) -> None:
    """The shard serves no more until its lease is granted anew; the Violation says what must be mended."""
    orders.violate(check, detail)
    restart(orders, shard)
    shard.move(STOPPED)
    dismiss(orders, shard, ErrorCode.UNAVAILABLE, "the shard is stopped")


def close(orders: Orders, shard: Shard) -> None:
    """The lease is gone: nothing in flight may be trusted, retried or called failed."""
    restart(orders, shard)
    shard.move(CLOSED)
    shard.epoch = 0
    dismiss(orders, shard, ErrorCode.NOT_OWNER, "the writer shard has moved")


def restart(orders: Orders, shard: Shard) -> None:
    """Forget what came from the store; reads are answered now, writes go round again after the next OPEN."""
    retry = orders.config.retry_after_ms
    for query in shard.queries.values():
        if query.waiter is not None and not query.waiter.answered:
            orders.refuse(query.waiter, ErrorCode.UNAVAILABLE, "the shard opens anew", retry)
    orders.held_queries -= len(shard.queries)
    shard.queries.clear()
    shard.reset(orders.new_generation())


def dismiss(orders: Orders, shard: Shard, unsent: ErrorCode, text: str) -> None:
    """Answer everybody: TIMEOUT_UNKNOWN where a reservation ever left this machine, ``unsent`` where none did."""
    retry = orders.config.retry_after_ms
    for commit in shard.commits.values():
        code = ErrorCode.TIMEOUT_UNKNOWN if commit.sent else unsent
        for waiter in commit.waiters:
            orders.refuse(waiter, code, text, retry, commit.trace_id)
        orders.release(commit)
    shard.commits.clear()
    shard.ready.clear()
