"""Rows and watermarks in one script, then the marks that only say so (pipeline.md §3.2)."""

from itertools import islice

from qim.core.contract.entities import NO_SOURCE
from qim.core.contract.invariants import Stage as MessageStage
from qim.core.machine import Ms
from qim.core.mailbox.lanes import LanePlan
from qim.core.mailbox.materialise import TRACES_MAX, report_nondeterminism
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.shard import Shard, WindowRecord
from qim.core.mailbox.vocabulary import MailboxConfig
from qim.core.ports.completion import FailReason
from qim.core.ports.log import Position
from qim.core.ports.observe import Count, StageReached
from qim.core.ports.store_mailbox import (
    AppendEntries,
    DispatchesFinished,
    FinishDispatches,
    LaneMove,
    MailboxRow,
    Progress,
)
from qim.core.position import record_digest

BLAMES_ROWS = (FailReason.TOO_LARGE, FailReason.INVALID, FailReason.OUT_OF_MEMORY)


def append(orders: Orders, shard: Shard, now: Ms, rows_max: int) -> None:
    """Order the next AppendEntries, unless one is in flight or waits to be repeated."""
    if What.APPEND in shard.requests or shard.ready <= shard.lanes.minimum():
        return
    plan = shard.lanes.plan(now, shard.window, shard.ready, rows_max)
    if plan is None:
        return
    shard.plan = plan
    rows: list[MailboxRow] = []
    for pick in plan.picks:
        rows += shard.window[pick.index].chunks[pick.lane][pick.start : pick.stop]
    high = plan.high() - shard.seq_of(0)
    request = AppendEntries(
        op=orders.op(What.APPEND, shard),
        shard=shard.number,
        epoch=shard.epoch,
        incarnation=shard.incarnation,
        base_from=plan.base_from,
        base_to=plan.base_to,
        moves=tuple(LaneMove(*move) for move in plan.moves),
        rows=tuple(rows),
        days=tuple(day for day in shard.new_days if day[1] <= high),
        position=_position(shard, plan),
        traces=_traces(shard, plan),
    )
    orders.ask(What.APPEND, shard, request)


def _position(shard: Shard, plan: LanePlan) -> Position:
    """That of min W once the call is stored: the window begins behind min W as it is now."""
    assert shard.position is not None
    passed = plan.low() - shard.lanes.minimum()
    if not passed:
        return shard.position
    last = shard.window[passed - 1].stored
    return Position(shard.topic_id, last.offset + 1, record_digest(last))


def _traces(shard: Shard, plan: LanePlan) -> tuple[int, ...]:
    traces: dict[int, None] = {}
    for pick in plan.picks:
        dispatch = shard.window[pick.index].dispatch
        assert dispatch is not None
        traces[dispatch.trace_id] = None
        if len(traces) == TRACES_MAX:
            break
    return tuple(traces)


def on_stored(
    orders: Orders, shard: Shard, request: AppendEntries, finish_queue_max: int
) -> list[tuple[WindowRecord, tuple[int, ...]]]:
    """The call is durable: move the lanes, let go of what every lane has passed. Answers who just got what."""
    plan = shard.plan
    assert plan is not None
    shard.plan = None
    users: dict[int, list[int]] = {}
    for pick in plan.picks:
        rows = shard.window[pick.index].chunks[pick.lane][pick.start : pick.stop]
        users.setdefault(pick.index, []).extend(row.user_id for row in rows)
    delivered = [(shard.window[index], tuple(group)) for index, group in users.items()]
    passed = plan.low() - shard.lanes.minimum()
    shard.lanes.stored(plan)
    shard.position = request.position
    shard.days += request.days
    del shard.new_days[: len(request.days)]
    for _ in range(passed):
        _pass(orders, shard, shard.window.popleft(), finish_queue_max)
    return delivered


def _pass(orders: Orders, shard: Shard, record: WindowRecord, finish_queue_max: int) -> None:
    """Every lane has passed the record."""
    shard.bytes -= len(record.stored.value)
    dispatch = record.dispatch
    if dispatch is None:
        return
    source, floor = dispatch.source_partition, dispatch.source_checkpoint
    if source != NO_SOURCE and floor > max(
        shard.floors.get(source, 0), shard.passed.get(source, 0)
    ):
        shard.passed[source] = floor
    if record.duplicate:
        return
    orders.give(
        StageReached(
            trace_id=dispatch.trace_id, stage=MessageStage.MAILBOXED, sent_at=dispatch.sent_at
        )
    )
    if len(shard.finishing) == finish_queue_max:
        # A missing mark means nothing (pipeline.md §8): better than memory without end.
        shard.finishing.popleft()
        orders.give(Count(name="mailbox_finish_dropped"))
    shard.finishing.append(
        Progress(dispatch.dispatch_id, record.stored.offset, record.entry_count, record.digest)
    )


def finish(orders: Orders, shard: Shard, items_max: int) -> None:
    """Mark progress of what all lanes have passed; it moves no W and nothing waits for it."""
    if What.FINISH in shard.requests or not shard.finishing:
        return
    items = tuple(islice(shard.finishing, items_max))
    for _ in items:
        shard.finishing.popleft()
    request = FinishDispatches(
        op=orders.op(What.FINISH, shard),
        shard=shard.number,
        epoch=shard.epoch,
        incarnation=shard.incarnation,
        items=items,
    )
    orders.ask(What.FINISH, shard, request)


def on_finished(
    orders: Orders, shard: Shard, request: FinishDispatches, event: DispatchesFinished
) -> None:
    """A stored digest that differs is the fourth witness of the invariants."""
    for index in event.differing:
        report_nondeterminism(orders, shard, request.items[index].offset)


def on_refused(shard: Shard, now: Ms, why: FailReason, config: MailboxConfig) -> Ms | None:
    """A call the store blames on its rows is planned anew, so that one lane's rows stop no other.

    Answers when to plan again; None where the same call must be repeated: the reason is not the rows, or an earlier attempt
    was Unknown and may still be applied.
    """
    plan = shard.plan
    assert plan is not None
    if why not in BLAMES_ROWS or What.APPEND in shard.unsettled or not plan.picks:
        return None
    again = shard.lanes.refused(now, plan, config.retry_first_ms, config.retry_most_ms)
    shard.plan = None
    del shard.requests[What.APPEND]
    return again
