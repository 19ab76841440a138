"""Ops in flight and effects of the present step: what every part of SessionProjection writes to."""

from collections.abc import Callable
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Message, Refused
from qim.core.ports.network import Send
from qim.core.session.question import Question
from qim.core.session.shard import Shard
from qim.core.session.vocabulary import ReadReply, SessionEffect, ShardRequest


class What(IntEnum):
    """What an op in flight, or a retry that waits for its time, is about."""

    OPEN = 1
    DISPATCH_ENDS = 2
    STATE_ENDS = 3
    DISPATCH_FETCH = 4
    STATE_FETCH = 5
    PROJECT = 6
    APPLY = 7
    APPEND = 8
    VERSIONS = 9
    READ = 10
    LEASE = 11


FETCHES = (What.DISPATCH_FETCH, What.STATE_FETCH)
OnRead = Callable[[ReadReply | None], None]
"""Takes the answer of a read, None where there is none: a read is harmless, so all failures are alike."""


class Pending(Struct, frozen=True):
    """An op in flight. ``shard`` is whose request it is; a read's ``shard`` is the one that a StoreReset reopens."""

    what: What
    shard: Shard | None = None
    on_read: OnRead | None = None
    number: int = -1
    """The writer shard of a lookup."""


class Orders:
    """The counter of ops, what each is about, and the effects so far."""

    __slots__ = ("_last_op", "elsewhere", "out", "pending")

    def __init__(self) -> None:
        self._last_op = 0
        self.pending: dict[int, Pending] = {}
        self.out: list[SessionEffect] = []
        self.elsewhere: dict[int, str] = {}
        """Who serves the shards that we don't, where the registry noticed; one at most a shard."""

    def op(
        self,
        what: What,
        shard: Shard | None = None,
        on_read: OnRead | None = None,
        number: int = -1,
    ) -> int:
        """A new op; its completion will find what it was about."""
        self._last_op += 1
        pending = Pending(what=what, shard=shard, on_read=on_read, number=number)
        self.pending[self._last_op] = pending
        return self._last_op

    def give(self, effect: SessionEffect) -> None:
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

    def answer(self, question: Question, answer: Message) -> None:
        """Answer a question, once."""
        if question.answered:
            return
        question.answered = True
        self.out.append(Send(address=question.source, message=answer))

    def refuse(self, question: Question, code: int, text: str, retry_after_ms: int = 0) -> None:
        """Tell why not."""
        rid = question.ask.rid
        owner = self.elsewhere.get(question.shard, "") if code == ErrorCode.NOT_OWNER else ""
        refused = Refused(
            rid=rid, code=code, message=text, retry_after_ms=retry_after_ms, owner_address=owner
        )
        self.answer(question, refused)

    def taken(self) -> list[SessionEffect]:
        """The effects of this step, and a new list for the next."""
        out, self.out = self.out, []
        return out
