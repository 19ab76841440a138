"""Writer: ConversationWriter and GroupMembership of any number of writer shards (pipeline.md §1), and reads of history.

One owner a shard, a shard is an outbox partition: what it acknowledges stands in the log first and in the store's
present incarnation, once, in the order of conversation_seq. It does no fanout, keeps no bodies, pushes nothing, writes
no archive, and never serves a shard that did not come through OPEN.

CLOSED --> OPENING --> SERVING --> REFRESHING --> OPENING      one shard (shard.py, opening.py)
ready --> RECORDED --> OUTBOXED --> COMMITTED --> acknowledged  one request (requests.py, pipeline.py)
"""

from collections.abc import Sequence
from typing import Final, assert_never

from qim.core.contract.errors import ErrorCode
from qim.core.contract.routing import writer_shard
from qim.core.contract.rpc import (
    AskHistory,
    AskMembers,
    Refused,
    SubmitGroup,
    SubmitOverlay,
    SubmitSend,
)
from qim.core.contract.rpc_session import AskSummaries
from qim.core.machine import Choose, Ms, kinds
from qim.core.ports.completion import Failed, Fenced, StoreReset, StoreRole, Unknown
from qim.core.ports.local import DrainRequested, LeaseGone, LeaseHeld, Started
from qim.core.ports.network import Received, Send
from qim.core.ports.observe import Gauge, queue
from qim.core.ports.registry import Role
from qim.core.timers import earliest
from qim.core.writer.arrivals import Submit
from qim.core.writer.audience import AudienceCache
from qim.core.writer.deadlines import Deadlines
from qim.core.writer.heads import Heads
from qim.core.writer.history import Reads
from qim.core.writer.lifecycle import close, refresh
from qim.core.writer.moderating import Moderating
from qim.core.writer.opening import Opening
from qim.core.writer.orders import Call, Handler, Orders, Pending
from qim.core.writer.pipeline import Pipeline
from qim.core.writer.requests import Requests
from qim.core.writer.shard import OPENING, SERVING, Shard
from qim.core.writer.trimming import Trimming
from qim.core.writer.validation import conversation_of
from qim.core.writer.verdicts import Verdicts
from qim.core.writer.vocabulary import Answer, WriterConfig, WriterEffect, WriterEvent

_ANSWERS: Final = kinds(Answer)


class Writer:
    """A batch of facts in, a batch of orders out; see the module's diagram. Not re-entrant, no clock, no chance."""

    def __init__(self, config: WriterConfig, *, choose: Choose) -> None:
        audiences = AudienceCache(config.cached_conversations_max, config.cached_members_max)
        self._config: Final = config
        self._orders: Final = Orders(config, choose)
        self._deadlines: Final = Deadlines(self._orders)
        self._audiences: Final = audiences
        self._moderating: Final = Moderating(self._orders)
        self._verdicts: Final = Verdicts(self._orders, self._moderating)
        self._reads: Final = Reads(self._orders, self._deadlines)
        self._requests: Final = Requests(
            self._orders,
            self._deadlines,
            audiences,
            self._verdicts,
            self._reads,
            self._moderating,
        )
        self._reads.on_target = self._requests.on_target
        self._heads: Final = Heads(self._orders)
        self._pipeline: Final = Pipeline(
            self._orders, self._requests, self._verdicts, audiences, self._moderating
        )
        self._trimming: Final = Trimming(self._orders)
        self._opening: Final = Opening(self._orders, self._trimming)
        self._shards: Final[dict[int, Shard]] = {}
        self._nameless = config.instance_leased
        """The instance lease has not come yet: message_ids of this process's last life might be made again."""
        self._held_back: dict[int, LeaseHeld] = {}
        """Shards whose lease came first, one each."""
        self._draining = False
        self._probe_at: Ms | None = None
        self._handlers: Final = self._by_call()

    def _by_call(self) -> dict[Call, Handler]:
        """Whose answer it is, by what was asked."""
        return {
            **self._opening.by_call(),
            Call.RESERVE: self._pipeline.on_reserved,
            Call.APPEND: self._pipeline.on_appended,
            Call.MARK: self._pipeline.on_marked,
            Call.LOOKUP: self._verdicts.on_lookup,
            Call.LOAD: self._requests.on_load,
            Call.HEADS: self._heads.on_heads,
            Call.ACCESS: self._reads.on_access,
            Call.MEMBERS: self._reads.on_members,
            Call.ROWS: self._reads.on_rows,
            Call.ARCHIVE: self._reads.on_archive,
            Call.TRIM: self._trimming.on_trimmed,
            Call.REFUSE: self._pipeline.on_refused,
            Call.MODERATE: self._moderating.on_verdict,
        }

    # -------------------------------------------------------------- the four verbs

    def step(self, now: Ms, events: Sequence[WriterEvent]) -> list[WriterEffect]:
        """Facts first, then time, then one flush of every shard that was touched."""
        orders = self._orders
        orders.now = max(orders.now, now)
        for event in events:
            self._take(event)
        for waiter in self._deadlines.expired():
            self._verdicts.expire(waiter)
        orders.unpark()
        self._trimming.look()
        self._probe_clock()
        while orders.touched:
            _, shard = orders.touched.popitem()
            self._flush(shard)
        return orders.deliver()

    def deadline(self) -> Ms | None:
        """The nearest of: a waiter's end, a retry, the next look at hot rows, the next look at our clock."""
        return earliest(
            self._deadlines.next_deadline(),
            self._orders.next_retry(),
            self._trimming.deadline(),
            self._probe_at,
        )

    def idle(self) -> bool:
        """Nothing accepted is unanswered and no append is in flight."""
        return self._orders.held_commits == 0 and all(
            shard.append_busy is None and shard.drained() and not shard.queries
            for shard in self._shards.values()
        )

    def serving(self) -> int:
        """How many shards came through OPEN and serve."""
        return sum(shard.stage is SERVING for shard in self._shards.values())

    def gauges(self, now: Ms) -> list[Gauge]:
        """Bounded structures and the shards, by a driver that is asked for them."""
        orders, config, shards = self._orders, self._config, self._shards.values()
        unappended = [len(shard.append_queue) for shard in shards]
        return [
            *queue("writer.commits", orders.held_commits, config.commits_max),
            *queue("writer.commit_bytes", orders.held_bytes, config.commit_bytes_max),
            *queue("writer.queries", orders.held_queries, config.queries_max),
            *queue("writer.waiting", self._deadlines.length(), config.waiting_requests_max),
            *queue("writer.unappended", sum(unappended), config.unappended_max * len(unappended)),
            *queue(
                "writer.heads",
                sum(len(shard.heads) for shard in shards),
                config.heads_max * len(unappended),
            ),
            *queue("writer.cached_members", self._audiences.members(), config.cached_members_max),
            Gauge(name="writer_ops", value=len(orders.pending)),
            Gauge(
                name="clock_ahead_ms", value=orders.clock.ahead_ms if orders.clock.refuses else 0
            ),
            Gauge(name="shards_serving", value=self.serving(), label="writer"),
        ]

    def check(self) -> None:
        """Own invariants; the simulator calls it after every step."""
        orders = self._orders
        assert not orders.touched
        held = size = queries = 0
        for shard in self._shards.values():
            queries += len(shard.queries)
            if shard.commits:
                held += len(shard.commits)
                size += sum([commit.size for commit in shard.commits.values()])
            shard.check()
        assert orders.held_commits == held <= self._config.commits_max
        assert orders.held_bytes == size
        assert orders.held_queries == queries <= self._config.queries_max
        orders.check()
        self._deadlines.check()
        self._audiences.check()
        self._requests.check()

    # -------------------------------------------------------------- facts

    def _take(self, event: WriterEvent) -> None:
        if type(event) in _ANSWERS:
            self._on_answer(event)  # type: ignore[arg-type]
            return
        match event:
            case Received():
                self._on_received(event)
            case Failed() | Unknown() | Fenced():
                self._on_trouble(event)
            case StoreReset():
                self._on_store_reset(event)
            case LeaseHeld():
                self._on_lease_held(event)
            case LeaseGone():
                self._on_lease_gone(event)
            case Started():
                self._orders.clock.observe(event.wall, self._orders.now)
            case DrainRequested():
                self._draining = True
            case _:
                self._on_answer(event)

    def _on_answer(self, event: Answer) -> None:
        pending = self._orders.take(event.op)
        if pending is None:
            return
        shard = pending.shard
        if pending.generation == shard.generation:
            self._orders.touch(shard)
            self._handlers[pending.call](shard, pending, event)

    def _on_trouble(self, event: Failed | Unknown | Fenced) -> None:
        orders = self._orders
        pending = orders.take(event.op)
        if pending is None or pending.generation != pending.shard.generation:
            return
        shard, call = pending.shard, pending.call
        orders.touch(shard)
        match event:
            case Fenced():
                refresh(orders, shard, "fenced", event.epoch)
            case Failed():
                orders.count("op_failed", label=event.why.value)
                if not self._failed(shard, pending, event):
                    orders.retry(pending)
            case Unknown():
                orders.count("op_unknown", label=call.value)
                pending.unknown = True
                self._unknown(shard, pending)
            case _:
                assert_never(event)

    def _failed(self, shard: Shard, pending: Pending, event: Failed) -> bool:
        """Surely not applied. True: handled, no retry of the same request."""
        call = pending.call
        if call is Call.RESERVE:
            return self._pipeline.failed_reserve(shard, pending, event.why)
        if call is Call.APPEND:
            return self._pipeline.failed_append(shard, pending, event.why)
        if self._opening.failed(shard, call, event.why):
            return True
        return self._failed_read(shard, pending)

    def _failed_read(self, shard: Shard, pending: Pending) -> bool:
        if pending.call is Call.HEADS:
            self._heads.lost(shard)
            return True
        if pending.call is Call.TRIM:
            self._trimming.lost(shard)
            return True
        if pending.call in (Call.ACCESS, Call.MEMBERS, Call.ROWS, Call.ARCHIVE):
            return self._reads.failed(shard, pending)
        if pending.call is Call.MODERATE:
            self._moderating.unheard(shard, pending)
            return True
        return False

    def _unknown(self, shard: Shard, pending: Pending) -> None:
        call = pending.call
        if call is Call.APPEND or call is Call.BARRIER:
            # It may land now or later: only a barrier of a fresh epoch decides, never a second append (§1.5).
            refresh(self._orders, shard, "append_unknown")
        elif call is Call.RESERVE and self._pipeline.unsettled(shard, pending):
            return
        elif not self._failed_read(shard, pending):
            self._orders.retry(pending)

    def _on_store_reset(self, event: StoreReset) -> None:
        orders = self._orders
        if event.op is not None:
            pending = orders.take(event.op)
            if pending is not None and pending.generation == pending.shard.generation:
                refresh(orders, pending.shard, "store_reset")
        elif event.store is StoreRole.MESSAGE:
            for shard in self._shards.values():
                # A shard that has not heard of an incarnation yet has learnt nothing that could be stale.
                if shard.incarnation:
                    refresh(orders, shard, "store_reset")

    # -------------------------------------------------------------- leases

    def _on_lease_held(self, event: LeaseHeld) -> None:
        self._orders.clock.observe(event.wall, self._orders.now)
        if event.resource.role is Role.INSTANCE:
            self._orders.clock.take_instance(event.resource.number, event.epoch)
            self._nameless = False
            held, self._held_back = self._held_back, {}
            for waiting in held.values():
                self._on_lease_held(waiting)
            return
        if event.resource.role is not Role.WRITER:
            return
        number = event.resource.number
        self._orders.elsewhere.pop(number, None)
        if self._nameless:
            self._held_back[number] = event
            return
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = Shard(number)
        if event.epoch > shard.epoch:
            self._opening.begin(shard, event)

    def _on_lease_gone(self, event: LeaseGone) -> None:
        if event.resource.role is not Role.WRITER:
            return
        self._orders.elsewhere[event.resource.number] = event.owner_address
        self._held_back.pop(event.resource.number, None)
        shard = self._shards.get(event.resource.number)
        if shard is not None:
            close(self._orders, shard)

    # -------------------------------------------------------------- requests

    def _on_received(self, event: Received) -> None:
        self._orders.clock.observe(event.wall, self._orders.now)
        message = event.message
        match message:
            case SubmitSend() | SubmitGroup() | SubmitOverlay():
                self._on_submit(event, message)
            case AskHistory() | AskMembers():
                self._on_ask(event, message, message.conversation_id)
            case AskSummaries():
                self._on_ask(
                    event, message, message.items[0].conversation_id if message.items else b""
                )
            case _:
                # Answers and pushes are not for a writer; whoever sent one waits for nothing.
                self._orders.count("unexpected_message")

    def _on_submit(self, event: Received, message: Submit) -> None:
        if self._draining:
            self._refuse(event, message.rid, ErrorCode.UNAVAILABLE, "stopping")
            return
        fault = self._requests.fault(message)
        if fault is not None:
            self._refuse(event, message.rid, fault.code, fault.message)
            return
        conversation_id = conversation_of(message)
        self._requests.submit(*self._owned(conversation_id), event, message, conversation_id)

    def _on_ask(
        self, event: Received, ask: AskHistory | AskMembers | AskSummaries, conversation_id: bytes
    ) -> None:
        if self._draining:
            self._refuse(event, ask.rid, ErrorCode.UNAVAILABLE, "stopping")
        else:
            self._reads.ask(*self._owned(conversation_id), event, ask)

    def _owned(self, conversation_id: bytes) -> tuple[Shard | None, int]:
        number = writer_shard(conversation_id, self._config.outbox_partition_count)
        return self._shards.get(number), number

    def _refuse(self, event: Received, rid: int, code: ErrorCode, text: str) -> None:
        self._orders.count("refused", label=code.name)
        retry = self._config.retry_after_ms if code is ErrorCode.UNAVAILABLE else 0
        refused = Refused(rid=rid, code=code, message=text, retry_after_ms=retry)
        self._orders.emit(Send(address=event.source, message=refused))

    # -------------------------------------------------------------- the end of a step

    def _flush(self, shard: Shard) -> None:
        if shard.stage is OPENING:
            self._opening.flush(shard)
        if shard.stage is SERVING or shard.stage is OPENING:
            self._pipeline.flush(shard)
            self._verdicts.flush(shard)
            self._moderating.flush(shard)

    def _probe_clock(self) -> None:
        """While our clock is refused nothing is appended, so a fresh barrier asks the log's time again."""
        orders = self._orders
        if not orders.clock.refuses:
            self._probe_at = None
        elif self._probe_at is None:
            orders.count("clock_refused")
            self._probe_at = orders.now + self._config.clock_probe_ms
        elif orders.now >= self._probe_at:
            self._probe_at = None
            serving = [shard for shard in self._shards.values() if shard.stage is SERVING]
            for shard in serving[:1]:
                refresh(orders, shard, "clock_probe")
