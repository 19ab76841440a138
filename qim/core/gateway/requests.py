"""Questions to the services and what waits for their answers: a bounded table in which every wait has an end.

    asked ──owner known──► sent ──answer──► done
      │ ▲                   │ └──NOT_OWNER, once──► asked again
      │ └──ReadLease────────┘
      └──nobody owns it, too many wait, request_timeout_ms──► failed

``rid`` starts at the wall clock, so that an answer meant for a dead instance at the same address meets no live request.
A request that was sent and not answered may have been done; one that was never sent surely was not. An answer that
nobody waits for (late, doubled) is counted and never delivered to anybody else.
"""

from collections import deque
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import Message, Refused
from qim.core.gateway.context import NodeContext
from qim.core.gateway.owners import Owners
from qim.core.gateway.questions import Question
from qim.core.machine import Ms
from qim.core.ports.network import Send
from qim.core.ports.observe import Measured
from qim.core.ports.registry import Resource


class AskKind(IntEnum):
    """What kind of answer fits."""

    SEND = 1
    GROUP = 2
    HISTORY = 3
    MEMBERS = 4
    PULL = 5
    SYNC = 6
    WATERMARK = 7
    SESSIONS = 8
    STATE = 9
    STATES = 10
    READ_BY = 11
    BADGE = 12


WRITES = (AskKind.SEND, AskKind.GROUP, AskKind.STATE)
"""May be done though nobody answered: their time-out is TIMEOUT_UNKNOWN."""


class Asked(Struct, kw_only=True):
    """One request on its way. conn 0: the node's own; request and stream are the client frame's.

    ``rid`` changes when it is asked again elsewhere, ``first_rid`` stays.
    """

    rid: int
    first_rid: int
    kind: AskKind
    question: Question
    resource: Resource
    deadline: Ms
    conn: int = 0
    request: int = 0
    stream: int = 0
    client_message_id: bytes | None = None
    trace: int | None = None
    address: str = ""
    resent: bool = False
    sent: bool = False


class Failure(Struct, frozen=True, kw_only=True):
    """A request that ends without its answer."""

    asked: Asked
    code: ErrorCode
    message: str
    retry_after_ms: int


class Requests:
    """The table. It decides nothing about connections: failures are handed over by ``take_failures``."""

    def __init__(self, context: NodeContext, owners: Owners) -> None:
        self._context = context
        self._owners = owners
        self._asked: dict[int, Asked] = {}
        self._failures: deque[Failure] = deque()
        self._rid = 0

    def __len__(self) -> int:
        return len(self._asked)

    def start_at(self, wall: Ms) -> None:
        """A new instance: rids above those of every earlier one (2^20 requests a ms would be needed to catch up)."""
        self._rid = wall << 20

    def next_rid(self) -> int:
        """A rid never used before."""
        self._rid += 1
        return self._rid

    def ask(self, asked: Asked) -> None:
        """Take a request in and send it as soon as its owner is known."""
        if len(self._asked) >= self._context.config.requests_max:
            self._fail(asked, ErrorCode.UNAVAILABLE, "too many requests wait in this gateway")
            return
        self._asked[asked.rid] = asked
        self._dispatch(asked)

    def answered(self, rid: int, *kinds: AskKind) -> Asked | None:
        """The request that this answer ends, None for a late, doubled or misfit one."""
        asked = self._asked.get(rid)
        if asked is None or asked.kind not in kinds:
            self._context.count("answers_ignored")
            return None
        del self._asked[rid]
        took = self._context.now - asked.deadline + self._context.config.request_timeout_ms
        self._context.order(Measured(name="gateway_request", ms=took, label=asked.kind.name))
        return asked

    def refused(self, refusal: Refused) -> None:
        """Not done, says the service; a wrong owner is asked again elsewhere, once."""
        asked = self._asked.get(refusal.rid)
        if asked is None:
            self._context.count("answers_ignored")
            return
        if refusal.code == ErrorCode.NOT_OWNER:
            self._wrong_owner(asked, refusal.owner_address)
            return
        del self._asked[asked.rid]
        try:
            code = ErrorCode(refusal.code)
        except ValueError:
            code = (
                ErrorCode.INTERNAL
            )  # a newer service than we are; its words still reach the client
        self._fail(asked, code, refusal.message, refusal.retry_after_ms)

    def resolved(self, resource: Resource, address: str) -> None:
        """A lookup ended: send what waited, or end it (address "": nobody owns the resource)."""
        for rid in self._owners.resolved(resource, address):
            asked = self._asked.get(rid)
            if asked is None:
                continue  # timed out while it waited
            if address:
                self._send(asked, address)
            else:
                del self._asked[rid]
                self._fail(asked, ErrorCode.UNAVAILABLE, "nobody serves this shard now")

    def expire(self) -> None:
        """End what waited too long. All wait equally long, so the table's order is the order of deadlines."""
        while self._asked:
            asked = next(iter(self._asked.values()))
            if asked.deadline > self._context.now:
                return
            del self._asked[asked.rid]
            if asked.address:
                self._owners.forget(asked.resource, asked.address)
            self._context.count("request_timeouts", asked.kind.name)
            if asked.sent and asked.kind in WRITES:
                self._fail(asked, ErrorCode.TIMEOUT_UNKNOWN, "no answer in time")
            else:
                self._fail(asked, ErrorCode.UNAVAILABLE, "no answer in time")

    def deadline(self) -> Ms | None:
        """When the oldest request ends."""
        for asked in self._asked.values():
            return asked.deadline
        return None

    def take_failures(self) -> list[Failure]:
        """Requests that ended without their answer since the last call, each once."""
        if not self._failures:
            return []
        failures = list(self._failures)
        self._failures.clear()
        return failures

    def check(self) -> None:
        """Bounded, ordered by deadline, nothing left unreported."""
        assert len(self._asked) <= self._context.config.requests_max
        assert not self._failures, "failures left to report"
        last = 0
        for asked in self._asked.values():
            assert asked.deadline >= last, "deadlines out of order"
            last = asked.deadline

    def _dispatch(self, asked: Asked) -> None:
        address = self._owners.address(asked.resource)
        if address is not None:
            self._send(asked, address)
        elif not self._owners.wait(asked.resource, asked.rid):
            del self._asked[asked.rid]
            self._fail(asked, ErrorCode.UNAVAILABLE, "too many requests wait for an owner")

    def _send(self, asked: Asked, address: str) -> None:
        asked.address = address
        asked.sent = True
        traces = () if asked.trace is None else (asked.trace,)
        message: Message = asked.question
        self._context.order(Send(address=address, message=message, traces=traces))

    def _wrong_owner(self, asked: Asked, owner_address: str) -> None:
        """Surely not done there, so asking again elsewhere can't do it twice.

        Under a new rid: a doubled NOT_OWNER must not be taken for the second owner's answer.
        """
        del self._asked[asked.rid]
        self._owners.forget(asked.resource, asked.address)
        if asked.resent:
            self._fail(asked, ErrorCode.UNAVAILABLE, "the shard is changing its owner")
            return
        if owner_address and owner_address != asked.address:
            self._owners.learn(asked.resource, owner_address)
        rid = self.next_rid()
        again = replace(
            asked,
            rid=rid,
            question=replace(asked.question, rid=rid),
            deadline=self._context.now + self._context.config.request_timeout_ms,
            resent=True,
            sent=False,
        )
        self._asked[rid] = again
        self._dispatch(again)

    def _fail(self, asked: Asked, code: ErrorCode, message: str, retry_after_ms: int = 0) -> None:
        if code is ErrorCode.UNAVAILABLE and not retry_after_ms:
            retry_after_ms = self._context.config.owner_retry_after_ms
        self._failures.append(
            Failure(asked=asked, code=code, message=message, retry_after_ms=retry_after_ms)
        )
