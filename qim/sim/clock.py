"""Clocks of a node as curves over the world's time: offset, drift, steps, freezes; wall and monotonic apart.

A curve is made of pieces; each begins at a world time with a value and a rate (parts per million of true speed, 0 is a
frozen clock). The monotonic curve never goes back (a drawn step back is clamped), the wall clock may.
"""

from bisect import bisect_right
from typing import Final

from msgspec import Struct

TRUE_RATE: Final = 1_000_000
FROZEN_LOOK_MS: Final = 200
"""How soon a deadline is looked at again while its clock stands."""


class Piece(Struct, frozen=True, array_like=True, gc=False):
    """From world time ``at_ms`` on the clock shows value_ms + elapsed * rate_ppm / 1e6."""

    at_ms: int
    value_ms: int
    rate_ppm: int = TRUE_RATE


class Curve:
    """A piecewise clock; pieces sorted by at_ms, the first at 0. Faults add pieces as they happen."""

    __slots__ = (
        "_at", "_floor", "_freezes", "_frozen_at", "_frozen_rate", "_monotone", "_pieces", "_true_offset",
    )  # fmt: skip

    def __init__(self, pieces: tuple[Piece, ...], *, monotone: bool) -> None:
        assert pieces, "a clock has at least one piece"
        assert pieces[0].at_ms == 0, pieces
        self._pieces = list(pieces)
        self._at = [piece.at_ms for piece in pieces]
        self._monotone = monotone
        self._floor = pieces[0].value_ms
        self._freezes = self._frozen_at = self._frozen_rate = 0
        single = len(pieces) == 1 and pieces[0].rate_ppm == TRUE_RATE
        self._true_offset: int | None = pieces[0].value_ms if single else None

    def read(self, at: int) -> int:
        """What the clock shows at world time ``at``."""
        offset = self._true_offset
        if offset is not None:
            return at + offset
        piece = self._pieces[bisect_right(self._at, at) - 1]
        value = piece.value_ms + (at - piece.at_ms) * piece.rate_ppm // TRUE_RATE
        if self._monotone:
            self._floor = value = max(value, self._floor)
        return value

    def when(self, value: int, at: int) -> int:
        """A world time > ``at`` at which the clock may show ``value``: maybe earlier, and a tick of a slow clock late at most.

        One that stands is looked at again after FROZEN_LOOK_MS.
        """
        offset = self._true_offset
        if offset is not None:
            then = value - offset
            return then if then > at else at + 1
        index = bisect_right(self._at, at) - 1
        rate = self._pieces[index].rate_ppm
        left = value - self.read(at)
        guess = at + (left * TRUE_RATE // rate if rate else FROZEN_LOOK_MS)
        if index + 1 < len(self._at):
            guess = min(guess, self._at[index + 1])
        return max(guess, at + 1)

    def shift(self, at: int, by_ms: int) -> None:
        """The clock jumps."""
        rate = self._pieces[bisect_right(self._at, at) - 1].rate_ppm
        self._cut(at, self.read(at) + by_ms, rate)

    def freeze(self, at: int) -> None:
        """The clock stands until as many thaws as freezes have come."""
        self._freezes += 1
        if self._freezes == 1:
            self._frozen_at = at
            self._frozen_rate = self._pieces[bisect_right(self._at, at) - 1].rate_ppm
            self._cut(at, self.read(at), 0)

    def thaw(self, at: int) -> None:
        """It jumps to where it would have been."""
        self._freezes -= 1
        if self._freezes == 0:
            missed = (at - self._frozen_at) * self._frozen_rate // TRUE_RATE
            self._cut(at, self.read(at) + missed, self._frozen_rate)

    def _cut(self, at: int, value: int, rate_ppm: int) -> None:
        index = bisect_right(self._at, at)
        del self._at[index:], self._pieces[index:]
        self._at.append(at)
        self._pieces.append(Piece(at, value, rate_ppm))
        self._true_offset = None
