"""A read on its way: which ranges of a conversation its asker may see, and what has been gathered (contract.md, Interval).

Visible iff joined_at < seq <= left_at. A leg walks its ranges from the anchor outwards, so the page that is cut stays
next to the anchor and ``more`` is exact in the leg's direction. Pure data and pure functions; nothing is read here.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.rpc import AskHistory, AskMembers
from qim.core.contract.sequences import U64_MAX
from qim.core.writer.commit import Waiter

OLDER: Final = HistoryDirection.OLDER
NEWER: Final = HistoryDirection.NEWER
DIRECTIONS: Final = tuple(HistoryDirection)
"""The numbers of PULL_HISTORY, which the gateway hands through."""


class Leg(Struct, kw_only=True, eq=False):
    """One direction of a page: exclusive (low, high) ranges yet to read, nearest to the anchor first."""

    newest_first: bool
    ranges: deque[tuple[int, int]]
    wanted: int
    bytes_max: int
    rows: list[bytes]
    size: int = 0
    more: bool = False

    def take(self, rows: Iterable[bytes], beyond: bool) -> None:
        """Rows in the leg's order from its first range; ``beyond``: more of them stand there."""
        low, high = self.ranges[0]
        last = 0
        for row in rows:
            if len(self.rows) == self.wanted or (
                self.rows and self.size + len(row) > self.bytes_max
            ):
                self.more = True
                self.ranges.clear()
                return
            last = int.from_bytes(row[:8], "big")
            assert low < last < high, "the store answers inside the asked range"
            self.rows.append(row)
            self.size += len(row)
        if beyond and last:
            self.ranges[0] = (low, last) if self.newest_first else (last, high)
        else:
            self.ranges.popleft()


class Query(Struct, kw_only=True, eq=False):
    """A history or members question in flight."""

    number: int
    waiter: Waiter
    ask: AskHistory | AskMembers
    legs: list[Leg] = []


def legs_of(
    ask: AskHistory, intervals: Iterable[tuple[int, int]], wanted: int, bytes_max: int
) -> list[Leg]:
    """The legs of a page: older than the anchor (0: from the newest), newer, or half of each with the anchor itself."""
    spans = sorted(intervals)
    if ask.direction == OLDER:
        high = ask.anchor or U64_MAX
        return [_leg(spans, 0, high, True, wanted, bytes_max)]
    if ask.direction == NEWER:
        return [_leg(spans, ask.anchor, U64_MAX, False, wanted, bytes_max)]
    older = (wanted + 1) // 2
    half = bytes_max // 2
    upper = min(ask.anchor + 1, U64_MAX)
    legs = [_leg(spans, 0, upper, True, older, half)]
    if wanted > older:
        legs.append(_leg(spans, ask.anchor, U64_MAX, False, wanted - older, half))
    return legs


def _leg(
    spans: list[tuple[int, int]], low: int, high: int, newest_first: bool, wanted: int, size: int
) -> Leg:
    ranges: list[tuple[int, int]] = []
    for joined_at, left_at in spans:
        lower, upper = max(low, joined_at), min(high, left_at + 1)
        if lower + 1 < upper:
            ranges.append((lower, upper))
    if newest_first:
        ranges.reverse()
    return Leg(
        newest_first=newest_first, ranges=deque(ranges), wanted=wanted, bytes_max=size, rows=[]
    )


def page_of(legs: list[Leg]) -> tuple[tuple[bytes, ...], bool]:
    """Rows ascending by seq, and whether there are more in the direction asked (around: towards older ones)."""
    rows: list[bytes] = []
    for leg in legs:
        rows.extend(reversed(leg.rows) if leg.newest_first else leg.rows)
    return tuple(rows), legs[0].more
