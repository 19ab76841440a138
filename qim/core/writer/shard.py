"""One writer shard as plain data: its stage, its queues, and the table of legal moves between stages.

CLOSED --> OPENING      LeaseHeld: OPEN (opening.py) walks its steps under this epoch
OPENING --> SERVING     pending index finished under the new epoch
OPENING --> REFRESHING  a higher epoch seen, StoreReset, Fenced, Unknown of the barrier: a fresh epoch is ordered
SERVING --> REFRESHING  StoreReset, Fenced, MarkLost, Unknown of an append
REFRESHING --> OPENING  LeaseHeld with the fresh epoch
OPENING --> STOPPED     the log has not what must be applied: a Violation names the missing range
SERVING --> STOPPED     a membership control record refused by the log; records it had confirmed are gone
any --> CLOSED          LeaseGone

A shard decides nothing by itself: opening.py, pipeline.py and history.py move it.
"""

from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from qim.core.effective import EffectiveFilter
from qim.core.ports.archive import ArchivedConversation
from qim.core.ports.log import StoredRecord
from qim.core.ports.registry import Resource, Role
from qim.core.writer.commit import Commit
from qim.core.writer.query import Query


class ShardStage(Enum):
    """Where a shard stands."""

    CLOSED = "closed"
    OPENING = "opening"
    SERVING = "serving"
    REFRESHING = "refreshing"
    STOPPED = "stopped"


CLOSED: Final = ShardStage.CLOSED
OPENING: Final = ShardStage.OPENING
SERVING: Final = ShardStage.SERVING
REFRESHING: Final = ShardStage.REFRESHING
STOPPED: Final = ShardStage.STOPPED

TRANSITIONS: Final[dict[ShardStage, tuple[ShardStage, ...]]] = {
    CLOSED: (OPENING, CLOSED),
    OPENING: (OPENING, SERVING, REFRESHING, STOPPED, CLOSED),
    SERVING: (OPENING, REFRESHING, STOPPED, CLOSED),
    REFRESHING: (OPENING, CLOSED),
    STOPPED: (OPENING, CLOSED),
}


class Walk:
    """OPEN's own memory, made anew for each attempt: how far [applied, barrier) has come and what it waits for."""

    __slots__ = (
        "applied",
        "archived",
        "barrier",
        "barrier_due",
        "barrier_time",
        "before",
        "fetched",
        "filter",
        "finished",
        "log_start",
        "page_due",
        "pending_after",
        "records",
        "restore_after",
        "restore_more",
        "restoring",
        "whole",
    )

    def __init__(self) -> None:
        self.applied = 0
        self.fetched = 0
        self.before = b""
        """The digest of the record before ``fetched`` (before ``applied`` until the walk begins); empty: not known."""
        self.barrier = -1
        self.barrier_time = 0
        """When the log took it, by the log's own clock: ms."""
        self.whole = False
        """The store was told that all before the barrier is in it."""
        self.filter = EffectiveFilter(0)
        self.records: deque[StoredRecord] = deque()
        self.barrier_due = False
        self.finished = False
        self.page_due = False
        self.pending_after = b""
        # §1.8: what the archive keeps is put back up to the log's start.
        self.log_start = 0
        self.archived = 0
        """How far the archive says to be, where the store knows nothing of this log."""
        self.restoring: deque[ArchivedConversation] = deque()
        self.restore_after = b""
        self.restore_more = True


class Shard:
    """State of one writer shard = one outbox partition = one lease."""

    __slots__ = (
        "append_busy",
        "append_inflight",
        "append_queue",
        "append_single",
        "asking",
        "commits",
        "confirmed",
        "controls",
        "epoch",
        "generation",
        "heads",
        "heads_busy",
        "hot_trim_at",
        "incarnation",
        "inspected",
        "loads",
        "lookup_inflight",
        "lookup_queue",
        "mark_inflight",
        "mark_queue",
        "moderating",
        "number",
        "queries",
        "ready",
        "refusing",
        "reserve_inflight",
        "resource",
        "stage",
        "unasked",
        "walk",
    )

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.resource: Final = Resource(role=Role.WRITER, number=number)
        self.stage = CLOSED
        self.epoch = 0
        self.incarnation = b""
        # Answers to ops of an earlier generation mean nothing any more (pipeline.md §0, Incarnation).
        self.generation = 0
        # The op of the one Append or barrier the log still owes us an answer for; it outlives generations.
        self.append_busy: int | None = None
        # Behind the last record of ours that the log confirmed: nobody else's lands below it while the lease is ours.
        self.confirmed = 0
        self.commits: dict[bytes, Commit] = {}
        self.ready: deque[Commit] = deque()
        self.loads: dict[bytes, list[Commit]] = {}
        self.lookup_queue: deque[Commit] = deque()
        self.queries: dict[int, Query] = {}
        # Overlays whose target is being read, by query number.
        self.inspected: dict[int, Commit] = {}
        self._forget()

    def _forget(self) -> None:
        self.walk = Walk()
        self.lookup_inflight: tuple[Commit, ...] = ()
        self.reserve_inflight: tuple[Commit, ...] = ()
        self.append_queue: deque[Commit] = deque()
        self.append_inflight: tuple[Commit, ...] = ()
        self.append_single = False
        self.refusing: Commit | None = None
        self.mark_queue: deque[Commit] = deque()
        self.mark_inflight: tuple[Commit, ...] = ()
        # Messages the outside must judge, by conversation in the order they came; those not asked about yet; asks in flight.
        self.moderating: dict[bytes, deque[Commit]] = {}
        self.unasked: deque[Commit] = deque()
        self.asking = 0
        # Versions recorded and not yet COMMITTED, each with the requests that change nothing at it and wait for it.
        self.controls: dict[tuple[bytes, int], list[Commit]] = {}
        self.heads: dict[bytes, tuple[bytes, int, bytes, bytes]] = {}
        self.heads_busy = False
        # When to look for hot rows to trim; None: not serving, or one look is under way.
        self.hot_trim_at: int | None = None

    def move(self, stage: ShardStage) -> None:
        """Take a legal step of the table."""
        assert stage in TRANSITIONS[self.stage], (self.number, self.stage, stage)
        self.stage = stage

    def walk_commits(self) -> Iterator[Commit]:
        """Every commit in the shard, the farthest first: the order in which requests go round again."""
        yield from self.mark_inflight
        yield from self.mark_queue
        yield from self.append_inflight
        if self.refusing is not None:
            yield self.refusing
        yield from self.append_queue
        yield from self.reserve_inflight
        yield from self.lookup_inflight
        yield from self.lookup_queue
        yield from self.inspected.values()
        for waiting in self.loads.values():
            yield from waiting
        for noops in self.controls.values():
            yield from noops
        for judged in self.moderating.values():
            yield from judged
        yield from self.ready

    def reset(self, generation: int) -> None:
        """Forget everything that came from the store; the requests themselves go back to the start of the way.

        A request is then looked up and reserved like a client's own retry: OPEN has settled by then what became of
        its first reservation, and the dedupe entry says so.
        """
        again = [commit for commit in self.walk_commits() if not commit.resumed]
        for commit in again:
            commit.thaw()
        self.ready = deque(again)
        self.loads = {}
        self.inspected = {}
        self.lookup_queue = deque()
        self._forget()
        self.incarnation = b""
        self.generation = generation

    def drained(self) -> bool:
        """No append and no mark is under way or waiting."""
        return not (
            self.append_queue
            or self.append_inflight
            or self.refusing is not None
            or self.mark_queue
            or self.mark_inflight
        )

    def check(self) -> None:
        """Each request is in exactly one place, and the pipeline's order is the order of reservation."""
        if self._holds_commits():
            self._check_commits()
        if self.stage is not SERVING:
            assert not (self.reserve_inflight or self.lookup_inflight or self.loads), self.stage
            assert not self.inspected, self.stage
            assert not (self.moderating or self.unasked or self.asking), self.stage
            assert self.hot_trim_at is None, self.stage
        if self.stage not in (OPENING, SERVING):
            assert self.drained(), self.stage

    def _holds_commits(self) -> bool:
        """Whether a commit may be anywhere here: a quiet shard is asked this at the end of every step."""
        return bool(
            self.commits
            or self.mark_inflight
            or self.mark_queue
            or self.append_inflight
            or self.refusing is not None
            or self.append_queue
            or self.reserve_inflight
            or self.lookup_inflight
            or self.lookup_queue
            or self.inspected
            or self.loads
            or self.controls
            or self.moderating
            or self.ready
        )

    def _check_commits(self) -> None:
        here = 0
        for commit in self.walk_commits():
            if not commit.resumed:
                here += 1
                assert self.commits.get(commit.key) is commit
        assert here == len(self.commits), (self.number, here, len(self.commits))
        for commit in (*self.append_inflight, *self.append_queue):
            assert commit.message_id
            assert commit.conversation_seq > 0
        marked = [commit.offset for commit in (*self.mark_inflight, *self.mark_queue)]
        assert marked == sorted(marked)
        assert not marked or marked[0] >= 0
        self._check_order()

    def _check_order(self) -> None:
        last: dict[bytes, int] = {}
        unmarked = (
            *self.mark_inflight,
            *self.mark_queue,
            *self.append_inflight,
            *self.append_queue,
        )
        for commit in unmarked:
            before = last.get(commit.conversation_id, 0)
            assert commit.conversation_seq > before, "append order is seq order"
            last[commit.conversation_id] = commit.conversation_seq
