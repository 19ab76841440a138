"""Questions of users and of the session list, answered from hot store and archive as one (pipeline.md §§4, 5).

AskHistory   --> the asker's intervals --> scans, one a direction --> HistoryAnswer
AskSummaries --> scans, one a conversation, intervals with the first page --> SummariesAnswer
AskMembers   --> ReadMembership --> MembersAnswer
an overlay   --> a scan of the one row it is to lie on --> back to its commit

A record still in the pending index is not shown (the store's script leaves it out). Nothing here writes. Unread, preview
and history come from the same rows by the same rule (scan.py), and only from a shard that came through OPEN.
"""

from collections.abc import Callable, Iterable
from typing import Final

from qim.core.contract.entities import ConversationKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import ID_BYTES, single_conversation_id
from qim.core.contract.routing import writer_shard
from qim.core.contract.rpc import AskHistory, AskMembers, HistoryAnswer, MembersAnswer
from qim.core.contract.rpc_session import AskSummaries, SummariesAnswer
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.archive import ArchiveRead
from qim.core.ports.network import Received
from qim.core.ports.store_reads import (
    HistoryItem,
    HistoryRead,
    MembershipRead,
    ReadHistory,
    ReadMembership,
)
from qim.core.writer.audience import audience_of
from qim.core.writer.commit import Commit
from qim.core.writer.deadlines import Deadlines
from qim.core.writer.orders import Call, Flight, Orders, Pending
from qim.core.writer.overlays import Target
from qim.core.writer.query import DIRECTIONS, Query, Tally, legs_of, page_of
from qim.core.writer.scan import EVERYTHING, Judgement, Scan, Sink
from qim.core.writer.shard import CLOSED, SERVING, Shard
from qim.core.writer.vocabulary import Answer
from qim.core.writer.walking import Walker

Ask = AskHistory | AskMembers | AskSummaries
TargetFound = Callable[[Shard, Commit, Target], None]


class Reads:
    """Answers questions; a question lives in its shard until it is answered, refused or the shard leaves service."""

    def __init__(self, orders: Orders, deadlines: Deadlines) -> None:
        self._orders: Final = orders
        self._deadlines: Final = deadlines
        self._walker: Final = Walker(orders)
        self._number = 0
        self.on_target: TargetFound | None = None

    # -------------------------------------------------------------- questions

    def ask(self, shard: Shard | None, number: int, received: Received, ask: Ask) -> None:
        """Take a question of the shard that owns its conversations; a shard that doesn't serve refuses."""
        waiter = self._deadlines.waiter(received.source, ask.rid, number)
        fault = self._fault(ask) or self._unready(shard)
        if fault is not None:
            self._orders.refuse(waiter, *fault, self._orders.config.retry_after_ms)
            return
        assert shard is not None
        self._deadlines.watch(waiter)
        query = self._begin(shard, Query(number=self._next(), waiter=waiter, ask=ask))
        if isinstance(ask, AskSummaries):
            query.scans, query.tallies = [], []
            for item in ask.items:
                tally = Tally(
                    read_seq=item.read_seq,
                    window=ask.window,
                    user_id=ask.actor.user_id,
                    first_rows=self._orders.config.summary_rows_first,
                    retention=self._orders.config.retention,
                )
                query.tallies.append(tally)
                ranges = (EVERYTHING,)
                query.scans.append(
                    self._scan(item.conversation_id, ask.actor.user_id, tally, True, ranges)
                )
            self._go(shard, query)
            return
        if isinstance(ask, AskHistory):
            self._ask_access(shard, query, ask)
        else:
            self._ask_members(shard, query, ask)

    def _ask_access(self, shard: Shard, query: Query, ask: AskHistory) -> None:
        """The intervals of one user cost the same in a group of a thousand."""
        nothing = HistoryItem(
            conversation_id=ask.conversation_id,
            low=0,
            high=0,
            newest_first=True,
            limit=0,
            user_id=ask.actor.user_id,
        )
        request = ReadHistory(
            op=self._orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            items=(nothing,),
        )
        self._orders.ask(Call.ACCESS, shard, request, Flight(number=query.number, scans=()))

    def _ask_members(self, shard: Shard, query: Query, ask: AskMembers) -> None:
        request = ReadMembership(
            op=self._orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            conversation_id=ask.conversation_id,
        )
        self._orders.ask(Call.MEMBERS, shard, request, Flight(number=query.number, scans=()))

    def inspect(self, shard: Shard, commit: Commit) -> bool:
        """Look for the row an overlay is to lie on; ``on_target`` hears of it. False: too many reads in flight."""
        if self._orders.held_queries >= self._orders.config.queries_max:
            return False
        target = Target(seq=commit.target_seq)
        query = self._begin(shard, Query(number=self._next(), waiter=None, ask=None, target=target))
        shard.inspected[query.number] = commit
        ranges = ((target.seq - 1, target.seq + 1),)
        query.scans = [
            self._scan(commit.conversation_id, commit.actor.user_id, target, True, ranges)
        ]
        self._go(shard, query)
        return True

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _begin(self, shard: Shard, query: Query) -> Query:
        shard.queries[query.number] = query
        self._orders.held_queries += 1
        return query

    def _scan(
        self,
        conversation_id: bytes,
        user_id: int,
        sink: Sink,
        newest_first: bool,
        ranges: Iterable[tuple[int, int]],
    ) -> Scan:
        orders = self._orders
        wall = orders.clock.wall(orders.now)
        return Scan(
            conversation_id,
            Judgement(user_id=user_id, wall=wall, retention=orders.config.retention),
            sink,
            newest_first=newest_first,
            ranges=ranges,
            tiered=orders.config.tiered,
            rows_max=orders.config.history_rows_max,
        )

    def _fault(self, ask: Ask) -> tuple[ErrorCode, str] | None:
        if isinstance(ask, AskSummaries):
            return self._summaries_fault(ask)
        if len(ask.conversation_id) != ID_BYTES:
            return ErrorCode.INVALID_ARGUMENT, "conversation_id has 16 bytes"
        if isinstance(ask, AskHistory):
            if ask.direction not in DIRECTIONS or not 0 <= ask.anchor <= U64_MAX or ask.limit < 0:
                return ErrorCode.INVALID_ARGUMENT, "direction, anchor or limit out of bounds"
        return None

    def _summaries_fault(self, ask: AskSummaries) -> tuple[ErrorCode, str] | None:
        config = self._orders.config
        if not 0 < len(ask.items) <= config.summary_items_max or not (
            0 < ask.window <= config.unread_window_max
        ):
            return ErrorCode.INVALID_ARGUMENT, "number of conversations or window out of bounds"
        count = config.outbox_partition_count
        owner = writer_shard(ask.items[0].conversation_id, count)
        for item in ask.items:
            if len(item.conversation_id) != ID_BYTES or not 0 <= item.read_seq <= U64_MAX:
                return ErrorCode.INVALID_ARGUMENT, "conversation_id or read_seq out of bounds"
            if writer_shard(item.conversation_id, count) != owner:
                return ErrorCode.INVALID_ARGUMENT, "conversations of more than one writer shard"
        return None

    def _unready(self, shard: Shard | None) -> tuple[ErrorCode, str] | None:
        if shard is None or shard.stage is CLOSED:
            return ErrorCode.NOT_OWNER, "another writer owns the conversation"
        if shard.stage is not SERVING:
            return ErrorCode.UNAVAILABLE, "the shard is opening"
        if self._orders.held_queries >= self._orders.config.queries_max:
            return ErrorCode.UNAVAILABLE, "too many reads in flight"
        return None

    # -------------------------------------------------------------- answers

    def on_access(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Who may see what: unknown, never a member, or these intervals."""
        assert isinstance(answer, HistoryRead)
        query = self._live(shard, pending)
        if query is None:
            return
        ask, (page,) = query.ask, answer.pages
        assert isinstance(ask, AskHistory)
        if page.kind == 0:
            self._refuse(shard, query, ErrorCode.NOT_FOUND, "no such conversation")
        elif not page.intervals or not _of_tenant(page.kind, page.users or (), ask):
            self._refuse(shard, query, ErrorCode.NOT_MEMBER, "never a member of it")
        else:
            self._page(shard, query, ask, page.intervals)

    def on_members(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Members are told to members."""
        assert isinstance(answer, MembershipRead)
        query = self._live(shard, pending)
        if query is None:
            return
        ask = query.ask
        assert isinstance(ask, AskMembers)
        users = [member.user_id for member in answer.everyone]
        if answer.kind == 0:
            self._refuse(shard, query, ErrorCode.NOT_FOUND, "no such conversation")
        elif not _of_tenant(answer.kind, users, ask):
            self._refuse(shard, query, ErrorCode.NOT_MEMBER, "never a member of it")
        else:
            self._members(shard, query, ask, answer)

    def _page(
        self, shard: Shard, query: Query, ask: AskHistory, spans: tuple[tuple[int, int], ...]
    ) -> None:
        config = self._orders.config
        wanted = min(ask.limit or config.page_default, config.page_max)
        query.legs, query.scans = [], []
        for leg, newest_first, ranges in legs_of(ask, spans, wanted, config.batch_bytes_max):
            query.legs.append(leg)
            query.scans.append(
                self._scan(ask.conversation_id, ask.actor.user_id, leg, newest_first, ranges)
            )
        self._go(shard, query)

    def on_rows(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Pages of some scans."""
        assert isinstance(answer, HistoryRead)
        assert isinstance(pending.subject, Flight)
        query = self._live(shard, pending)
        if query is not None:
            self._walker.take_rows(query, pending.subject, answer)
            self._go(shard, query)

    def on_archive(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Archived rows of one scan."""
        assert isinstance(answer, ArchiveRead)
        assert isinstance(pending.subject, Flight)
        query = self._live(shard, pending)
        if query is not None:
            self._walker.take_archive(query, pending.subject, answer)
            self._go(shard, query)

    def _go(self, shard: Shard, query: Query) -> None:
        if not self._walker.go(shard, query):
            return
        if query.target is not None:
            self._leave(shard, query)
            commit = shard.inspected.pop(query.number)
            assert self.on_target is not None
            self.on_target(shard, commit, query.target)
        elif isinstance(query.ask, AskSummaries):
            self._summarise(shard, query, query.ask)
        else:
            assert isinstance(query.ask, AskHistory)
            page = page_of(query.legs, query.ask.direction)
            done = HistoryAnswer(
                rid=query.ask.rid,
                conversation_id=query.ask.conversation_id,
                records=page.records,
                has_more=page.has_more,
                has_more_newer=page.has_more_newer,
                recalled=page.recalled,
            )
            self._finish(shard, query, done)

    def _summarise(self, shard: Shard, query: Query, ask: AskSummaries) -> None:
        summaries = []
        for item, tally in zip(ask.items, query.tallies, strict=True):
            assert tally.page is not None
            users = tally.page.users or ()
            tally.stranger = not _is_of_tenant(
                tally.page.kind, users, item.conversation_id, ask.actor.tenant_id
            )
            summaries.append(tally.summary(item.conversation_id))
        self._finish(shard, query, SummariesAnswer(rid=ask.rid, summaries=tuple(summaries)))

    def _members(self, shard: Shard, query: Query, ask: AskMembers, read: MembershipRead) -> None:
        """Present members only; a delta is answered in full (since_version 0) unless nothing has changed."""
        now = audience_of(read)
        if ask.actor.user_id not in now.present:
            self._refuse(shard, query, ErrorCode.NOT_MEMBER, "not a member of it")
            return
        unchanged = ask.since_version == now.version and now.version > 0
        done = MembersAnswer(
            rid=ask.rid,
            conversation_id=ask.conversation_id,
            version=now.version,
            since_version=now.version if unchanged else 0,
            added=() if unchanged else _seeing(now.members, read, ask.seeing),
            removed=(),
            name=now.name,
            creator=now.creator,
        )
        self._finish(shard, query, done)

    # -------------------------------------------------------------- ends

    def _live(self, shard: Shard, pending: Pending) -> Query | None:
        """The query this answer belongs to; None where its asker has been told UNAVAILABLE meanwhile."""
        assert isinstance(pending.subject, Flight)
        query = shard.queries.get(pending.subject.number)
        if query is not None and query.waiter is not None and query.waiter.answered:
            self._leave(shard, query)
            return None
        return query

    def _leave(self, shard: Shard, query: Query) -> None:
        del shard.queries[query.number]
        self._orders.held_queries -= 1

    def _finish(
        self, shard: Shard, query: Query, done: HistoryAnswer | MembersAnswer | SummariesAnswer
    ) -> None:
        self._leave(shard, query)
        assert query.waiter is not None
        self._orders.answer(query.waiter, done)

    def _refuse(self, shard: Shard, query: Query, code: ErrorCode, text: str) -> None:
        self._leave(shard, query)
        assert query.waiter is not None
        self._orders.refuse(query.waiter, code, text)

    def failed(self, shard: Shard, pending: Pending) -> bool:
        """A read nobody waits for any more is not asked again. True: dropped."""
        return self._live(shard, pending) is None


def _of_tenant(kind: int, users: Iterable[int], ask: AskHistory | AskMembers) -> bool:
    return _is_of_tenant(kind, users, ask.conversation_id, ask.actor.tenant_id)


def _seeing(members: tuple[int, ...], read: MembershipRead, seq: int) -> tuple[int, ...]:
    """Those of them with an interval that holds ``seq``; all where 0 asks for nothing."""
    if seq == 0:
        return members
    seen = {
        member.user_id: None
        for member in read.everyone
        if any(joined < seq <= left for joined, left in member.intervals)
    }
    return tuple(user for user in members if user in seen)


def _is_of_tenant(kind: int, users: Iterable[int], conversation_id: bytes, tenant_id: str) -> bool:
    """A single chat's id names its tenant; a group's was handed out by its own members only."""
    if kind != ConversationKind.SINGLE:
        return True
    pair = sorted(users)
    return conversation_id == single_conversation_id(tenant_id, pair[0], pair[-1])
