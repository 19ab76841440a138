"""Ops in flight and effects of the present step: what every part of the HistoryArchiver writes to."""

from enum import IntEnum

from msgspec import Struct

from qim.core.archiver.partition import Partition
from qim.core.archiver.vocabulary import ArchiverEffect


class What(IntEnum):
    """What an op in flight, or a retry that waits for its time, is about."""

    OPEN = 1
    ASK = 2
    ENDS = 3
    BARRIER = 4
    FETCH = 5
    WRITE = 6
    COMMIT = 7
    EXPIRE = 8


class Pending(Struct, frozen=True):
    """An op in flight; expiry is nobody's in particular."""

    what: What
    partition: Partition | None = None


class Orders:
    """The counter of ops, what each is about, and the effects so far."""

    __slots__ = ("_last_op", "out", "pending")

    def __init__(self) -> None:
        self._last_op = 0
        self.pending: dict[int, Pending] = {}
        self.out: list[ArchiverEffect] = []

    def op(self, what: What, partition: Partition | None = None) -> int:
        """A new op; its completion will find what it was about."""
        self._last_op += 1
        self.pending[self._last_op] = Pending(what=what, partition=partition)
        return self._last_op

    def give(self, effect: ArchiverEffect) -> None:
        """One more effect of this step."""
        self.out.append(effect)

    def taken(self) -> list[ArchiverEffect]:
        """The effects of this step, and a new list for the next."""
        out, self.out = self.out, []
        return out
