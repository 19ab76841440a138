"""Read marks and user state: into the log before they are answered, from the log into the store (pipeline.md §4).

    submitted --Append, in order, one in flight--> durable --fetched, ApplyStates--> stands --> answered
                   |--Unknown: the same batch again; a copy that lands late loses or repeats

An applier that meets a value losing against the one that stands appends the winner again, and passes the loser only when that
is durable: compaction keeps the last record of a key, and it must be the winner.
"""

from itertools import islice
from typing import assert_never

from qim.core.contract.errors import ErrorCode
from qim.core.contract.logvalue import (
    Barrier,
    NewerFormat,
    StateLogged,
    Undecodable,
    read_user_state,
    user_state_value,
)
from qim.core.contract.rpc_session import StateDone
from qim.core.contract.statelog import UserStateRecord, encode_state_record, user_state_key
from qim.core.ports.log import Append, Appended, LogRecord, Position, StoredRecord, Topic
from qim.core.ports.observe import Count, Violation, halted
from qim.core.ports.store_session import ApplyStates, StateChange, StatesApplied
from qim.core.position import record_digest
from qim.core.session.known import Known
from qim.core.session.opening import stop
from qim.core.session.orders import Orders, What
from qim.core.session.question import Question
from qim.core.session.shard import Shard, Submission, WindowRecord
from qim.core.session.vocabulary import SessionConfig


def admit(orders: Orders, shard: Shard, stored: StoredRecord) -> WindowRecord | None:
    """Put a fetched user-state record into the window; None where a newer format halts the feed before it."""
    entry = read_user_state(stored.value)
    content: UserStateRecord | None = None
    match entry:
        case StateLogged():
            content = entry.record
        case Barrier():
            pass  # an operator filled up what the log had lost (core/mending/user_state.py)
        case NewerFormat():
            shard.state.halted = True
            orders.give(Count(name="session_newer_format", label="user_state"))
            orders.give(halted("user_state", shard.number, stored.offset, entry.version))
            return None
        case Undecodable():
            orders.give(Count(name="session_dead_letter", label="user_state"))
        case _:
            assert_never(entry)
    record = WindowRecord(stored=stored, content=content)
    shard.state.take(record)
    return record


class States:
    """The two queues of every shard: records on their way into the log, and out of it into the store."""

    def __init__(self, config: SessionConfig, orders: Orders, known: Known) -> None:
        self._config = config
        self._orders = orders
        self._known = known

    # ------------------------------------------------------------ into the log

    def submit(self, shard: Shard, record: UserStateRecord, question: Question) -> bool:
        """Queue a validated record; False: too many wait already."""
        if len(shard.queue) >= self._config.submissions_max:
            return False
        shard.queue.append(Submission(record, question))
        return True

    def append(self, shard: Shard) -> None:
        """Order the next batch, unless one is in flight or waits to be repeated."""
        if What.APPEND in shard.requests:
            return
        while shard.queue and len(shard.batch) < self._config.append_records_max:
            submission = shard.queue.popleft()
            question = submission.question
            if question is not None:
                if question.answered:
                    continue
                question.late = ErrorCode.TIMEOUT_UNKNOWN
            shard.batch += (submission,)
        if not shard.batch:
            return
        shard.append_floor = shard.state.next_offset
        request = Append(
            op=self._orders.op(What.APPEND, shard),
            topic=Topic.USER_STATE,
            partition=shard.number,
            epoch=shard.epoch,
            records=tuple(self._log_record(shard, s.record) for s in shard.batch),
        )
        self._orders.ask(What.APPEND, shard, request)

    def _log_record(self, shard: Shard, record: UserStateRecord) -> LogRecord:
        value = user_state_value(shard.epoch, encode_state_record(record))
        return LogRecord(key=user_state_key(record), value=value)

    def on_appended(self, shard: Shard, event: Appended) -> Violation | None:
        """Durable: askers wait for it to be applied, winners let the applier go on. Answers what stops the shard."""
        if event.offsets[0] < shard.append_floor:
            # The log lost what was read of it; in its place this would pass for applied.
            detail = f"appended at {event.offsets[0]}, and was read up to {shard.append_floor}"
            return stop(shard, shard.state, detail)
        batch, shard.batch = shard.batch, ()
        assert len(batch) == len(event.offsets)
        for submission, offset in zip(batch, event.offsets, strict=True):
            if submission.question is None:
                shard.winners -= 1
            else:
                shard.waiting.append((offset, submission.question))
        self._answer(shard)
        return None

    # ------------------------------------------------------------ into the store

    def apply(self, shard: Shard) -> None:
        """Order the next changes, unless some are in flight or a winner isn't durable yet."""
        feed = shard.state
        if What.APPLY in shard.requests or shard.winners or not feed.window:
            return
        position = feed.position
        assert position is not None
        batch = tuple(islice(feed.window, self._config.changes_max))
        last = batch[-1].stored
        changes = [_change(record) for record in batch if record.content and not record.lost]
        request = ApplyStates(
            op=self._orders.op(What.APPLY, shard),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            from_offset=position.offset,
            to=Position(feed.topic_id, last.offset + 1, record_digest(last)),
            changes=tuple(changes),
        )
        self._orders.ask(What.APPLY, shard, request)

    def on_applied(self, shard: Shard, request: ApplyStates, event: StatesApplied) -> None:
        """Stored, or nothing is: then the losers' winners go into the log first."""
        if event.losing:
            self._lost(shard, request, event)
            return
        for change in request.changes:
            if change.version == 0:
                self._known.read(
                    change.tenant_id, change.user_id, change.conversation_id, change.read_seq
                )
        shard.state.passed(request.to)
        self._answer(shard)

    def _lost(self, shard: Shard, request: ApplyStates, event: StatesApplied) -> None:
        losers = {request.changes[index].offset: None for index in event.losing}
        for record in shard.state.window:
            record.lost = record.lost or record.stored.offset in losers
        winners = {user_state_key(record): record for record in map(_record, event.winners)}
        shard.queue.extendleft(Submission(record, None) for record in winners.values())
        shard.winners += len(winners)
        self._orders.give(Count(name="session_state_lost", value=len(losers)))

    def _answer(self, shard: Shard) -> None:
        while shard.waiting and shard.waiting[0][0] < shard.state.stands_at():
            question = shard.waiting.popleft()[1]
            self._orders.answer(question, StateDone(rid=question.ask.rid))

    # ------------------------------------------------------------ ends

    def abandon(self, shard: Shard) -> None:
        """The shard is a thing of the past: nobody there will answer any more. Call before ``retire``."""
        for submission in (*shard.batch, *shard.queue):
            question = submission.question
            if question is not None:
                self._orders.refuse(question, question.late, "the shard has moved")
        for _, question in shard.waiting:
            self._orders.refuse(question, question.late, "the shard has moved")


def owed(shard: Shard) -> bool:
    """Somebody waits for a record of the log to be applied."""
    return bool(shard.queue or shard.batch or shard.waiting or shard.winners)


def _change(record: WindowRecord) -> StateChange:
    content = record.content
    assert isinstance(content, UserStateRecord)
    return StateChange(
        offset=record.stored.offset,
        tenant_id=content.tenant_id,
        user_id=content.user_id,
        conversation_id=content.conversation_id,
        read_seq=content.read_seq,
        version=content.version,
        device_id=content.device_id,
        flags=content.flags,
        value=content.value,
    )


def _record(winner: StateChange) -> UserStateRecord:
    return UserStateRecord(
        tenant_id=winner.tenant_id,
        user_id=winner.user_id,
        conversation_id=winner.conversation_id,
        read_seq=winner.read_seq,
        version=winner.version,
        device_id=winner.device_id,
        flags=winner.flags,
        value=winner.value,
    )
