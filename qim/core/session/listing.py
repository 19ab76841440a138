"""The conversation list: frozen once under a revision, then paged by key (pipeline.md §4).

    PULL revision 0, or one that stands no more --> rows and marks in one script --> summaries of what is dirty, by writer
        shard --> frozen: sorted by falling (last_activity_id, conversation_id) --> first page
    PULL revision r --> the page after its key, from the same rows

Everything at or below ``projected_through`` is in the list: a summary that doesn't know yet of the newest record the
projection knows (its writer has appended it and is about to mark it) is asked for again, a few times, and never kept. What
was asked again in vain once is not waited for by the next list: a deletion for oneself beyond one's leaving touches a row
and is in no summary, ever.

Hidden conversations (flag ARCHIVED) are listed with their flags: hiding is the client's, so that it may show one again when
a message comes. badge = the sum of unread (200 where it is not exact) over all conversations that are not muted, hidden ones
included, at most 2^32 - 1. Of a state's value only mute_until is read, as of the freezing (contract/user_state.py).
"""

from msgspec import Struct

from qim.core.contract import routing
from qim.core.contract.entities import EMPTY_ID
from qim.core.contract.errors import ErrorCode
from qim.core.contract.hashing import H
from qim.core.contract.rpc_session import (
    AskSessionList,
    AskSummaries,
    SessionListAnswer,
    SessionRow,
    SummariesAnswer,
    Summary,
    SummaryAsk,
)
from qim.core.contract.sequences import before_first
from qim.core.contract.user_state import is_muted
from qim.core.machine import Ms
from qim.core.ports.observe import Count
from qim.core.ports.store_session import ReadSessions, SessionRecord, SessionsRead
from qim.core.session.asking import WriterAnswer, Writers
from qim.core.session.known import Known
from qim.core.session.orders import Orders, What
from qim.core.session.question import Question
from qim.core.session.shard import Shard
from qim.core.session.snapshots import ROW_BYTES, Kept, Owner, Snapshot, Snapshots, inputs_of
from qim.core.session.vocabulary import ReadReply, SessionConfig
from qim.core.timers import back_off

BADGE_MAX = 2**32 - 1
ID_BYTES = 16
ACTIVITY_MS_SHIFT = 80
"""last_activity_id begins with the physical ms of a message_id (contract.md, Five sequences)."""


class Clock(Struct):
    """Now, monotonic and wall, in ms, as of the present step."""

    now: Ms = 0
    wall: int = 0


class Freeze(Struct, eq=False):
    """A list being computed. ``missing``: summaries asked for and not yet answered."""

    question: Question
    shard: Shard
    read: SessionsRead
    owner: Owner
    records: dict[bytes, SessionRecord]
    summaries: dict[bytes, Summary] = {}
    stale: dict[bytes, None] = {}
    missing: int = 0
    attempts: int = 0
    due: Ms = 0


class Listing:
    """All lists of a machine: frozen, paged, thrown away."""

    def __init__(
        self,
        config: SessionConfig,
        orders: Orders,
        writers: Writers,
        known: Known,
        clock: Clock,
    ) -> None:
        self._config = config
        self._orders = orders
        self._writers = writers
        self._known = known
        self._clock = clock
        self.snapshots = Snapshots(config)
        self._put_off: list[Freeze] = []

    # ------------------------------------------------------------ asked

    def ask(self, shard: Shard, question: Question, ask: AskSessionList) -> None:
        """A page of a list that stands, or a new list."""
        owner = (shard.number, ask.actor.tenant_id, ask.actor.user_id)
        snapshot = None
        if ask.revision:
            snapshot = self.snapshots.find(self._clock.now, owner, ask.revision)
        if snapshot is not None:
            self._page(question, ask, snapshot, ask.after)
            return
        request = ReadSessions(
            op=self._orders.op(
                What.READ, shard, lambda reply: self._on_read(shard, question, owner, reply)
            ),
            shard=shard.number,
            incarnation=shard.incarnation,
            tenant_id=owner[1],
            user_id=owner[2],
        )
        self._orders.give(request)

    def _on_read(
        self, shard: Shard, question: Question, owner: Owner, reply: ReadReply | None
    ) -> None:
        if question.answered:
            return
        if not isinstance(reply, SessionsRead):
            self._unavailable(question, "the store can't be read")
            return
        records = {
            record.conversation_id: record
            for record in reply.records
            if record.last_activity_id != EMPTY_ID
        }
        freeze = Freeze(question=question, shard=shard, read=reply, owner=owner, records=records)
        wanted: list[bytes] = []
        for name, record in records.items():
            kept = self.snapshots.kept(owner, record, self._clock.wall)
            if kept is None:
                wanted.append(name)
            else:
                freeze.summaries[name] = kept
        self._summarise(freeze, wanted)

    # ------------------------------------------------------------ summaries

    def _summarise(self, freeze: Freeze, wanted: list[bytes]) -> None:
        """Ask for summaries, a batch a writer shard; with none to ask for, the list is complete."""
        count = self._config.outbox_partition_count
        by_writer: dict[int, list[bytes]] = {}
        for name in wanted:
            by_writer.setdefault(routing.writer_shard(name, count), []).append(name)
        most = self._config.ask_items_max
        batches = [
            (partition, names[at : at + most])
            for partition, names in by_writer.items()
            for at in range(0, len(names), most)
        ]
        freeze.missing += len(batches)
        for partition, names in batches:
            self._ask_writer(freeze, partition, tuple(names))
        if not batches:
            self._complete(freeze)

    def _ask_writer(self, freeze: Freeze, partition: int, names: tuple[bytes, ...]) -> None:
        ask = AskSummaries(
            rid=0,
            actor=freeze.question.actor,
            window=self._config.unread_window,
            items=tuple(SummaryAsk(name, freeze.records[name].read_seq) for name in names),
        )
        asked = self._writers.ask(
            self._clock.now,
            partition,
            ask,
            lambda _, answer: self._on_summaries(freeze, names, answer),
        )
        if not asked:
            self._unavailable(freeze.question, "too many questions to writers")

    def _on_summaries(
        self, freeze: Freeze, names: tuple[bytes, ...], answer: WriterAnswer | None
    ) -> None:
        if freeze.question.answered:
            return
        fits = isinstance(answer, SummariesAnswer) and names == tuple(
            summary.conversation_id for summary in answer.summaries
        )
        if not isinstance(answer, SummariesAnswer) or not fits:
            self._unavailable(freeze.question, "a writer shard doesn't answer")
            return
        for summary in answer.summaries:
            name = summary.conversation_id
            freeze.summaries[name] = summary
            if self._behind(freeze.records[name], summary):
                freeze.stale[name] = None
            else:
                freeze.stale.pop(name, None)
        freeze.missing -= 1
        if freeze.missing == 0:
            self._complete(freeze)

    def _behind(self, record: SessionRecord, summary: Summary) -> bool:
        """The writer doesn't show yet what the projection knows, and it was written lately enough to be on its way."""
        if summary.last_activity_id >= record.touched_id:
            return False
        touched_ms = int.from_bytes(record.touched_id, "big") >> ACTIVITY_MS_SHIFT
        return self._clock.wall < touched_ms + self._config.settle_ms

    def _complete(self, freeze: Freeze) -> None:
        config = self._config
        waits = any(
            not self.snapshots.given_up(freeze.owner, freeze.records[name]) for name in freeze.stale
        )
        if waits and freeze.attempts < config.summary_retries_max:
            freeze.attempts += 1
            delay = back_off(freeze.attempts, config.summary_retry_ms, config.retry_most_ms)
            freeze.due = self._clock.now + delay
            self._put_off.append(freeze)
            return
        self._freeze(freeze)

    def expire(self) -> None:
        """Ask again what was behind."""
        now = self._clock.now
        due = [freeze for freeze in self._put_off if freeze.due <= now]
        if not due:
            return
        self._put_off = [freeze for freeze in self._put_off if freeze.due > now]
        for freeze in due:
            if not freeze.question.answered:
                self._summarise(freeze, list(freeze.stale))

    def deadline(self) -> Ms | None:
        """When ``expire`` has something to do."""
        return min([freeze.due for freeze in self._put_off]) if self._put_off else None

    # ------------------------------------------------------------ frozen

    def _freeze(self, freeze: Freeze) -> None:
        shard, question = freeze.shard, freeze.question
        if not shard.live:
            self._unavailable(question, "the shard has moved")
            return
        rows: list[SessionRow] = []
        kept: dict[bytes, Kept] = {}
        for name, record in freeze.records.items():
            summary = freeze.summaries[name]
            if not summary.known:
                self._orders.give(Count(name="session_row_unknown"))
                continue
            self._known.learn(freeze.owner[1], freeze.owner[2], name)
            rows.append(_row(record, summary))
            if name not in freeze.stale:
                kept[name] = Kept(inputs=inputs_of(record), summary=summary)
        rows.sort(key=_key, reverse=True)
        shard.revisions += 1
        # A store without a position has all that lies before the log's start, where it begins: a rebuild may wait for that.
        projected = max(freeze.read.dispatch_offset, shard.dispatch.began)
        snapshot = Snapshot(
            revision=_revision(shard),
            rows=tuple(rows),
            projected_through=before_first(shard.shard_epoch, projected),
            badge=_badge(rows, self._clock.wall),
            frozen_at=self._clock.now,
        )
        given_up = {name: freeze.records[name].touched_id for name in freeze.stale}
        self.snapshots.freeze(freeze.owner, snapshot, kept, given_up)
        ask = question.ask
        assert isinstance(ask, AskSessionList)
        self._page(question, ask, snapshot, b"")

    def _page(
        self, question: Question, ask: AskSessionList, snapshot: Snapshot, after: bytes
    ) -> None:
        if after and len(after) != 2 * ID_BYTES:
            self._orders.refuse(question, ErrorCode.INVALID_ARGUMENT, "no such page key")
            return
        config = self._config
        limit = min(ask.limit or config.page_default, config.page_max)
        rows = snapshot.rows
        start = _first_below(rows, after) if after else 0
        stop = _cut(rows, start, limit, config.page_bytes_max)
        answer = SessionListAnswer(
            rid=ask.rid,
            rows=rows[start:stop],
            revision=snapshot.revision,
            after=_key(rows[stop - 1]) if stop < len(rows) else b"",
            projected_through=snapshot.projected_through,
            badge=snapshot.badge,
        )
        self._orders.answer(question, answer)

    def _unavailable(self, question: Question, text: str) -> None:
        retry_after_ms = self._config.retry_after_ms
        self._orders.refuse(question, ErrorCode.UNAVAILABLE, text, retry_after_ms)


def _row(record: SessionRecord, summary: Summary) -> SessionRow:
    return SessionRow(
        conversation_id=record.conversation_id,
        conversation_kind=summary.conversation_kind,
        peer_user_id=summary.peer_user_id,
        last_activity_id=record.last_activity_id,
        head=summary.head,
        unread=summary.unread,
        unread_exact=summary.unread_exact,
        read_seq=record.read_seq,
        state_version=record.version,
        state_flags=record.flags,
        state_value=record.value,
    )


def _key(row: SessionRow) -> bytes:
    """The page key: both parts have a fixed width, so bytes compare as the pair does."""
    return row.last_activity_id + row.conversation_id


def _first_below(rows: tuple[SessionRow, ...], after: bytes) -> int:
    """The first row whose key is below ``after``; keys fall."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if _key(rows[middle]) < after:
            high = middle
        else:
            low = middle + 1
    return low


def _cut(rows: tuple[SessionRow, ...], start: int, limit: int, bytes_max: int) -> int:
    """Where a page ends: at its limit or size, never before its first row."""
    size = 0
    for at in range(start, min(start + limit, len(rows))):
        size += ROW_BYTES + len(rows[at].head) + len(rows[at].state_value)
        if size > bytes_max and at > start:
            return at
    return min(start + limit, len(rows))


def _badge(rows: list[SessionRow], wall: int) -> int:
    counted = sum(
        row.unread for row in rows if not is_muted(row.state_flags, row.state_value, wall)
    )
    return min(counted, BADGE_MAX)


def _revision(shard: Shard) -> int:
    """1..2^63 - 1, new with every snapshot of every owner of the shard: an epoch has one owner."""
    return (
        int.from_bytes(H("qim.revision", shard.number, shard.epoch, shard.revisions)[:8]) >> 1 | 1
    )
