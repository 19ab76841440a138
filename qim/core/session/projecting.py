"""From dispatches to rows of conversations: who got a record in which conversation, in one script with the position.

Recipients are those of the mailbox, by the same function (core/audience.py). No claim is needed: a row is the greatest
activity and seq, so a dispatch that stands at several offsets writes the same thing twice. An overlay record (RECALL,
DELETE_FOR_ME) touches a conversation without raising it.
"""

from typing import assert_never

from qim.core.audience import named_version, recipients_in_shard
from qim.core.contract import routing
from qim.core.contract.entities import (
    EMPTY_ID,
    NO_SOURCE,
    GroupDispatch,
    MessageKind,
    MessageRecord,
)
from qim.core.contract.invariants import SideStage
from qim.core.contract.logvalue import Dispatched, NewerFormat, Undecodable, read_dispatch
from qim.core.machine import Ms
from qim.core.ports.log import Position, StoredRecord
from qim.core.ports.observe import Count, StageReached, halted
from qim.core.ports.store_session import ProjectDispatches, ProjectedRow
from qim.core.position import record_digest
from qim.core.session.orders import Orders, What
from qim.core.session.shard import Shard, WindowRecord
from qim.core.session.vocabulary import SessionConfig
from qim.core.version_shelf import VersionShelf

TRACES_MAX = 4
OVERLAYS = (MessageKind.RECALL, MessageKind.DELETE_FOR_ME)
RowName = tuple[str, int, bytes]


def admit(orders: Orders, shard: Shard, stored: StoredRecord) -> WindowRecord | None:
    """Put a fetched dispatch into the window; None where a newer format halts the feed before it."""
    entry = read_dispatch(stored.value)
    content: GroupDispatch | None = None
    match entry:
        case Dispatched():
            content = entry.dispatch
        case NewerFormat():
            shard.dispatch.halted = True
            orders.give(Count(name="session_newer_format", label="dispatch"))
            orders.give(halted("dispatch", shard.number, stored.offset, entry.version))
            return None
        case Undecodable():
            orders.give(Count(name="session_dead_letter", label="dispatch"))
        case _:
            assert_never(entry)
    record = WindowRecord(stored=stored, content=content)
    shard.dispatch.take(record)
    return record


class Projecting:
    """Batches of rows, bounded by ``rows_max`` a call; a record with more of them goes in several calls."""

    def __init__(self, config: SessionConfig, orders: Orders, shelf: VersionShelf) -> None:
        self._config = config
        self._orders = orders
        self._shelf = shelf

    def want_version(self, now: Ms, shard: Shard, dispatch: GroupDispatch) -> None:
        """Have the version of a dispatch read, unless it is at hand."""
        named = named_version(dispatch)
        if named is None or self._shelf.find(named) is not None:
            return
        writer = routing.writer_shard(dispatch.conversation_id, self._config.outbox_partition_count)
        source = dispatch.source_partition
        offset = dispatch.source_offset if source == writer and source != NO_SOURCE else -1
        self._shelf.want(now, named, writer_shard=writer, waiter=shard.number, offset=offset)

    def project(self, now: Ms, shard: Shard) -> None:
        """Order the next rows, unless some are in flight or a version is awaited."""
        feed = shard.dispatch
        if What.PROJECT in shard.requests or not feed.window:
            return
        rows: dict[RowName, ProjectedRow] = {}
        last: StoredRecord | None = None
        traces: list[int] = []
        for record in feed.window:
            dispatch = record.content
            if dispatch is None:
                last = record.stored
                continue
            assert isinstance(dispatch, GroupDispatch)
            users = self._users(now, shard, dispatch)
            if users is None:
                break
            room = self._config.rows_max - len(rows)
            left = users[shard.rows_done :] if record is feed.window[0] else users
            if len(left) > room and last is not None:
                break
            for user_id in left[:room]:
                merge(rows, dispatch, user_id)
            traces.append(dispatch.trace_id)
            if len(left) > room:
                shard.rows_done += room
                break
            last = record.stored
        if rows or last is not None:
            self._order(shard, tuple(rows.values()), last, tuple(traces[:TRACES_MAX]))

    def _users(self, now: Ms, shard: Shard, dispatch: GroupDispatch) -> tuple[int, ...] | None:
        """The recipients here; None while their version is awaited, and all behind it wait too."""
        named = named_version(dispatch)
        audience = self._shelf.find(named) if named is not None else None
        if named is not None and audience is None:
            self.want_version(now, shard, dispatch)
            return None
        return recipients_in_shard(dispatch, audience, self._config.shard_count)

    def _order(
        self,
        shard: Shard,
        rows: tuple[ProjectedRow, ...],
        last: StoredRecord | None,
        traces: tuple[int, ...],
    ) -> None:
        position = shard.dispatch.position
        assert position is not None
        to = position
        if last is not None:
            to = Position(shard.dispatch.topic_id, last.offset + 1, record_digest(last))
        request = ProjectDispatches(
            op=self._orders.op(What.PROJECT, shard),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            from_offset=position.offset,
            to=to,
            rows=rows,
            traces=traces,
        )
        self._orders.ask(What.PROJECT, shard, request)

    def on_projected(self, shard: Shard, request: ProjectDispatches) -> None:
        """Rows and position are stored."""
        if request.to.offset != shard.dispatch.stands_at():
            shard.rows_done = 0
        for record in shard.dispatch.window:
            if record.stored.offset >= request.to.offset:
                break
            dispatch = record.content
            if isinstance(dispatch, GroupDispatch):
                stage = StageReached(
                    trace_id=dispatch.trace_id, stage=SideStage.PROJECTED, sent_at=dispatch.sent_at
                )
                self._orders.give(stage)
        shard.dispatch.passed(request.to)


def merge(
    rows: dict[RowName, ProjectedRow], dispatch: GroupDispatch | MessageRecord, user_id: int
) -> None:
    """Many messages of one conversation in a call are one row."""
    name = (dispatch.tenant_id, user_id, dispatch.conversation_id)
    overlay = dispatch.kind in OVERLAYS
    activity = EMPTY_ID if overlay else dispatch.last_activity_id
    seq, touched = dispatch.conversation_seq, dispatch.last_activity_id
    held = rows.get(name)
    if held is not None:
        activity = max(activity, held.last_activity_id)
        seq, touched = max(seq, held.conversation_seq), max(touched, held.touched_id)
    rows[name] = ProjectedRow(*name, activity, seq, touched)
