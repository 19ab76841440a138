"""Questions of the user: pages of history, members, readers. Asked once each, answered or failed, never retried by itself.

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
    ReadByArrived,
    ReadByRequested,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    HistoryBatch,
    HistoryDirection,
    Members,
    MembersBatch,
    PullHistory,
    ReadBy,
)
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.local_store import SaveHistory

Query = HistoryRequested | MembersRequested | ReadByRequested


_KINDS = {
    HistoryRequested: WaitKind.HISTORY,
    MembersRequested: WaitKind.MEMBERS,
    ReadByRequested: WaitKind.READ_BY,
}
_ASKED: Final = tuple(_KINDS.values())
_LOST: Final = "the connection was lost"


class Queries:
    """A bounded queue, a few in flight: the server holds back the pulls of who asks for too much at once."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context
        self._queue: deque[Query] = deque()
        self._inflight = 0
        self._asked: dict[int, HistoryRequested] = {}

    def ask(self, query: Query) -> None:
        """Queue it, or say that it can't be asked now."""
        refusal = refusal_of_frame(self._frame(query))
        if refusal is not None:
            self._fail(query.ticket, refusal.code, message=refusal.message)
        elif not self._context.is_live():
            self._fail(query.ticket, ErrorCode.UNAVAILABLE, message="not connected now")
        elif len(self._queue) >= self._context.config.queries_max:
            told = f"{len(self._queue)} questions wait already"
            self._fail(query.ticket, ErrorCode.QUOTA_EXCEEDED, message=told)
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
            request = self._context.ask(
                self._frame(query), _KINDS[type(query)], ticket=query.ticket
            )
            if isinstance(query, HistoryRequested):
                self._asked[request] = query

    def lost(self, tickets: list[int]) -> None:
        """The connection is gone: these were on it, and nothing queued can be asked."""
        for ticket in tickets:
            self._fail(ticket, ErrorCode.UNAVAILABLE, message=_LOST)
        for query in self._queue:
            self._fail(query.ticket, ErrorCode.UNAVAILABLE, message=_LOST)
        self._queue.clear()
        self._asked.clear()
        self._inflight = 0

    def history(self, wait: Wait, frame: HistoryBatch) -> None:
        """A page: told once it is stored."""
        self._inflight -= 1
        query = self._asked.pop(wait.request)
        messages = tuple(message_of_record(r, frame.conversation_id) for r in frame.records)
        saving = HistorySaving(
            ticket=wait.ticket,
            conversation_id=frame.conversation_id,
            messages=messages,
            has_more=frame.has_more,
            has_more_newer=frame.has_more_newer,
            write_policy=frame.write_policy,
        )
        covers_from, covers_to = _covers(query, frame)
        self._context.order(
            SaveHistory(
                op=self._context.expect(saving),
                conversation_id=frame.conversation_id,
                messages=messages,
                anchor=0,
                covers_from=covers_from,
                covers_to=covers_to,
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
                has_more_newer=saving.has_more_newer,
            )
        )

    def page_not_saved(self, saving: HistorySaving) -> None:
        """It came, but the local store can't keep it."""
        told = "the answer came, and the local store can't keep it"
        self._fail(saving.ticket, ErrorCode.UNAVAILABLE, message=told)

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

    def read_by(self, wait: Wait, frame: ReadBy) -> None:
        """Who has read so far."""
        self._inflight -= 1
        self._context.order(
            ReadByArrived(
                ticket=wait.ticket,
                conversation_id=frame.conversation_id,
                conversation_seq=frame.conversation_seq,
                users=frame.users,
                has_more=frame.has_more,
            )
        )

    def refused(self, wait: Wait, code: int, retry_after_ms: int, message: str) -> None:
        """ERROR, or no answer in time."""
        self._inflight -= 1
        self._asked.pop(wait.request, None)
        self._fail(wait.ticket, code, retry_after_ms, message)

    def check(self) -> None:
        """Bounds and counts."""
        inflight = 0
        for wait in self._context.waits.values():
            inflight += wait.kind in _ASKED
        assert inflight == self._inflight
        assert len(self._queue) <= self._context.config.queries_max

    def _frame(self, query: Query) -> PullHistory | Members | ReadBy:
        if isinstance(query, ReadByRequested):
            return ReadBy(
                conversation_id=query.conversation_id, conversation_seq=query.conversation_seq
            )
        if isinstance(query, MembersRequested):
            return Members(conversation_id=query.conversation_id, since_version=query.since_version)
        return PullHistory(
            conversation_id=query.conversation_id,
            anchor=query.anchor,
            direction=query.direction,
            limit=query.limit or self._context.config.history_limit,
        )

    def _fail(self, ticket: int, code: int, retry_after_ms: int = 0, message: str = "") -> None:
        self._context.order(
            QueryFailed(ticket=ticket, code=code, retry_after_ms=retry_after_ms, message=message)
        )


def _covers(query: HistoryRequested, frame: HistoryBatch) -> tuple[int, int]:
    """(from, to]: the page is all that is visible there."""
    first = frame.records[0].conversation_seq if frame.records else query.anchor
    last = frame.records[-1].conversation_seq if frame.records else query.anchor
    match query.direction:
        case HistoryDirection.NEWER:
            return query.anchor, last if frame.has_more else U64_MAX
        case HistoryDirection.OLDER:
            newest = query.anchor == 0  # 0: from the newest on
            to = U64_MAX if newest else query.anchor - 1
            return (max(first, 1) - 1 if frame.has_more else 0), to
        case _:
            begin = max(first, 1) - 1 if frame.has_more else 0
            return begin, last if frame.has_more_newer else U64_MAX
