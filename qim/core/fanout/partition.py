"""What a FanoutCoordinator knows of one source partition: its position, its window of records, how far each has come.

OPENING --SourceOpened--> READING_ENDS --EndsRead--> RUNNING
                              |--needs predecessor--> CHECKING --same record--> RUNNING
                              |--no checkpoint--> READING_BARRIER --LeaseRead--> RUNNING
READING_ENDS, CHECKING, RUNNING --not our log, refused--> STOPPED
any --StoreReset, Fenced--> AWAITING_EPOCH --LeaseHeld--> OPENING
"""

from collections import deque
from enum import IntEnum

from msgspec import Struct

from qim.core.audience import VersionKey
from qim.core.contract.entities import ReceiptShard
from qim.core.contract.logvalue import Outboxed
from qim.core.effective import EffectiveFilter
from qim.core.machine import Ms
from qim.core.ports.log import LogRecord, Position, StoredRecord
from qim.core.ports.store_source import CommitSource


class Stage(IntEnum):
    """Where a partition is on its way to running."""

    OPENING = 1
    READING_ENDS = 2
    CHECKING = 3
    READING_BARRIER = 4
    RUNNING = 5
    AWAITING_EPOCH = 6
    STOPPED = 7


class SourceItem(Struct):
    """One outbox record in the window. ``outboxed`` None: a barrier, an ineffective record or a dead letter."""

    stored: StoredRecord
    filter_epoch: int
    outboxed: Outboxed | None
    dead_letter: bool = False
    named: VersionKey | None = None
    places: list[ReceiptShard | None] | None = None
    missing: int = 0


class Outgoing(Struct):
    """A dispatch on its way to a shard's log; ``place`` is its index in the item's receipt."""

    partition: "Partition"
    item: SourceItem
    place: int
    shard: int
    digest: bytes
    record: LogRecord
    trace_id: int


class Partition:
    """One source partition under one epoch. A fresh epoch, StoreReset or LeaseGone makes it an object of the past."""

    __slots__ = (
        "attempts",
        "before",
        "checkpoint",
        "commit",
        "durable",
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
        "sent",
        "stage",
        "start",
        "start_heard",
        "start_heard_at",
        "topic_id",
        "undispatched",
        "window_bytes",
    )

    def __init__(self, number: int, epoch: int) -> None:
        self.number = number
        self.epoch = epoch
        self.stage = Stage.OPENING
        self.live = True
        self.incarnation = b""
        self.position: Position | None = None
        self.topic_id = b""
        self.filter = EffectiveFilter(0)
        self.next_offset = 0
        self.before = b""
        """The digest of the record before ``next_offset``: each fetch has the log compare it."""
        self.checkpoint = -1
        """What the store holds; -1: no checkpoint was ever stored."""
        self.durable = 0
        """f: every dispatch of a source record below it is durable."""
        self.start = 0
        """The log began here a good while ago: receipts below it are nobody's evidence any more."""
        self.start_heard = 0
        self.start_heard_at: Ms = 0
        self.end = 0
        """The log's end, as far as it is known."""
        self.undispatched: deque[SourceItem] = deque()
        self.sent: deque[SourceItem] = deque()
        self.window_bytes = 0
        self.fetching = False
        self.commit: CommitSource | None = None
        self.halted = False
        """A record of a newer format stands at next_offset: only newer code may go on."""
        self.attempts: dict[int, int] = {}
        """Failures in a row of each kind of op."""

    def heard_start(self, now: Ms, start: int, grace_ms: Ms) -> None:
        """Retention moved on. An audit that began before may still judge what stood below: it gets its receipts to see."""
        if self.start_heard > self.start and now - self.start_heard_at >= grace_ms:
            self.start = self.start_heard
        if self.start_heard == self.start and start > self.start:
            self.start_heard, self.start_heard_at = start, now

    def window_records(self) -> int:
        """Records between checkpoint and fetch position."""
        return len(self.undispatched) + len(self.sent)

    def retire(self) -> None:
        """Nothing that is still in flight for this object may change anything any more."""
        self.live = False
        self.undispatched.clear()
        self.sent.clear()
        self.window_bytes = 0
        self.commit = None

    def committable(self, records_max: int) -> list[SourceItem]:
        """The longest prefix of which every dispatch is durable."""
        prefix: list[SourceItem] = []
        for item in self.sent:
            if item.missing or len(prefix) == records_max:
                break
            prefix.append(item)
        return prefix

    def check(self) -> None:
        """Offsets are dense from the checkpoint to the fetch position, and the bytes are counted."""
        expected = self.next_offset - self.window_records()
        for item in (*self.sent, *self.undispatched):
            assert item.stored.offset == expected, "the window has a hole"
            assert item.missing == 0 or item.places is not None
            expected += 1
        assert self.checkpoint <= self.next_offset
        size = 0
        for item in (*self.sent, *self.undispatched):
            size += len(item.stored.value)
        assert self.window_bytes == size
