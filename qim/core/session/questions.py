"""Questions of gateways: validated, checked for membership, handed to the log, the list or the store (pipeline.md §4).

MARK_READ, SET_STATE --member known, or a writer says so--> states.py
PULL_SESSION_LIST --> listing.py
STATE_SYNC --> states in the order of their last changes, and how far each of the user's devices has the mailbox
READ_BY --> members who see the message: a mark of who joined later says nothing of it --> at most ``read_by_max`` marks
"""

from collections import deque
from typing import assert_never

from qim.core.contract import routing
from qim.core.contract.actor import Actor
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import AskMembers, MembersAnswer, Refused
from qim.core.contract.rpc_session import (
    AskReadBy,
    AskSessionList,
    AskStates,
    AskSummaries,
    DeviceRow,
    ReadByAnswer,
    StateDone,
    StateRow,
    StatesAnswer,
    SubmitRead,
    SubmitState,
    SummariesAnswer,
    SummaryAsk,
)
from qim.core.contract.sequences import U64_MAX
from qim.core.contract.statelog import UserStateRecord
from qim.core.machine import Ms
from qim.core.ports.store_session import (
    DeliveredRead,
    MarksRead,
    ReadDelivered,
    ReadMarks,
    ReadStates,
    StatesRead,
)
from qim.core.session.asking import OnAnswer, WriterAnswer, Writers
from qim.core.session.known import Known
from qim.core.session.listing import Clock, Listing
from qim.core.session.orders import Orders, What
from qim.core.session.question import Ask, Question
from qim.core.session.shard import Shard
from qim.core.session.states import States
from qim.core.session.vocabulary import ReadReply, SessionConfig

ID_BYTES = 16
DEVICE_BYTES_MAX = 64
FLAGS_MAX = (1 << 32) - 1
Submit = SubmitRead | SubmitState


class Questions:
    """All questions in hand, bounded by ``questions_max``; each wait is ``question_ms`` long."""

    def __init__(
        self,
        config: SessionConfig,
        orders: Orders,
        writers: Writers,
        known: Known,
        states: States,
        listing: Listing,
        clock: Clock,
    ) -> None:
        self._config = config
        self._orders = orders
        self._writers = writers
        self._known = known
        self._states = states
        self._listing = listing
        self._clock = clock
        self._waiting: deque[Question] = deque()
        """By rising due: all waits are equally long. Answered ones leave at the front, or when there are too many."""
        self._compact_at = 1_024

    # ------------------------------------------------------------ asked

    def ask(self, source: str, ask: Ask, shard: Shard | None, number: int) -> Shard | None:
        """Take a question; ``shard`` is the one routing names, None where it isn't here. Answers the shard it goes to."""
        question = Question(
            source=source, ask=ask, shard=number, due=self._clock.now + self._config.question_ms
        )
        if shard is None:
            self._orders.refuse(question, ErrorCode.NOT_OWNER, "the shard is not here")
        elif not shard.running():
            self._refuse(question, "the shard is being opened")
        elif self.in_hand() >= self._config.questions_max:
            self._refuse(question, "too many questions")
        else:
            fault = self._fault(ask)
            if fault is not None:
                self._orders.refuse(question, ErrorCode.INVALID_ARGUMENT, fault)
                return None
            self._waiting.append(question)
            self._begin(shard, question)
            return shard
        return None

    def _begin(self, shard: Shard, question: Question) -> None:
        ask = question.ask
        match ask:
            case SubmitRead() | SubmitState():
                self._on_submit(shard, question, ask)
            case AskSessionList():
                self._listing.ask(shard, question, ask)
            case AskStates():
                self._on_states(shard, question, ask)
            case AskReadBy():
                self._on_read_by(shard, question, ask)
            case _:
                assert_never(ask)

    def _fault(self, ask: Ask) -> str | None:
        """What is outside its bounds."""
        if isinstance(ask, SubmitRead | SubmitState | AskReadBy):
            if len(ask.conversation_id) != ID_BYTES:
                return "conversation_id has 16 bytes"
        match ask:
            case SubmitRead():
                return None if 0 <= ask.read_seq <= U64_MAX else "read_seq is a u64"
            case SubmitState():
                return self._state_fault(ask)
            case AskReadBy():
                return None if 0 <= ask.conversation_seq <= U64_MAX else "conversation_seq is a u64"
            case AskStates():
                legal = 0 <= ask.since_revision <= U64_MAX >> 1 and ask.limit >= 0
                return None if legal else "since_revision or limit out of bounds"
            case AskSessionList():
                return None if ask.limit >= 0 else "limit out of bounds"
            case _:
                assert_never(ask)

    def _state_fault(self, ask: SubmitState) -> str | None:
        if not 1 <= ask.version <= U64_MAX:
            return "version begins at 1"
        if not 0 <= ask.flags <= FLAGS_MAX:
            return "flags are a u32"
        if len(ask.value) > self._config.state_value_bytes_max:
            return f"value has at most {self._config.state_value_bytes_max} bytes"
        if not 1 <= len(ask.actor.device_id) <= DEVICE_BYTES_MAX:
            return "device_id out of bounds"
        return None

    # ------------------------------------------------------------ read marks and states

    def _on_submit(self, shard: Shard, question: Question, ask: Submit) -> None:
        actor = ask.actor
        name = (actor.tenant_id, actor.user_id, ask.conversation_id)
        if isinstance(ask, SubmitRead) and 0 < ask.read_seq <= self._known.mark(*name):
            # It stands already, or a later one does: only forward.
            self._orders.answer(question, StateDone(rid=ask.rid))
        elif self._known.member(*name):
            self._submit(shard, question, ask)
        else:
            asked = AskSummaries(
                rid=0, actor=actor, window=1, items=(SummaryAsk(ask.conversation_id, U64_MAX),)
            )
            self._ask_writer(
                question,
                ask.conversation_id,
                asked,
                lambda _, answer: self._on_member(shard, question, ask, answer),
            )

    def _on_member(
        self, shard: Shard, question: Question, ask: Submit, answer: WriterAnswer | None
    ) -> None:
        if question.answered:
            return
        summaries = answer.summaries if isinstance(answer, SummariesAnswer) else ()
        if [summary.conversation_id for summary in summaries] != [ask.conversation_id]:
            self._refuse(question, "the conversation's writer doesn't answer")
        elif not summaries[0].known:
            self._orders.refuse(question, ErrorCode.NOT_MEMBER, "never a member of it")
        else:
            actor = ask.actor
            self._known.learn(actor.tenant_id, actor.user_id, ask.conversation_id)
            self._submit(shard, question, ask)

    def _submit(self, shard: Shard, question: Question, ask: Submit) -> None:
        if not shard.live:
            self._refuse(question, "the shard has moved")
        elif not self._states.submit(shard, _record_of(ask), question):
            self._refuse(question, "too many changes wait")

    # ------------------------------------------------------------ states

    def _on_states(self, shard: Shard, question: Question, ask: AskStates) -> None:
        """The devices first; then revision r: everything at offsets below r is known to the asker."""
        request = ReadDelivered(
            op=self._orders.op(
                What.READ, shard, lambda reply: self._on_delivered(shard, question, ask, reply)
            ),
            shard=shard.number,
            incarnation=shard.incarnation,
            tenant_id=ask.actor.tenant_id,
            user_id=ask.actor.user_id,
        )
        self._orders.give(request)

    def _on_delivered(
        self, shard: Shard, question: Question, ask: AskStates, reply: ReadReply | None
    ) -> None:
        if question.answered:
            return
        if not isinstance(reply, DeliveredRead) or not shard.live:
            self._refuse(question, "the store can't be read")
            return
        config = self._config
        # Where there are too many, those furthest behind are those that long since stopped pulling.
        latest = sorted(reply.devices, key=lambda device: (-device[1], device[0]))
        devices = tuple(DeviceRow(*told) for told in sorted(latest[: config.devices_max]))
        request = ReadStates(
            op=self._orders.op(
                What.READ, shard, lambda reply: self._on_states_read(question, ask, devices, reply)
            ),
            shard=shard.number,
            incarnation=shard.incarnation,
            tenant_id=ask.actor.tenant_id,
            user_id=ask.actor.user_id,
            since_offset=ask.since_revision - 1,
            limit=min(ask.limit or config.page_default, config.page_max),
        )
        self._orders.give(request)

    def _on_states_read(
        self,
        question: Question,
        ask: AskStates,
        devices: tuple[DeviceRow, ...],
        reply: ReadReply | None,
    ) -> None:
        if not isinstance(reply, StatesRead):
            self._refuse(question, "the store can't be read")
            return
        rows = tuple(
            StateRow(
                conversation_id=record.conversation_id,
                version=record.version,
                device_id=record.device_id,
                read_seq=record.read_seq,
                flags=record.flags,
                value=record.value,
            )
            for _, record in reply.rows
        )
        revision = reply.rows[-1][0] + 1 if reply.rows else ask.since_revision
        answer = StatesAnswer(
            rid=ask.rid, rows=rows, revision=revision, has_more=reply.more, devices=devices
        )
        self._orders.answer(question, answer)

    # ------------------------------------------------------------ who has read

    def _on_read_by(self, shard: Shard, question: Question, ask: AskReadBy) -> None:
        asked = AskMembers(
            rid=0,
            actor=ask.actor,
            conversation_id=ask.conversation_id,
            since_version=0,
            seeing=ask.conversation_seq,
        )
        self._ask_writer(
            question,
            ask.conversation_id,
            asked,
            lambda _, answer: self._on_members(shard, question, ask, answer),
        )

    def _on_members(
        self, shard: Shard, question: Question, ask: AskReadBy, answer: WriterAnswer | None
    ) -> None:
        if question.answered:
            return
        if isinstance(answer, Refused):
            self._orders.refuse(question, answer.code, answer.message, answer.retry_after_ms)
            return
        fits = isinstance(answer, MembersAnswer) and answer.conversation_id == ask.conversation_id
        if not isinstance(answer, MembersAnswer) or not fits or not shard.live:
            self._refuse(question, "the conversation's writer doesn't answer")
            return
        members = tuple(sorted(answer.added))
        users = members[: self._config.read_by_max]
        more = len(users) < len(members)
        request = ReadMarks(
            op=self._orders.op(
                What.READ, shard, lambda reply: self._on_marks(question, ask, users, more, reply)
            ),
            incarnation=shard.incarnation,
            conversation_id=ask.conversation_id,
            users=tuple(self._place(ask.actor, user) for user in users),
        )
        self._orders.give(request)

    def _place(self, actor: Actor, user_id: int) -> tuple[int, str, int]:
        return routing.shard(user_id, self._config.shard_count), actor.tenant_id, user_id

    def _on_marks(
        self,
        question: Question,
        ask: AskReadBy,
        users: tuple[int, ...],
        more: bool,
        reply: ReadReply | None,
    ) -> None:
        if not isinstance(reply, MarksRead):
            self._refuse(question, "the store can't be read")
            return
        read = tuple(
            user
            for user, read_seq in zip(users, reply.read_seqs, strict=True)
            if read_seq >= ask.conversation_seq
        )
        self._orders.answer(question, ReadByAnswer(rid=ask.rid, users=read, has_more=more))

    # ------------------------------------------------------------ ends

    def _ask_writer(
        self,
        question: Question,
        conversation_id: bytes,
        asked: AskSummaries | AskMembers,
        on_answer: OnAnswer,
    ) -> None:
        partition = routing.writer_shard(conversation_id, self._config.outbox_partition_count)
        if not self._writers.ask(self._clock.now, partition, asked, on_answer):
            self._refuse(question, "too many questions to writers")

    def _refuse(self, question: Question, text: str) -> None:
        retry_after_ms = self._config.retry_after_ms
        self._orders.refuse(question, ErrorCode.UNAVAILABLE, text, retry_after_ms)

    def in_hand(self) -> int:
        """Questions not yet answered."""
        waiting = self._waiting
        while waiting and waiting[0].answered:
            waiting.popleft()
        if len(waiting) > self._compact_at:
            self._waiting = waiting = deque(q for q in waiting if not q.answered)
            self._compact_at = max(1_024, 2 * len(waiting))
        return len(waiting)

    def expire(self) -> None:
        """End the waits whose time is up."""
        now = self._clock.now
        while self._waiting and (self._waiting[0].answered or self._waiting[0].due <= now):
            question = self._waiting.popleft()
            self._orders.refuse(question, question.late, "no answer in time")

    def deadline(self) -> Ms | None:
        """When ``expire`` may have something to end."""
        return self._waiting[0].due if self.in_hand() else None

    def idle(self) -> bool:
        """Nobody waits for an answer."""
        return all(question.answered for question in self._waiting)


def _record_of(ask: Submit) -> UserStateRecord:
    actor = ask.actor
    if isinstance(ask, SubmitRead):
        read_seq, version, device_id, flags, value = ask.read_seq, 0, b"", 0, b""
    else:
        read_seq, version, device_id = 0, ask.version, actor.device_id
        flags, value = ask.flags, ask.value
    return UserStateRecord(
        tenant_id=actor.tenant_id,
        user_id=actor.user_id,
        conversation_id=ask.conversation_id,
        read_seq=read_seq,
        version=version,
        device_id=device_id,
        flags=flags,
        value=value,
    )
