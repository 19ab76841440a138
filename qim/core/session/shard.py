"""What SessionProjection knows of one session shard: two feeds, and the user-state records on their way into one of them.

    OPENING --SessionOpened--> JUDGING --both feeds trusted--> RUNNING
                                  |--not our log--> STOPPED
    any --StoreReset, Fenced--> AWAITING_EPOCH --LeaseHeld--> OPENING

A feed (dispatch, user state) by itself:

    READING_ENDS --EndsRead--> TRUSTED
          |--needs predecessor--> CHECKING --same record, or compaction took it--> TRUSTED
"""

from collections import deque
from enum import IntEnum

from msgspec import Struct

from qim.core.contract.entities import GroupDispatch
from qim.core.contract.sequences import FIRST_SHARD_EPOCH
from qim.core.contract.statelog import UserStateRecord
from qim.core.ports.log import Position, StoredRecord, Topic
from qim.core.session.question import Question
from qim.core.session.vocabulary import ShardRequest


class Stage(IntEnum):
    """Where a shard is on its way to running."""

    OPENING = 1
    JUDGING = 2
    RUNNING = 3
    AWAITING_EPOCH = 4
    STOPPED = 5


class FeedStage(IntEnum):
    """Where a feed's position is on its way to being trusted."""

    READING_ENDS = 1
    CHECKING = 2
    TRUSTED = 3


class WindowRecord(Struct):
    """A fetched record. ``content`` None: undecodable, or a record this version knows to mean nothing; it is passed.

    ``lost``: a state that loses against the one that stands, whose winner is appended again before it is passed.
    """

    stored: StoredRecord
    content: GroupDispatch | UserStateRecord | None
    lost: bool = False


class Feed:
    """One log partition as a shard follows it: a position that stands, and the window behind it."""

    __slots__ = (
        "before",
        "began",
        "bytes",
        "end_offset",
        "halted",
        "next_offset",
        "position",
        "stage",
        "topic",
        "topic_id",
        "window",
    )

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.stage = FeedStage.READING_ENDS
        self.topic_id = b""
        self.position: Position | None = None
        self.began = 0
        """Where the position stood when it was opened: the log's start, where the store had none."""
        self.next_offset = 0
        self.before = b""
        """The digest of the record before ``next_offset``: each fetch has the log compare it."""
        self.end_offset = 0
        self.window: deque[WindowRecord] = deque()
        self.bytes = 0
        self.halted = False
        """A record of a newer format stands at next_offset: only newer code may go on."""

    def stands_at(self) -> int:
        """The offset below which everything is in the store."""
        return self.position.offset if self.position is not None else 0

    def lag(self) -> int:
        """Records of the log, as far as it is known, that are not in the store."""
        return max(0, self.end_offset - self.stands_at())

    def take(self, record: WindowRecord) -> None:
        """One more record at the end of the window; compaction leaves holes between offsets."""
        assert record.stored.offset >= self.next_offset
        self.next_offset = record.stored.offset + 1
        self.bytes += len(record.stored.value)
        self.window.append(record)

    def passed(self, to: Position) -> None:
        """The position stands at ``to``."""
        self.position = to
        while self.window and self.window[0].stored.offset < to.offset:
            self.bytes -= len(self.window.popleft().stored.value)

    def clear(self) -> None:
        """Nothing in the window counts any more."""
        self.window.clear()
        self.bytes = 0

    def check(self) -> None:
        """The window begins at the position, rises, and its books balance."""
        if not self.window:
            assert not self.bytes
            return
        offsets = [record.stored.offset for record in self.window]
        assert offsets == sorted(offsets)
        assert self.stands_at() <= offsets[0] <= offsets[-1] < self.next_offset
        assert self.bytes == sum([len(record.stored.value) for record in self.window])


class Submission(Struct, frozen=True):
    """A user-state record to append, for the asker who waits for it; None: a winner that goes in again."""

    record: UserStateRecord
    question: Question | None


class Shard:
    """One session shard under one epoch. A fresh epoch, StoreReset or LeaseGone makes it an object of the past."""

    __slots__ = (
        "append_floor",
        "attempts",
        "batch",
        "dispatch",
        "epoch",
        "incarnation",
        "live",
        "number",
        "queue",
        "requests",
        "revisions",
        "rows_done",
        "shard_epoch",
        "stage",
        "state",
        "waiting",
        "winners",
    )

    def __init__(self, number: int, epoch: int) -> None:
        self.number = number
        self.epoch = epoch
        self.stage = Stage.OPENING
        self.live = True
        self.incarnation = b""
        self.dispatch = Feed(Topic.DISPATCH)
        self.state = Feed(Topic.USER_STATE)
        self.requests: dict[int, ShardRequest] = {}
        """What is in flight or waits to be repeated, one of each kind."""
        self.attempts: dict[int, int] = {}
        self.rows_done = 0
        """Rows of the first dispatch of the window that are stored already: it has more than one call takes."""
        self.queue: deque[Submission] = deque()
        self.batch: tuple[Submission, ...] = ()
        """In flight, or to be sent again before the queue: an Unknown append is repeated, its copies are harmless."""
        self.append_floor = 0
        """What was read of the user-state log when the batch was sent: it can't land below."""
        self.winners = 0
        """Winners not yet durable: nothing is applied until there are none."""
        self.waiting: deque[tuple[int, Question]] = deque()
        """Durable and not yet applied, by rising offset."""
        self.shard_epoch = FIRST_SHARD_EPOCH
        """Of the mailbox shard: in it is told how far lists go."""
        self.revisions = 0
        """Snapshots frozen under this epoch."""

    def running(self) -> bool:
        """Open: both positions are trusted, questions are answered."""
        return self.stage is Stage.RUNNING

    def feeds(self) -> tuple[Feed, Feed]:
        """Dispatch, user state."""
        return self.dispatch, self.state

    def retire(self) -> None:
        """Nothing that is still in flight for this object may change anything any more."""
        self.live = False
        for feed in self.feeds():
            feed.clear()
        self.requests.clear()
        self.queue.clear()
        self.batch = ()
        self.winners = 0
        self.waiting.clear()

    def check(self) -> None:
        """Feeds keep their books, answers are owed in the order of the log, each winner is on its way."""
        if not self.running():
            return
        for feed in self.feeds():
            feed.check()
        stands_at = self.state.stands_at()
        for offset, _ in self.waiting:
            assert offset >= stands_at
        on_way = [s for s in (*self.batch, *self.queue) if s.question is None]
        assert self.winners == len(on_way), "a winner is nowhere"
