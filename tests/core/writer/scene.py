"""A small world around one Writer: what it asks is carried out by outside.py, what clients want of it is said here.

Answers are given only when a test says so, in the order it says, so that every race is written down rather than hoped for.
"""

from collections.abc import Callable, Sequence

import msgspec

from qim.core.contract.actor import Actor
from qim.core.contract.entities import CommitState, MembershipOp, MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import dedupe_key, single_conversation_id
from qim.core.contract.rpc import (
    AskHistory,
    AskMembers,
    GroupDone,
    HistoryAnswer,
    MembersAnswer,
    Message,
    Refused,
    SendDone,
    SubmitGroup,
    SubmitOverlay,
    SubmitSend,
)
from qim.core.contract.rpc_session import AskSummaries, SummariesAnswer, Summary, SummaryAsk
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Count, Gauge, StageReached, Violation
from qim.core.writer import Writer, WriterConfig, WriterEffect, WriterEvent
from qim.core.writer.vocabulary import Question
from tests.core.writer.outside import SHARD, Outside

WALL = 1_700_000_000_000
HOUR_MS = 3_600_000


def benign(site: str, key: object) -> int:
    """No entropy."""
    return 0


def cmid(number: int) -> bytes:
    """A client_message_id."""
    return number.to_bytes(16, "big")


def actor(user_id: int, tenant_id: str = "default") -> Actor:
    """A user on their only device."""
    return Actor(tenant_id, user_id, b"phone")


def chat(user_a: int, user_b: int) -> bytes:
    """The single chat of two users."""
    return single_conversation_id("default", user_a, user_b)


class Scene(Outside):
    """One writer over one partition, one store, one registry; time moves only by ``advance``."""

    def __init__(self, config: WriterConfig | None = None, *, started: bool = True) -> None:
        self.config = config or WriterConfig(outbox_partition_count=1)
        super().__init__(WALL)
        self.wall_offset = WALL
        self.rid = 0
        self.inflight: list[Question] = []
        self.answers: list[Message] = []
        self.traces: list[tuple[int, ...]] = []
        self.counts: dict[str, int] = {}
        self.stages: list[tuple[int, str]] = []
        self.violations: list[Violation] = []
        self.wanted: list[FreshEpochWanted] = []
        self.on_send: Callable[[Send], None] | None = None
        self.grants = True
        self.writer = Writer(self.config, choose=benign)
        self.step(Started(address="writer-1", wall=self.wall()))
        if started:
            self.hold()
            self.settle()

    # -------------------------------------------------------------- time and leases

    def wall(self) -> int:
        """This node's wall clock."""
        return self.now + self.wall_offset

    def advance(self, ms: int) -> None:
        """Let time pass and the machine see it."""
        self.now += ms
        self.step()

    def hold(self) -> None:
        """Grant a fresh epoch."""
        self.epoch += 1
        self.step(
            LeaseHeld(
                resource=SHARD,
                epoch=self.epoch,
                barrier_epoch=0,
                barrier_offset=-1,
                wall=self.wall(),
            )
        )

    def lose(self) -> None:
        """The lease is gone."""
        self.step(LeaseGone(resource=SHARD))

    # -------------------------------------------------------------- steps

    def step(self, *events: WriterEvent) -> list[WriterEffect]:
        """One step; effects are filed, the machine's own invariants checked."""
        effects = self.writer.step(self.now, events)
        self.writer.check()
        for effect in effects:
            self._file(effect)
        return effects

    def _file(self, effect: WriterEffect) -> None:
        match effect:
            case Send():
                self.answers.append(effect.message)
                self.traces.append(effect.traces)
                if self.on_send is not None:
                    self.on_send(effect)
            case FreshEpochWanted():
                self.wanted.append(effect)
            case Count():
                name = f"{effect.name}.{effect.label}" if effect.label else effect.name
                self.counts[name] = self.counts.get(name, 0) + effect.value
            case StageReached():
                self.stages.append((effect.trace_id, effect.stage))
            case Violation():
                self.violations.append(effect)
            case Gauge():
                pass
            case _:
                self.inflight.append(effect)

    def settle(self) -> None:
        """Answer everything, oldest first, until nothing is in flight; grant what is wanted."""
        for _ in range(10_000):
            if self.grants and self.wanted:
                self.epoch = max(self.epoch, self.wanted.pop(0).above)
                self.hold()
            elif self.inflight:
                self.answer()
            else:
                return
        raise AssertionError("never settles")

    def answer(self, index: int = 0) -> list[WriterEffect]:
        """Carry out the question at ``index`` and hand its answer over."""
        return self.step(self.carry_out(self.inflight.pop(index)))

    def until(self, kind: type[Question]) -> Question:
        """Answer until a question of this kind is at hand; it stays unanswered and is taken out of ``inflight``."""
        for _ in range(1000):
            for index, question in enumerate(self.inflight):
                if type(question) is kind:
                    return self.inflight.pop(index)
            assert self.inflight, f"no {kind.__name__} comes"
            self.answer()
        raise AssertionError(kind)

    def pending(self, kind: type[Question]) -> list[Question]:
        """Questions of a kind in flight."""
        return [question for question in self.inflight if type(question) is kind]

    # -------------------------------------------------------------- requests

    def receive(self, message: Message, source: str = "gateway-1") -> None:
        """Hand a message over."""
        self.step(Received(source=source, wall=self.wall(), message=message))

    def send(
        self,
        sender: int,
        peer: int | None = None,
        *,
        number: int = 0,
        body: bytes = b"hello",
        to: bytes | None = None,
        **fields: object,
    ) -> int:
        """Submit a message; its rid."""
        self.rid += 1
        send = SubmitSend(
            rid=self.rid,
            actor=actor(sender),
            client_message_id=cmid(number or self.rid),
            conversation_id=to,
            peer_user_id=peer,
            kind=MessageKind.TEXT,
            custom_type="",
            body=body,
            retention_class=0,
            not_after=self.wall() + HOUR_MS,
        )
        self.receive(msgspec.structs.replace(send, **fields))
        return self.rid

    def group(
        self,
        sender: int,
        op: MembershipOp,
        members: Sequence[int] = (),
        *,
        to: bytes | None = None,
        number: int = 0,
        changes: dict[str, object] | None = None,
    ) -> int:
        """Submit a membership request with some fields changed; its rid."""
        self.rid += 1
        request = SubmitGroup(
            rid=self.rid,
            actor=actor(sender),
            op=op,
            client_message_id=cmid(number or self.rid),
            not_after=self.wall() + HOUR_MS,
            conversation_id=to,
            members=tuple(members),
        )
        self.receive(msgspec.structs.replace(request, **(changes or {})))
        return self.rid

    def create(self, creator: int, *members: int, number: int = 0) -> bytes:
        """Create a group and settle; its conversation_id."""
        rid = self.group(
            creator, MembershipOp.CREATE, members, number=number, changes={"name": "team"}
        )
        self.settle()
        return self.grouped(rid).conversation_id

    def history(
        self, user: int, conversation_id: bytes, anchor: int = 0, direction: int = 0, limit: int = 0
    ) -> int:
        """Ask for history; its rid."""
        self.rid += 1
        ask = AskHistory(
            rid=self.rid,
            actor=actor(user),
            conversation_id=conversation_id,
            anchor=anchor,
            direction=direction,
            limit=limit,
        )
        self.receive(ask)
        return self.rid

    def members(self, user: int, conversation_id: bytes, since: int = 0, *, seeing: int = 0) -> int:
        """Ask for members; its rid."""
        self.rid += 1
        ask = AskMembers(
            rid=self.rid,
            actor=actor(user),
            conversation_id=conversation_id,
            since_version=since,
            seeing=seeing,
        )
        self.receive(ask)
        return self.rid

    def overlay(
        self,
        user: int,
        kind: MessageKind,
        conversation_id: bytes,
        target_seq: int,
        *,
        number: int = 0,
        **fields: object,
    ) -> int:
        """Submit a recall or a delete-for-me; its rid."""
        self.rid += 1
        request = SubmitOverlay(
            rid=self.rid,
            actor=actor(user),
            client_message_id=cmid(number or self.rid),
            not_after=self.wall() + HOUR_MS,
            conversation_id=conversation_id,
            target_seq=target_seq,
            kind=kind,
        )
        self.receive(msgspec.structs.replace(request, **fields))
        return self.rid

    def recall(self, user: int, conversation_id: bytes, target_seq: int, number: int = 0) -> int:
        """Submit a recall; its rid."""
        return self.overlay(user, MessageKind.RECALL, conversation_id, target_seq, number=number)

    def delete(self, user: int, conversation_id: bytes, target_seq: int, number: int = 0) -> int:
        """Submit a delete-for-me; its rid."""
        kind = MessageKind.DELETE_FOR_ME
        return self.overlay(user, kind, conversation_id, target_seq, number=number)

    def summarise(
        self, user: int, *items: tuple[bytes, int], window: int = 200, tenant_id: str = "default"
    ) -> int:
        """Ask for summaries of (conversation, read_seq) pairs; its rid."""
        self.rid += 1
        ask = AskSummaries(
            rid=self.rid,
            actor=actor(user, tenant_id),
            window=window,
            items=tuple([SummaryAsk(name, read_seq) for name, read_seq in items]),
        )
        self.receive(ask)
        return self.rid

    def summary(
        self, user: int, conversation_id: bytes, read_seq: int = 0, window: int = 200
    ) -> Summary:
        """One summary, settled."""
        rid = self.summarise(user, (conversation_id, read_seq), window=window)
        self.settle()
        return self.summaries(rid)[0]

    # -------------------------------------------------------------- what was said

    def summaries(self, rid: int) -> tuple[Summary, ...]:
        """The summaries."""
        answer = self.said(rid)
        assert isinstance(answer, SummariesAnswer), answer
        return answer.summaries

    def said(self, rid: int) -> Message | None:
        """The one answer to a request, or None so far; two would be a fault."""
        found = [answer for answer in self.answers if getattr(answer, "rid", 0) == rid]
        assert len(found) <= 1, found
        return found[0] if found else None

    def sent(self, rid: int) -> SendDone:
        """The ack."""
        answer = self.said(rid)
        assert isinstance(answer, SendDone), answer
        return answer

    def grouped(self, rid: int) -> GroupDone:
        """GROUP_OK."""
        answer = self.said(rid)
        assert isinstance(answer, GroupDone), answer
        return answer

    def past(self, rid: int) -> HistoryAnswer:
        """The page."""
        answer = self.said(rid)
        assert isinstance(answer, HistoryAnswer), answer
        return answer

    def member_list(self, rid: int) -> MembersAnswer:
        """The members."""
        answer = self.said(rid)
        assert isinstance(answer, MembersAnswer), answer
        return answer

    def refused(self, rid: int) -> ErrorCode:
        """The refusal's code."""
        answer = self.said(rid)
        assert isinstance(answer, Refused), answer
        return ErrorCode(answer.code)

    def refused_after_settle(self, rid: int) -> ErrorCode:
        """The refusal's code once everything is answered."""
        self.settle()
        return self.refused(rid)

    def commit_state(self, sender: int, number: int) -> CommitState | None:
        """What stands under a dedupe key in the keyspace."""
        key = b"d:" + dedupe_key("default", sender, cmid(number))
        held = self.keyspace.dump().get(key)
        if held is None:
            return None
        assert isinstance(held[1], bytes)
        return CommitState(held[1][0])
