"""Walking what one user sees of one conversation, across the seam between hot store and archive (pipeline.md §5).

newest first: hot rows down to the floor F --> the archive below the F of that same script --> the next older interval
oldest first: a hot read tells F --> the archive up to it --> hot again; where F moved meanwhile, the archive again

Everything below F is in the archive before F moves, so neither order leaves a hole. A row is shown iff it is committed
(the store leaves pending ones out), inside an interval (joined_at < seq <= left_at), retained, and no other user's
delete-for-me record. Pure: it says what to read next and takes what was read.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from qim.core.contract.entities import MessageKind, MessageRecord, decode_stored_record
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.store_reads import HistoryItem, HistoryPage
from qim.core.retention import RetentionPolicy, retained_until

ROW_SEQ_BYTES: Final = 8


class Row(Struct, kw_only=True, eq=False):
    """A visible record and the overlays on it; ``deleted`` is the scanning user's own delete-for-me."""

    seq: int
    stored: bytes
    record: MessageRecord
    recalled: bool
    deleted: bool


class Sink(Protocol):
    """Who a scan is for."""

    def wish(self) -> int:
        """How many more rows would do, at least 1."""
        ...

    def offer(self, row: Row) -> bool:
        """The next visible row in the scan's order. False: no more are wanted."""
        ...


class ArchiveAsk(Struct, frozen=True, kw_only=True, gc=False):
    """What to read of the archive: low < seq < high."""

    low: int
    high: int
    newest_first: bool
    limit: int


class Judgement(Struct, frozen=True, kw_only=True):
    """Whose eyes and which clock decide what is shown."""

    user_id: int
    wall: int
    retention: RetentionPolicy

    def shows(self, record: MessageRecord) -> bool:
        """Retained still, and not another user's own business."""
        if record.kind == MessageKind.DELETE_FOR_ME and record.sender_id != self.user_id:
            return False
        until = retained_until(
            self.retention, record.tenant_id, record.retention_class, record.sent_at
        )
        return self.wall < until


class Scan:
    """One direction over one conversation; ``ranges`` are exclusive (low, high), the nearest first."""

    def __init__(
        self,
        conversation_id: bytes,
        judgement: Judgement,
        sink: Sink,
        *,
        newest_first: bool,
        ranges: Iterable[tuple[int, int]],
        tiered: bool,
        rows_max: int,
    ) -> None:
        self.conversation_id: Final = conversation_id
        self.sink: Final = sink
        self.newest_first: Final = newest_first
        self.busy = False
        self._judgement: Final = judgement
        self._tiered: Final = tiered
        self._rows_max: Final = rows_max
        self._ranges: deque[tuple[int, int]] = deque(ranges)
        # The archive's share of the first range, while it is being read.
        self._cold: tuple[int, int] | None = None
        self._unjudged: tuple[bytes, ...] = ()
        self._cold_more = False
        self._floor = 0

    def done(self) -> bool:
        """Nothing more to read, or nothing more wanted."""
        return not self._ranges

    def stop(self) -> None:
        """Nothing of it may be shown."""
        self._ranges.clear()

    def take_first(self, page: HistoryPage) -> None:
        """The answer to a first ask for everything, made before the user's intervals were known."""
        assert self.newest_first
        self._ranges = deque(ranges_of(page.intervals, *EVERYTHING, newest_first=True))
        if not self._ranges or self._ranges[0][1] != EVERYTHING[1]:
            return
        # Still a member: the newest rows are the user's, down to where the last interval began.
        joined_at = self._ranges[0][0]
        own = tuple([row for row in page.stored if _seq_of(row) > joined_at])
        more = page.more and len(own) == len(page.stored)
        self.take_hot(msgspec.structs.replace(page, stored=own, more=more))

    # -------------------------------------------------------------- what to read

    def cold(self) -> ArchiveAsk | None:
        """The archive is next; None: the hot store is."""
        if self._unjudged or not self._ranges:
            return None
        if self._cold is None:
            low, high = self._ranges[0]
            if not (self._tiered and self.newest_first and high <= self._floor):
                return None
            # Below a floor that only rises there is nothing hot.
            self._cold = (low, high)
        low, high = self._cold
        limit = min(self.sink.wish(), self._rows_max)
        return ArchiveAsk(low=low, high=high, newest_first=self.newest_first, limit=limit)

    def hot(self) -> HistoryItem:
        """What to ask the hot store: rows of the first range, or the overlays of rows the archive gave."""
        low, high = self._ranges[0]
        judged = tuple([_seq_of(row) for row in self._unjudged])
        return HistoryItem(
            conversation_id=self.conversation_id,
            low=0 if judged else low,
            high=0 if judged else high,
            newest_first=self.newest_first,
            limit=0 if judged else min(self.sink.wish(), self._rows_max),
            user_id=self._judgement.user_id,
            judged=judged,
        )

    # -------------------------------------------------------------- what was read

    def take_archive(self, stored: tuple[bytes, ...], more: bool) -> None:
        """Rows of the archive; they are shown once their overlays are known."""
        assert stored or not more, "the archive says there are more and gives none"
        if stored:
            self._unjudged, self._cold_more = stored, more
        else:
            self._end_cold()

    def take_hot(self, page: HistoryPage) -> None:
        """The hot store's answer to ``hot``."""
        if self._unjudged:
            self._take_judged(page)
            return
        low, high = self._ranges[0]
        self._floor = max(self._floor, page.floor)
        # [low + 1, top) of this range lies below the floor and is the archive's.
        top = min(high, page.floor)
        below = self._tiered and low + 1 < top
        if below and not self.newest_first:
            self._cold = (low, top)
            return
        if not self._offer(page.stored, page):
            return
        if page.more:
            if page.stored:
                self._move_on(_seq_of(page.stored[-1]))
        elif below:
            self._cold = (low, top)
        else:
            self._ranges.popleft()

    def _take_judged(self, page: HistoryPage) -> None:
        rows, self._unjudged = self._unjudged, ()
        assert self._cold is not None
        if not self._offer(rows, page):
            return
        if self._cold_more:
            low, high = self._cold
            last = _seq_of(rows[-1])
            self._cold = (low, last) if self.newest_first else (last, high)
        else:
            self._end_cold()

    def _end_cold(self) -> None:
        assert self._cold is not None
        _, top = self._cold
        self._cold = None
        _, high = self._ranges[0]
        if self.newest_first or top >= high:
            self._ranges.popleft()
        else:
            # Up to the floor all is read; the hot store is asked again and says whether F has moved since.
            self._ranges[0] = (top - 1, high)

    def _move_on(self, last: int) -> None:
        low, high = self._ranges[0]
        self._ranges[0] = (low, last) if self.newest_first else (last, high)

    def _offer(self, stored: tuple[bytes, ...], page: HistoryPage) -> bool:
        """False: the sink has enough and the scan is over."""
        low, high = self._ranges[0]
        recalled, deleted = frozenset(page.recalled), frozenset(page.deleted)
        for row in stored:
            seq = _seq_of(row)
            assert low < seq < high, "stores answer inside the asked range"
            record = decode_stored_record(row)
            if not self._judgement.shows(record):
                continue
            offered = Row(
                seq=seq,
                stored=row,
                record=record,
                recalled=seq in recalled,
                deleted=seq in deleted,
            )
            if not self.sink.offer(offered):
                self._ranges.clear()
                self._cold = None
                return False
        return True


def _seq_of(stored: bytes) -> int:
    return int.from_bytes(stored[:ROW_SEQ_BYTES], "big")


def ranges_of(
    intervals: Iterable[tuple[int, int]], low: int, high: int, *, newest_first: bool
) -> list[tuple[int, int]]:
    """Exclusive ranges of what lies both in an interval (joined_at < seq <= left_at) and in low < seq < high."""
    ranges: list[tuple[int, int]] = []
    for joined_at, left_at in sorted(intervals):
        lower, upper = max(low, joined_at), min(high, left_at + 1)
        if lower + 1 < upper:
            ranges.append((lower, upper))
    if newest_first:
        ranges.reverse()
    return ranges


EVERYTHING: Final = (0, U64_MAX + 1)
"""The range of every seq there can be."""
