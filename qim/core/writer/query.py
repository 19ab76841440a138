"""A read on its way, and what it gathers: history pages, list summaries, the row an overlay is to lie on (pipeline.md §§4, 5).

Each gatherer is the sink of scans (scan.py), which show it visible rows only. Pure data; nothing is read here.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from qim.core.contract.entities import EMPTY_ID, ConversationKind
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.rpc import AskHistory, AskMembers
from qim.core.contract.rpc_session import AskSummaries, Summary
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.store_reads import HistoryPage
from qim.core.retention import FOREVER_MS, RetentionPolicy, retained_until
from qim.core.writer.commit import Waiter
from qim.core.writer.overlays import COUNTED, OVERLAYS, Target
from qim.core.writer.scan import Row, Scan, ranges_of

OLDER: Final = HistoryDirection.OLDER
NEWER: Final = HistoryDirection.NEWER
AROUND: Final = HistoryDirection.AROUND
DIRECTIONS: Final = tuple(HistoryDirection)
"""The numbers of PULL_HISTORY, which the gateway hands through."""


class Leg(Struct, kw_only=True, eq=False):
    """One direction of a page: at most ``wanted`` rows and ``bytes_max``, and whether more are visible beyond them."""

    wanted: int
    bytes_max: int
    rows: list[Row] = []
    size: int = 0
    more: bool = False

    def wish(self) -> int:
        """One more than wanted, so that ``more`` is known."""
        return self.wanted - len(self.rows) + 1

    def offer(self, row: Row) -> bool:
        """A row the user deleted for themselves is left out; a recalled one is shown as such."""
        if row.deleted:
            return True
        full = bool(self.rows) and self.size + len(row.stored) > self.bytes_max
        if len(self.rows) == self.wanted or full:
            self.more = True
            return False
        self.rows.append(row)
        self.size += len(row.stored)
        return True


class Tally(Struct, kw_only=True, eq=False):
    """Unread and head of one conversation, counted from the newest row down.

    The definition asks for the FIRST window + 1 visible records beyond the mark; whether there are so many, and the exact
    count where there are not, is the same from either end.
    """

    read_seq: int
    window: int
    user_id: int
    first_rows: int
    page: HistoryPage | None = None
    stranger: bool = False
    last_activity_id: bytes = EMPTY_ID
    head: bytes = b""
    seen: int = 0
    unread: int = 0
    exact: bool = True
    counted: bool = False
    retention: RetentionPolicy
    until: int = FOREVER_MS
    """When the first of the rows that head and count rest on is no longer retained."""

    def wish(self) -> int:
        """A few rows tell most conversations; many unread ones need whole pages."""
        return (
            self.first_rows if not self.seen else max(self.first_rows, self.window + 2 - self.seen)
        )

    def offer(self, row: Row) -> bool:
        """Until both the count and the head are known."""
        if self.last_activity_id == EMPTY_ID:
            self.last_activity_id = row.record.last_activity_id
        shown = not (row.recalled or row.deleted)
        if row.seq <= self.read_seq:
            self.counted = True
        elif not self.counted:
            self.seen += 1
            self._rest_on(row)
            if self.seen > self.window:
                self.unread, self.exact, self.counted = self.window, False, True
            elif shown and row.record.sender_id != self.user_id and row.record.kind in COUNTED:
                self.unread += 1
        if not self.head and shown and row.record.kind not in OVERLAYS:
            self.head = row.stored
            self._rest_on(row)
        return not (self.counted and self.head)

    def _rest_on(self, row: Row) -> None:
        record = row.record
        until = retained_until(
            self.retention, record.tenant_id, record.retention_class, record.sent_at
        )
        self.until = min(self.until, until)

    def summary(self, conversation_id: bytes) -> Summary:
        """As the session list shows it."""
        page = self.page
        known = page is not None and bool(page.intervals) and not self.stranger
        if page is None or not known:
            return _nothing(conversation_id)
        peer = 0
        if page.kind == ConversationKind.SINGLE and page.users is not None:
            first, last = page.users
            peer = last if first == self.user_id else first
        # Nobody tells who has left of a recall made since, so what he is shown can't be kept.
        present = any(left_at == U64_MAX for _, left_at in page.intervals)
        return Summary(
            conversation_id=conversation_id,
            known=True,
            conversation_kind=page.kind,
            peer_user_id=peer,
            unread=self.unread,
            unread_exact=self.exact,
            head=self.head,
            last_activity_id=self.last_activity_id,
            valid_until=self.until if present else 0,
        )


def _nothing(conversation_id: bytes) -> Summary:
    return Summary(
        conversation_id=conversation_id,
        known=False,
        conversation_kind=0,
        peer_user_id=0,
        unread=0,
        unread_exact=True,
        head=b"",
        last_activity_id=EMPTY_ID,
    )


class Query(Struct, kw_only=True, eq=False):
    """A question in flight. ``waiter`` None: the machine's own, for an overlay's commit."""

    number: int
    waiter: Waiter | None
    ask: AskHistory | AskMembers | AskSummaries | None
    scans: list[Scan] = []
    legs: list[Leg] = []
    tallies: list[Tally] = []
    target: Target | None = None
    undone: int = 0
    """Index of the first scan that may have something to read."""
    flights: int = 0
    """Reads in flight for it."""


def legs_of(
    ask: AskHistory, intervals: Iterable[tuple[int, int]], wanted: int, bytes_max: int
) -> list[tuple[Leg, bool, list[tuple[int, int]]]]:
    """(leg, newest first, ranges) of a page: older than the anchor (0: from the newest), newer, or around it.

    Around takes half of each, the anchor with the older ones; a newer half of nothing still says whether there are more.
    """
    spans = list(intervals)
    if ask.direction == OLDER:
        return [_leg(spans, 0, ask.anchor or U64_MAX + 1, True, wanted, bytes_max)]
    if ask.direction == NEWER:
        return [_leg(spans, ask.anchor, U64_MAX + 1, False, wanted, bytes_max)]
    older = (wanted + 1) // 2
    half = bytes_max // 2
    return [
        _leg(spans, 0, ask.anchor + 1, True, older, half),
        _leg(spans, ask.anchor, U64_MAX + 1, False, wanted - older, half),
    ]


def _leg(
    spans: list[tuple[int, int]], low: int, high: int, newest_first: bool, wanted: int, size: int
) -> tuple[Leg, bool, list[tuple[int, int]]]:
    leg = Leg(wanted=wanted, bytes_max=size)
    return leg, newest_first, ranges_of(spans, low, high, newest_first=newest_first)


class Page(Struct, frozen=True, kw_only=True):
    """What HistoryAnswer says."""

    records: tuple[bytes, ...]
    recalled: tuple[int, ...]
    has_more: bool
    has_more_newer: bool


def page_of(legs: list[Leg], direction: int) -> Page:
    """Rows ascending by seq; more in the direction asked (around: towards older ones, and the other way beside)."""
    rows = legs[0].rows if direction == NEWER else legs[0].rows[::-1]
    around = direction == AROUND
    if around:
        rows = rows + legs[1].rows
    return Page(
        records=tuple([row.stored for row in rows]),
        recalled=tuple([row.seq for row in rows if row.recalled]),
        has_more=legs[0].more,
        has_more_newer=around and legs[1].more,
    )
