"""What a MailboxNode knows of one MailboxShard: its lanes, and the window of records between min W and the fetch position.

    READING_START --EndsRead--> OPENING --MailboxOpened--> READING_ENDS --EndsRead--> RUNNING
                                   |                            |--needs predecessor--> CHECKING --same record--> RUNNING
                                   |--counter lost--> STOPPED   |--not our log--> STOPPED
    any --StoreReset, Fenced--> AWAITING_EPOCH --LeaseHeld--> READING_START

A record of the window:

    fetched --claimed first here, version known--> ready, with a chunk a lane --> every lane has passed it --> gone
       |--claimed elsewhere, below the floor, undecodable--> ready, without rows
"""

from collections import deque
from enum import IntEnum

from msgspec import Struct

from qim.core.contract.entities import GroupDispatch
from qim.core.contract.sequences import mailbox_seq, split_mailbox_seq
from qim.core.mailbox.lanes import LanePlan, Lanes
from qim.core.mailbox.vocabulary import ShardRequest
from qim.core.ports.log import Position, StoredRecord
from qim.core.ports.store_mailbox import MailboxRow, Progress


class Stage(IntEnum):
    """Where a shard is on its way to running."""

    READING_START = 1
    OPENING = 2
    READING_ENDS = 3
    CHECKING = 4
    RUNNING = 5
    AWAITING_EPOCH = 6
    STOPPED = 7


class WindowRecord(Struct):
    """One dispatch-log record. ``dispatch`` None: undecodable. ``chunks``: rows by lane, in the order of users."""

    seq: int
    stored: StoredRecord
    day: int
    dispatch: GroupDispatch | None
    digest: bytes = b""
    duplicate: bool = False
    chunks: dict[int, tuple[MailboxRow, ...]] = {}
    counts: dict[int, int] = {}
    entry_count: int = 0


class Shard:
    """One MailboxShard under one epoch. A fresh epoch, StoreReset or LeaseGone makes it an object of the past."""

    __slots__ = (
        "attempts",
        "before",
        "bytes",
        "day",
        "days",
        "end_offset",
        "epoch",
        "finishing",
        "floors",
        "halted",
        "incarnation",
        "lanes",
        "live",
        "new_days",
        "newest_append_time",
        "next_offset",
        "number",
        "passed",
        "plan",
        "position",
        "ready",
        "requests",
        "shard_epoch",
        "stage",
        "topic_id",
        "trim",
        "unclaimed",
        "unready",
        "unsettled",
        "window",
    )

    def __init__(self, number: int, epoch: int) -> None:
        self.number = number
        self.epoch = epoch
        self.stage = Stage.READING_START
        self.live = True
        self.incarnation = b""
        self.topic_id = b""
        self.position: Position | None = None
        self.shard_epoch = 0
        self.lanes = Lanes(0)
        self.trim = 0
        self.floors: dict[int, int] = {}
        """floor[source partition] as the store holds it."""
        self.passed: dict[int, int] = {}
        """Greatest f of a dispatch that every lane has passed, where that is above the floor."""
        self.days: list[tuple[int, int]] = []
        """Stored day ranges: (day, first offset)."""
        self.new_days: list[tuple[int, int]] = []
        """Day ranges that began in the window and aren't stored yet."""
        self.day = 0
        """day(o - 1) of the next record to be fetched."""
        self.next_offset = 0
        self.before = b""
        """The digest of the record before ``next_offset``: each fetch has the log compare it."""
        self.end_offset = 0
        self.newest_append_time = 0
        self.window: deque[WindowRecord] = deque()
        self.unclaimed: deque[WindowRecord] = deque()
        self.unready: deque[WindowRecord] = deque()
        self.ready = 0
        """seq up to which every record is ready to be written."""
        self.bytes = 0
        self.halted = False
        """A record of a newer format stands at next_offset: only newer code may go on."""
        self.plan: LanePlan | None = None
        self.requests: dict[int, ShardRequest] = {}
        """What is in flight or waits to be repeated, one of each kind."""
        self.unsettled: dict[int, bool] = {}
        """Kinds of which an attempt was Unknown: only the same request settles them."""
        self.attempts: dict[int, int] = {}
        self.finishing: deque[Progress] = deque()

    def running(self) -> bool:
        """Open: the position is trusted and pulls are served."""
        return self.stage is Stage.RUNNING

    def seq_of(self, offset: int) -> int:
        """The mailbox_seq of a dispatch offset."""
        return mailbox_seq(self.shard_epoch, offset)

    def end_seq(self) -> int:
        """The last record of the log as far as we know; the predecessor of the first where there is none."""
        return self.seq_of(self.end_offset) - 1

    def watermark(self, lane: int) -> int:
        """W of a lane."""
        return self.lanes.watermark(lane)

    def watermark_age(self, wall: int) -> int:
        """Ms since the log took the first record that min W hasn't passed; 0 where it has passed all that we know of."""
        if not self.window:
            return 0
        return max(0, wall - self.window[0].stored.append_time)

    def retire(self) -> None:
        """Nothing that is still in flight for this object may change anything any more."""
        self.live = False
        for part in (self.window, self.unclaimed, self.unready):
            part.clear()
        self.finishing.clear()
        self.requests.clear()
        self.plan = None
        self.bytes = 0

    def check(self) -> None:
        """The window is dense from min W + 1 to the fetch position and ordered by stage; floors never fall."""
        self.lanes.check()
        if not self.running():
            return
        minimum = self.lanes.minimum()
        for index, record in enumerate(self.window):
            assert record.seq == minimum + 1 + index, "the window has a hole"
        assert (minimum + 1 + len(self.window)) == self.seq_of(self.next_offset)
        behind = len(self.unclaimed) + len(self.unready)
        assert self.ready <= minimum + len(self.window) and behind <= len(self.window)
        assert self.bytes == sum([len(record.stored.value) for record in self.window])
        assert self.trim <= minimum, "trim passed a lane"
        end = self.end_seq()
        for lane in self.lanes.own:
            assert self.lanes.watermark(lane) <= end, "a watermark passed the log"
        assert split_mailbox_seq(minimum + 1)[0] == self.shard_epoch
