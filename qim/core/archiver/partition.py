"""What a HistoryArchiver knows of one source partition: its position and the records between fetch and confirmation.

OPENING --ArchiveOpened--> ASKING --the archive's position--> READING_ENDS --EndsRead--> RUNNING
READING_ENDS --needs predecessor--> CHECKING --same record--> RUNNING
READING_ENDS, CHECKING --no filter stored for the start--> READING_BARRIER --LeaseRead--> RUNNING
READING_ENDS, CHECKING, RUNNING --not our log, a hole--> STOPPED
any --StoreReset, Fenced--> AWAITING_EPOCH --LeaseHeld--> OPENING
"""

from collections import deque
from enum import IntEnum

from msgspec import Struct

from qim.core.effective import EffectiveFilter
from qim.core.ports.archive import ArchiveRow
from qim.core.ports.log import Position, StoredRecord
from qim.core.ports.store_history import CommitArchive


class Stage(IntEnum):
    """Where a partition is on its way to running."""

    OPENING = 1
    ASKING = 2
    READING_ENDS = 3
    CHECKING = 4
    READING_BARRIER = 5
    RUNNING = 6
    AWAITING_EPOCH = 7
    STOPPED = 8


class Item(Struct, gc=False):
    """One outbox record; ``row`` None: a barrier, an ineffective record or one no version can decode."""

    stored: StoredRecord
    filter_epoch: int
    row: ArchiveRow | None
    trace_id: int
    sent_at: int = 0


class Partition:
    """One source partition under one epoch. A fresh epoch, StoreReset or LeaseGone makes it an object of the past."""

    __slots__ = (
        "archived",
        "attempts",
        "batch",
        "before",
        "checkpoint",
        "commit",
        "confirmed",
        "end",
        "epoch",
        "fetching",
        "filter",
        "halted",
        "incarnation",
        "live",
        "next_offset",
        "number",
        "position",
        "stage",
        "topic_id",
        "window",
        "window_bytes",
        "writing",
    )

    def __init__(self, number: int, epoch: int) -> None:
        self.number = number
        self.epoch = epoch
        self.stage = Stage.OPENING
        self.live = True
        self.incarnation = b""
        self.position: Position | None = None
        self.archived = 0
        """The archive's own position as it stood at the opening."""
        self.topic_id = b""
        self.filter = EffectiveFilter(0)
        self.next_offset = 0
        self.before = b""
        """The digest of the record before ``next_offset``: each fetch has the log compare it."""
        self.end = 0
        """The log's end as last heard."""
        self.checkpoint = 0
        """The archive watermark: what the hot store holds as our position."""
        self.window: deque[Item] = deque()
        self.window_bytes = 0
        self.batch: list[Item] = []
        """In the archive's hands, or to be sent again."""
        self.writing = False
        self.confirmed: Item | None = None
        """The newest record of which everything up to it is archived and not yet committed."""
        self.fetching = False
        self.commit: CommitArchive | None = None
        self.halted = False
        """A record of a newer format stands at next_offset: only newer code may go on."""
        self.attempts: dict[int, int] = {}
        """Failures in a row of each kind of op."""

    def window_records(self) -> int:
        """Records fetched and not yet confirmed."""
        return len(self.window) + len(self.batch)

    def busy(self) -> bool:
        """Something is on its way into the archive or into the position."""
        return bool(self.window or self.batch or self.confirmed or self.commit)

    def retire(self) -> None:
        """Nothing that is still in flight for this object may change anything any more."""
        self.live = False
        self.window.clear()
        self.window_bytes = 0
        self.batch = []
        self.confirmed = None
        self.commit = None

    def check(self) -> None:
        """Offsets are dense up to the fetch position, the bytes are counted, the position never runs ahead."""
        expected = self.next_offset - self.window_records()
        if self.confirmed is not None:
            assert self.confirmed.stored.offset + 1 == expected, "confirmed and unconfirmed overlap"
        for item in (*self.batch, *self.window):
            assert item.stored.offset == expected, "the window has a hole"
            expected += 1
        assert self.batch or not self.writing
        size = sum([len(item.stored.value) for item in (*self.batch, *self.window)])
        assert self.window_bytes == size
        if self.commit is not None:
            assert self.commit.to.offset <= self.next_offset - self.window_records()
