"""History and member reads over the hot store, checked against stored members and intervals (pipeline.md §5, hot part).

AskHistory --> ReadMembership --> ReadHistory, range by range --> HistoryAnswer
AskMembers --> ReadMembership --> MembersAnswer

A record still in the pending index is not shown (the store's script leaves it out). Nothing here writes, and nothing
below the hot floor is answered: the archive comes later.
"""

from typing import Final

from qim.core.contract.entities import ConversationKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import ID_BYTES, single_conversation_id
from qim.core.contract.rpc import AskHistory, AskMembers, HistoryAnswer, MembersAnswer
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.network import Received
from qim.core.ports.store_message import HistoryRead, MembershipRead, ReadHistory, ReadMembership
from qim.core.writer.audience import audience_of
from qim.core.writer.deadlines import Deadlines
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.query import DIRECTIONS, Query, legs_of, page_of
from qim.core.writer.shard import CLOSED, SERVING, Shard
from qim.core.writer.vocabulary import Answer


class Reads:
    """Answers questions; a question lives in its shard until it is answered, refused or the shard leaves service."""

    def __init__(self, orders: Orders, deadlines: Deadlines) -> None:
        self._orders: Final = orders
        self._deadlines: Final = deadlines
        self._number = 0

    def ask(self, shard: Shard | None, received: Received, ask: AskHistory | AskMembers) -> None:
        """Take a question of the shard that owns its conversation; a shard that doesn't serve refuses."""
        waiter = self._deadlines.waiter(received.source, ask.rid)
        fault = self._fault(shard, ask)
        if fault is not None:
            self._orders.refuse(waiter, *fault, self._orders.config.retry_after_ms)
            return
        assert shard is not None
        self._deadlines.watch(waiter)
        self._number += 1
        shard.queries[self._number] = Query(number=self._number, waiter=waiter, ask=ask)
        self._orders.held_queries += 1
        request = ReadMembership(
            op=self._orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            conversation_id=ask.conversation_id,
        )
        self._orders.ask(Call.ACCESS, shard, request, self._number)

    def _fault(
        self, shard: Shard | None, ask: AskHistory | AskMembers
    ) -> tuple[ErrorCode, str] | None:
        if len(ask.conversation_id) != ID_BYTES:
            return ErrorCode.INVALID_ARGUMENT, "conversation_id has 16 bytes"
        if isinstance(ask, AskHistory):
            if ask.direction not in DIRECTIONS or not 0 <= ask.anchor <= U64_MAX or ask.limit < 0:
                return ErrorCode.INVALID_ARGUMENT, "direction, anchor or limit out of bounds"
        if shard is None or shard.stage is CLOSED:
            return ErrorCode.NOT_OWNER, "another writer owns the conversation"
        if shard.stage is not SERVING:
            return ErrorCode.UNAVAILABLE, "the shard is opening"
        if self._orders.held_queries >= self._orders.config.queries_max:
            return ErrorCode.UNAVAILABLE, "too many reads in flight"
        return None

    def on_access(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Who may see what: unknown, never a member, or these intervals."""
        assert isinstance(answer, MembershipRead)
        query = self._live(shard, pending)
        if query is None:
            return
        actor = query.ask.actor
        if answer.kind == 0:
            self._refuse(shard, query, ErrorCode.NOT_FOUND, "no such conversation")
            return
        spans = [m.intervals for m in answer.everyone if m.user_id == actor.user_id]
        if not spans or not _of_tenant(answer, query.ask):
            self._refuse(shard, query, ErrorCode.NOT_MEMBER, "never a member of it")
        elif isinstance(query.ask, AskMembers):
            self._members(shard, query, query.ask, answer)
        else:
            config = self._orders.config
            wanted = min(query.ask.limit or config.page_default, config.page_max)
            query.legs = legs_of(query.ask, spans[0], wanted, config.batch_bytes_max)
            self._read_on(shard, query, query.ask)

    def _read_on(self, shard: Shard, query: Query, ask: AskHistory) -> None:
        leg = next((leg for leg in query.legs if leg.ranges), None)
        if leg is None:
            records, more = page_of(query.legs)
            done = HistoryAnswer(
                rid=ask.rid, conversation_id=ask.conversation_id, records=records, has_more=more
            )
            self._finish(shard, query, done)
            return
        low, high = leg.ranges[0]
        # One more than wanted, so that `more` is known even where a range ends with the page.
        limit = min(leg.wanted - len(leg.rows) + 1, self._orders.config.history_rows_max)
        request = ReadHistory(
            op=self._orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            conversation_id=ask.conversation_id,
            low=low,
            high=high,
            newest_first=leg.newest_first,
            limit=limit,
        )
        self._orders.ask(Call.ROWS, shard, request, query.number)

    def on_rows(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """A stretch of one range."""
        assert isinstance(answer, HistoryRead)
        query = self._live(shard, pending)
        if query is None:
            return
        assert isinstance(query.ask, AskHistory)
        leg = next(leg for leg in query.legs if leg.ranges)
        leg.take(answer.stored, answer.more)
        self._read_on(shard, query, query.ask)

    def _members(self, shard: Shard, query: Query, ask: AskMembers, read: MembershipRead) -> None:
        """Present members only; a delta is answered in full (since_version 0) unless nothing has changed."""
        now = audience_of(read)
        if ask.actor.user_id not in now.present:
            self._refuse(shard, query, ErrorCode.NOT_MEMBER, "not a member any more")
            return
        unchanged = ask.since_version == now.version and now.version > 0
        done = MembersAnswer(
            rid=ask.rid,
            conversation_id=ask.conversation_id,
            version=now.version,
            since_version=now.version if unchanged else 0,
            added=() if unchanged else now.members,
            removed=(),
            name=now.name,
            creator=now.creator,
        )
        self._finish(shard, query, done)

    # -------------------------------------------------------------- ends

    def _live(self, shard: Shard, pending: Pending) -> Query | None:
        """The query this answer belongs to; None where its asker has been told UNAVAILABLE meanwhile."""
        assert isinstance(pending.subject, int)
        query = shard.queries.get(pending.subject)
        if query is not None and query.waiter.answered:
            self._leave(shard, query)
            return None
        return query

    def _leave(self, shard: Shard, query: Query) -> None:
        del shard.queries[query.number]
        self._orders.held_queries -= 1

    def _finish(self, shard: Shard, query: Query, done: HistoryAnswer | MembersAnswer) -> None:
        self._leave(shard, query)
        self._orders.answer(query.waiter, done)

    def _refuse(self, shard: Shard, query: Query, code: ErrorCode, text: str) -> None:
        self._leave(shard, query)
        self._orders.refuse(query.waiter, code, text)

    def failed(self, shard: Shard, pending: Pending) -> bool:
        """A read nobody waits for any more is not asked again. True: dropped."""
        return self._live(shard, pending) is None


def _of_tenant(read: MembershipRead, ask: AskHistory | AskMembers) -> bool:
    """A single chat's id names its tenant; a group's was handed out by its own members only."""
    if read.kind != ConversationKind.SINGLE:
        return True
    users = sorted(member.user_id for member in read.everyone)
    return ask.conversation_id == single_conversation_id(ask.actor.tenant_id, users[0], users[-1])
