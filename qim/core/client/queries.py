"""Questions of the user: pages of history, members. Asked once each, answered or failed, never retried by itself.

A page of history is stored like everything else that comes; it moves no anchor, for it may begin anywhere.
"""

from collections import deque
from typing import Final

from qim.core.client.context import ClientContext, HistorySaving, Wait, WaitKind
from qim.core.client.translation import message_of_record, refusal_of_frame
from qim.core.client.vocabulary import (
    HistoryArrived,
    HistoryRequested,
    MembersArrived,
    MembersRequested,
    QueryFailed,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import HistoryBatch, Members, MembersBatch, PullHistory
from qim.core.ports.local_store import SaveHistory

_KINDS: Final = (WaitKind.HISTORY, WaitKind.MEMBERS)

Query = HistoryRequested | MembersRequested


class Queries:
    """A bounded queue, a few in flight: the server holds back the pulls of who asks for too much at once."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._queue: deque[Query] = deque()
        self._inflight = 0

    def ask(self, query: Query) -> None:
        """Queue it, or say that it can't be asked now."""
        code = refusal_of_frame(self._frame(query))
        if code is not None:
            self._fail(query.ticket, code)
        elif not self._context.is_live():
            self._fail(query.ticket, ErrorCode.UNAVAILABLE)
        elif len(self._queue) >= self._context.config.queries_max:
            self._fail(query.ticket, ErrorCode.QUOTA_EXCEEDED)
        else:
            self._queue.append(query)

    def pump(self) -> None:
        """Send what may go."""
        config = self._context.config
        while (
            self._queue and self._context.is_live() and self._inflight < config.queries_inflight_max
        ):
            self._inflight += 1
            query = self._queue.popleft()
            kind = WaitKind.HISTORY if isinstance(query, HistoryRequested) else WaitKind.MEMBERS
            self._context.ask(self._frame(query), kind, ticket=query.ticket)

    def lost(self, tickets: list[int]) -> None:
        """The connection is gone: these were on it, and nothing queued can be asked."""
        for ticket in tickets:
            self._fail(ticket, ErrorCode.UNAVAILABLE)
        for query in self._queue:
            self._fail(query.ticket, ErrorCode.UNAVAILABLE)
        self._queue.clear()
        self._inflight = 0

    def history(self, wait: Wait, frame: HistoryBatch) -> None:
        """A page: told once it is stored."""
        self._inflight -= 1
        messages = tuple(message_of_record(r, frame.conversation_id) for r in frame.records)
        saving = HistorySaving(
            ticket=wait.ticket,
            conversation_id=frame.conversation_id,
            messages=messages,
            has_more=frame.has_more,
            write_policy=frame.write_policy,
        )
        self._context.order(
            SaveHistory(
                op=self._context.expect(saving),
                conversation_id=frame.conversation_id,
                messages=messages,
                anchor=0,
            )
        )

    def page_saved(self, saving: HistorySaving) -> None:
        """Stored."""
        self._context.order(
            HistoryArrived(
                ticket=saving.ticket,
                conversation_id=saving.conversation_id,
                messages=saving.messages,
                has_more=saving.has_more,
                write_policy=saving.write_policy,
            )
        )

    def page_not_saved(self, saving: HistorySaving) -> None:
        """It came, but the local store can't keep it."""
        self._fail(saving.ticket, ErrorCode.UNAVAILABLE)

    def members(self, wait: Wait, frame: MembersBatch) -> None:
        """Who is in the group."""
        self._inflight -= 1
        self._context.order(
            MembersArrived(
                ticket=wait.ticket,
                conversation_id=frame.conversation_id,
                version=frame.version,
                since_version=frame.since_version,
                added=frame.added,
                removed=frame.removed,
                name=frame.name,
                creator=frame.creator,
                full=frame.full,
            )
        )

    def refused(self, wait: Wait, code: int, retry_after_ms: int) -> None:
        """ERROR, or no answer in time."""
        self._inflight -= 1
        self._fail(wait.ticket, code, retry_after_ms)

    def check(self) -> None:
        """Bounds and counts."""
        inflight = 0
        for wait in self._context.waits.values():
            inflight += wait.kind in _KINDS
        assert inflight == self._inflight
        assert len(self._queue) <= self._context.config.queries_max

    def _frame(self, query: Query) -> PullHistory | Members:
        if isinstance(query, MembersRequested):
            return Members(conversation_id=query.conversation_id, since_version=query.since_version)
        return PullHistory(
            conversation_id=query.conversation_id,
            anchor=query.anchor,
            direction=query.direction,
            limit=query.limit or self._context.config.history_limit,
        )

    def _fail(self, ticket: int, code: int, retry_after_ms: int = 0) -> None:
        self._context.order(QueryFailed(ticket=ticket, code=code, retry_after_ms=retry_after_ms))
