"""Ops in flight and effects of the present step: what every part of the MailboxNode writes to."""

from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from qim.core.mailbox.shard import Shard
from qim.core.mailbox.vocabulary import MailboxEffect, ShardRequest


class What(IntEnum):
    """What an op in flight, or a retry that waits for its time, is about."""

    OPEN = 1
    ENDS = 2
    FETCH = 3
    CLAIM = 4
    APPEND = 5
    FINISH = 6
    FLOOR = 7
    TRIM = 8
    VERSIONS = 9
    READ = 10
    BODIES = 11
    PRESENCE = 12
    DISPATCH = 13
    OVERLAYS = 14
    ARCHIVE = 15
    DELIVERED = 16
    PUSHED_OVERLAYS = 17


class Pending(Struct, frozen=True):
    """An op in flight; those of pull and push belong to no shard and are found by their op alone."""

    what: What
    shard: Shard | None = None


class Orders:
    """The counter of ops, what each is about, and the effects so far."""

    __slots__ = ("_last_op", "elsewhere", "out", "pending")

    def __init__(self) -> None:
        self._last_op = 0
        self.pending: dict[int, Pending] = {}
        self.out: list[MailboxEffect] = []
        self.elsewhere: dict[int, str] = {}
        """Who serves the shards that we don't, where the registry noticed; one at most a shard."""

    def op(self, what: What, shard: Shard | None = None) -> int:
        """A new op; its completion will find what it was about."""
        self._last_op += 1
        self.pending[self._last_op] = Pending(what=what, shard=shard)
        return self._last_op

    def give(self, effect: MailboxEffect) -> None:
        """One more effect of this step."""
        self.out.append(effect)

    def ask(self, what: What, shard: Shard, request: ShardRequest) -> None:
        """Give a request of which a shard has at most one, kept until it is settled, so that it can be repeated."""
        assert what not in shard.requests, f"{what.name} of shard {shard.number} is in flight"
        shard.requests[what] = request
        self.out.append(request)

    def repeat(self, what: What, shard: Shard) -> None:
        """The same request under a new op: after Unknown nothing else may be said (pipeline.md §1.5)."""
        request = replace(shard.requests[what], op=self.op(what, shard))
        shard.requests[what] = request
        self.out.append(request)

    def taken(self) -> list[MailboxEffect]:
        """The effects of this step, and a new list for the next."""
        out, self.out = self.out, []
        return out
