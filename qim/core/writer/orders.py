"""What the parts of the Writer share: the op counter, the ops in flight, retries waiting for their time, effects so far.

An op is asked once and answered once. ``Failed`` and ``Unknown`` of a store op lead to the SAME step again (the same
request under a new op, after a growing delay); the epoch in it never changes, so a retry after a fresh epoch is fenced.
It does not decide what an answer means: that is the part's whose call it was.
"""

import heapq
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Struct

from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Message, Refused
from qim.core.machine import Choose
from qim.core.opener import Opener
from qim.core.ports.local import FreshEpochWanted
from qim.core.ports.network import Send
from qim.core.ports.observe import Count, StageReached, Violation
from qim.core.ports.registry import Role
from qim.core.ports.store_message import OpenShard
from qim.core.writer.clock import WriterClock
from qim.core.writer.commit import Commit, Waiter
from qim.core.writer.scan import Scan
from qim.core.writer.shard import Shard
from qim.core.writer.vocabulary import Answer, Question, WriterConfig, WriterEffect


class Call(StrEnum):
    """Which step of which procedure an op belongs to; picks the handler of its answer."""

    OPEN = "open"
    ENDS = "ends"
    BEFORE = "before"
    LEASE = "lease"
    BARRIER = "barrier"
    REGISTER = "register"
    FETCH = "fetch"
    APPLY = "apply"
    PENDING = "pending"
    LOOKUP = "lookup"
    LOAD = "load"
    RESERVE = "reserve"
    APPEND = "append"
    MARK = "mark"
    REFUSE = "refuse"
    HEADS = "heads"
    ACCESS = "access"
    MEMBERS = "members"
    ROWS = "rows"
    ARCHIVE = "archive"
    TRIM = "trim"
    ARCHIVED = "archived"
    BELOW = "below"
    INTENTS = "intents"
    CONVERSATIONS = "conversations"
    RESTORE = "restore"
    MODERATE = "moderate"


class Flight(Struct, frozen=True, kw_only=True):
    """Whose read it is: a query's number, and the scans its pages are for, in order."""

    number: int
    scans: tuple[Scan, ...]


class Pending(Struct, kw_only=True, eq=False):
    """An op in flight or waiting for its retry. ``subject``: the conversation (LOAD), the dedupe key (MODERATE) or the flight it is about."""

    call: Call
    shard: Shard
    generation: int
    request: Question
    subject: bytes | Flight | None = None
    asked_at: int
    asked_wall: int
    first_asked_at: int
    attempts: int = 0
    unknown: bool = False


Handler = Callable[[Shard, Pending, Answer], None]
"""Goes on with an answer."""


class Orders:
    """Shared hands of the machine; one instance a Writer, emptied into the driver at the end of each step."""

    def __init__(self, config: WriterConfig, choose: Choose) -> None:
        self.config: Final = config
        self.elsewhere: dict[int, str] = {}
        """Who serves the shards that we don't, where the registry noticed; one at most a shard."""
        self.clock = WriterClock(config.instance, config.instance_epoch, config.clock_ahead_max_ms)
        self.now = 0
        self.pending: dict[int, Pending] = {}
        self.touched: dict[int, Shard] = {}
        self.generation = 0
        self.held_commits = 0
        self.held_bytes = 0
        self.held_queries = 0
        self.opener: Final = Opener(choose, Role.WRITER)
        self._choose: Final = choose
        self._op = 0
        self._effects: list[WriterEffect] = []
        self._counts: dict[tuple[str, str], int] = {}
        self._parked: list[tuple[int, int, Pending]] = []

    # -------------------------------------------------------------- asking

    def next_op(self) -> int:
        """Allocated before the effect is made, so that the effect can be frozen."""
        self._op += 1
        return self._op

    def ask(
        self,
        call: Call,
        shard: Shard,
        request: Question,
        subject: bytes | Flight | None = None,
    ) -> None:
        """Order ``request`` and remember whose it is."""
        now = self.now
        self.pending[request.op] = Pending(
            call=call,
            shard=shard,
            generation=shard.generation,
            request=request,
            subject=subject,
            asked_at=now,
            asked_wall=self.clock.wall(now),
            first_asked_at=now,
        )
        if call is Call.APPEND or call is Call.BARRIER:
            assert shard.append_busy is None, "two appends of one partition"
            shard.append_busy = request.op
        self._effects.append(request)

    def take(self, op: int) -> Pending | None:
        """The op is answered: forget it. None: not ours any more (a doubled answer)."""
        pending = self.pending.pop(op, None)
        if pending is not None and pending.shard.append_busy == op:
            pending.shard.append_busy = None
            self.touched[pending.shard.number] = pending.shard
        return pending

    def retry(self, pending: Pending) -> None:
        """The same step again, after a delay that doubles up to its limit and is spread by ``choose``."""
        config = self.config
        delay = min(config.retry_delay_max_ms, config.retry_delay_ms << min(pending.attempts, 16))
        key = (pending.shard.number, pending.call.value, pending.attempts)
        delay += self._choose("writer.retry", key) % (delay + 1) // 2
        pending.attempts += 1
        heapq.heappush(self._parked, (self.now + delay, self.next_op(), pending))

    def unpark(self) -> None:
        """Ask again what waited long enough; what belongs to an earlier generation is dropped."""
        while self._parked and self._parked[0][0] <= self.now:
            _, _, parked = heapq.heappop(self._parked)
            if parked.generation == parked.shard.generation:
                self._ask_again(parked)

    def _ask_again(self, parked: Pending) -> None:
        op = self.next_op()
        request = msgspec.structs.replace(parked.request, op=op)
        if isinstance(request, OpenShard):
            key = self.opener.fresh_key(request.shard, request.epoch, op)
            request = msgspec.structs.replace(request, fresh_key=key)
        first, attempts, unknown = parked.first_asked_at, parked.attempts, parked.unknown
        self.ask(parked.call, parked.shard, request, parked.subject)
        pending = self.pending[request.op]
        pending.first_asked_at, pending.attempts, pending.unknown = first, attempts, unknown

    def next_retry(self) -> int | None:
        """When ``unpark`` has something to do."""
        return self._parked[0][0] if self._parked else None

    # -------------------------------------------------------------- saying

    def emit(self, effect: WriterEffect) -> None:
        """An order without an answer."""
        self._effects.append(effect)

    def touch(self, shard: Shard) -> None:
        """Its queues are looked at when the step ends."""
        self.touched[shard.number] = shard

    def count(self, name: str, value: int = 1, label: str = "") -> None:
        """Summed over the step: one Count an observation, not one a message."""
        self._counts[name, label] = self._counts.get((name, label), 0) + value

    def stage(self, commit: Commit, stage: str) -> None:
        """A message got somewhere."""
        self._effects.append(
            StageReached(trace_id=commit.trace_id, stage=stage, sent_at=commit.sent_at)
        )

    def violate(self, check: str, detail: str) -> None:
        """A named stop: readyz turns 503 and stays there."""
        self._effects.append(Violation(check=check, detail=detail))

    def fresh_epoch(self, shard: Shard, above: int) -> None:
        """The lease keeper answers LeaseHeld or LeaseGone."""
        self._effects.append(FreshEpochWanted(resource=shard.resource, above=above))

    def answer(self, waiter: Waiter, message: Message, trace_id: int = 0) -> None:
        """Answer; who was answered has left every list of waiters."""
        assert not waiter.answered
        waiter.answered = True
        waiter.commit = None
        traces = (trace_id,) if trace_id else ()
        self._effects.append(Send(address=waiter.address, message=message, traces=traces))

    def refuse(
        self, waiter: Waiter, code: ErrorCode, text: str, retry_after_ms: int = 0, trace_id: int = 0
    ) -> None:
        """Answer with an ErrorCode."""
        self.count("refused", label=code.name)
        owner = self.elsewhere.get(waiter.number, "") if code is ErrorCode.NOT_OWNER else ""
        refused = Refused(
            rid=waiter.rid,
            code=code,
            message=text,
            retry_after_ms=retry_after_ms,
            owner_address=owner,
        )
        self.answer(waiter, refused, trace_id)

    def hold(self, commit: Commit) -> None:
        """Counts against commits_max and commit_bytes_max."""
        self.held_commits += 1
        self.held_bytes += commit.size

    def release(self, commit: Commit) -> None:
        """The commit has left its shard."""
        self.held_commits -= 1
        self.held_bytes -= commit.size

    def deliver(self) -> list[WriterEffect]:
        """Everything ordered in this step."""
        for (name, label), value in self._counts.items():
            self._effects.append(Count(name=name, value=value, label=label))
        self._counts.clear()
        effects, self._effects = self._effects, []
        return effects

    def new_generation(self) -> int:
        """A number no generation of any shard had."""
        self.generation += 1
        return self.generation

    def check(self) -> None:
        """Every op in flight is filed under its own number and no number is ahead of the counter."""
        for op, pending in self.pending.items():
            assert op == pending.request.op <= self._op
