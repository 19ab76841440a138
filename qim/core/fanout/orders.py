"""Ops in flight and effects of the present step: what every part of the FanoutCoordinator writes to."""

from enum import IntEnum

from msgspec import Struct

from qim.core.fanout.partition import Partition
from qim.core.fanout.vocabulary import FanoutEffect


class What(IntEnum):
    """What an op in flight, or a retry that waits for its time, is about."""

    OPEN = 1
    ENDS = 2
    BARRIER = 3
    FETCH = 4
    COMMIT = 5
    APPEND = 6
    VERSIONS = 7


class Pending(Struct, frozen=True):
    """An op in flight. Only an append has a shard; it and a read of versions are nobody's in particular."""

    what: What
    partition: Partition | None = None
    shard: int = -1


class Orders:
    """The counter of ops, what each is about, and the effects so far."""

    __slots__ = ("_last_op", "out", "pending")

    def __init__(self) -> None:
        self._last_op = 0
        self.pending: dict[int, Pending] = {}
        self.out: list[FanoutEffect] = []

    def op(self, what: What, partition: Partition | None = None, shard: int = -1) -> int:
        """A new op; its completion will find what it was about."""
        self._last_op += 1
        self.pending[self._last_op] = Pending(what=what, partition=partition, shard=shard)
        return self._last_op

    def give(self, effect: FanoutEffect) -> None:
        """One more effect of this step."""
        self.out.append(effect)

    def taken(self) -> list[FanoutEffect]:
        """The effects of this step, and a new list for the next."""
        out, self.out = self.out, []
        return out
