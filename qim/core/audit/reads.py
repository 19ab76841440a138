"""The auditor's reads: bounded in flight, repeated a bounded number of times, answered or given up.

Every read is harmless to repeat, so Failed and Unknown are one thing here: not answered yet. Pending work is plain
records: what was asked, and for what (``Purpose``); whoever asked takes the answer by its purpose.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from qim.core.machine import Ms
from qim.core.ports.log import Topic

UserKey = tuple[int, str, int]
"""(shard, tenant, user)."""


class EndsOf(Struct, frozen=True, array_like=True, gc=False):
    """Start and end of a log partition."""

    topic: Topic
    number: int


class BarrierOf(Struct, frozen=True, array_like=True, gc=False):
    """The greatest barrier below the start of an outbox partition."""

    number: int


class CheckpointOf(Struct, frozen=True, array_like=True, gc=False):
    """How far fanout has come in an outbox partition."""

    number: int


class StateOf(Struct, frozen=True, array_like=True, gc=False):
    """Watermark and trim of a mailbox shard."""

    number: int


class RecordsFrom(Struct, frozen=True, array_like=True, gc=False):
    """A window of a log."""

    topic: Topic
    number: int
    low: int


class ReceiptsFrom(Struct, frozen=True, array_like=True, gc=False):
    """Receipts and dead letters of an outbox partition from an offset on."""

    number: int
    low: int


class VersionsOf(Struct, frozen=True, array_like=True, gc=False):
    """Frozen versions: (writer shard, conversation_id, version, digest) each."""

    names: tuple[tuple[int, bytes, int, bytes], ...]


class OffsetsOf(Struct, frozen=True, array_like=True, gc=False):
    """The records at these offsets, ascending."""

    topic: Topic
    number: int
    offsets: tuple[int, ...]


class MailboxPage(Struct, frozen=True, array_like=True, gc=False):
    """Entries of a user in (after, cut]."""

    user: UserKey
    after: int
    cut: int


class ProgressOf(Struct, frozen=True, array_like=True, gc=False):
    """Progress marks of a mailbox shard."""

    number: int
    dispatch_ids: tuple[bytes, ...]


class FactsAfter(Struct, frozen=True, array_like=True, gc=False):
    """A page of facts of a writer shard."""

    number: int
    after: bytes


class EndNow(Struct, frozen=True, array_like=True, gc=False):
    """Where an outbox partition ends by now, for what is named beyond the cut: later than it, or lost."""

    number: int


class StillThere(Struct, frozen=True, array_like=True, gc=False):
    """The last record that was walked of an outbox partition."""

    number: int


class OpeningOf(Struct, frozen=True, array_like=True, gc=False):
    """The fence of an outbox partition's CoverageCursor is raised."""

    number: int


class CoverageOf(Struct, frozen=True, array_like=True, gc=False):
    """The CoverageCursor of an outbox partition moves."""

    number: int


Purpose = (
    EndsOf
    | BarrierOf
    | CheckpointOf
    | StateOf
    | RecordsFrom
    | ReceiptsFrom
    | VersionsOf
    | OffsetsOf
    | MailboxPage
    | ProgressOf
    | FactsAfter
    | EndNow
    | StillThere
    | OpeningOf
    | CoverageOf
)


def describe(purpose: Purpose) -> str:
    """What a report says could not be read."""
    match purpose:
        case EndsOf():
            return f"ends of {purpose.topic.value} {purpose.number}"
        case BarrierOf():
            return f"barriers of writer shard {purpose.number}"
        case CheckpointOf():
            return f"checkpoint of outbox {purpose.number}"
        case StateOf():
            return f"state of mailbox shard {purpose.number}"
        case RecordsFrom():
            return f"{purpose.topic.value} {purpose.number} from offset {purpose.low}"
        case ReceiptsFrom():
            return f"receipts of outbox {purpose.number} from offset {purpose.low}"
        case VersionsOf():
            return f"{len(purpose.names)} membership versions"
        case OffsetsOf():
            first, last = purpose.offsets[0], purpose.offsets[-1]
            return f"{purpose.topic.value} {purpose.number} offsets {first}..{last}"
        case MailboxPage():
            return f"mailbox of user {purpose.user[2]} in shard {purpose.user[0]}"
        case ProgressOf():
            return f"progress of mailbox shard {purpose.number}"
        case FactsAfter():
            return f"facts of writer shard {purpose.number}"
        case EndNow() | StillThere():
            return f"end of outbox {purpose.number}"
        case OpeningOf():
            return f"opening of the coverage of outbox {purpose.number}"
        case _:
            assert isinstance(purpose, CoverageOf), purpose
            return f"coverage of outbox {purpose.number}"


class Read(Struct):
    """One question and how often it was asked; ``order`` makes the request of an op."""

    order: Callable[[int], Any]
    purpose: Purpose
    attempts: int = 0
    sent_at: Ms = 0


def _same(request: Any) -> Callable[[int], Any]:
    return lambda op: msgspec.structs.replace(request, op=op)


class Reads:
    """A queue of requests whose ``op`` is given at the moment of sending; ``settled`` once nothing is open.

    waiting --send--> in flight --answered--> gone
    in flight --failed, timed out--> later --its time comes--> waiting
    in flight --failed the last time allowed--> given up
    """

    def __init__(
        self, *, inflight_max: int, attempts_max: int, retry_ms: Ms, timeout_ms: Ms
    ) -> None:
        self._inflight_max = inflight_max
        self._attempts_max = attempts_max
        self._retry_ms = retry_ms
        self._timeout_ms = timeout_ms
        self._op = 0
        self._waiting: deque[Read] = deque()
        self._later: list[tuple[Ms, Read]] = []
        self._inflight: dict[int, Read] = {}
        self.sent = 0
        """Requests given to the driver since the last ``forget``."""

    @property
    def settled(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not (self._waiting or self._later or self._inflight)

    def ask(self, request: Any, purpose: Purpose) -> None:
        """Queue a request; its op is ignored."""
        self.ask_anew(_same(request), purpose)

    def ask_anew(self, order: Callable[[int], Any], purpose: Purpose) -> None:
        """Queue a request of which each try is made anew, of its op."""
        self._waiting.append(Read(order=order, purpose=purpose))

    def ask_at(self, at: Ms, request: Any, purpose: Purpose) -> None:
        """Queue a request that is sent at ``at`` at the earliest."""
        self._later.append((at, Read(order=_same(request), purpose=purpose)))

    def send(self, now: Ms) -> list[Any]:
        """The requests to give to the driver now."""
        self._waiting.extend(read for at, read in self._later if at <= now)
        self._later = [(at, read) for at, read in self._later if at > now]
        effects: list[Any] = []
        while self._waiting and len(self._inflight) < self._inflight_max:
            read = self._waiting.popleft()
            self._op += 1
            self.sent += 1
            read.sent_at = now
            self._inflight[self._op] = read
            effects.append(read.order(self._op))
        return effects

    def purpose(self, op: int) -> Purpose | None:
        """For what was asked; None where nobody waits any more."""
        read = self._inflight.get(op)
        return read.purpose if read is not None else None

    def answered(self, op: int) -> Purpose | None:
        """For what the answer is; None where it came late and nobody waits any more."""
        read = self._inflight.pop(op, None)
        return read.purpose if read is not None else None

    def failed(self, op: int, now: Ms) -> Purpose | None:
        """No answer: again later; or, the last time, what is given up."""
        read = self._inflight.pop(op, None)
        if read is None:
            return None
        read.attempts += 1
        if read.attempts >= self._attempts_max:
            return read.purpose
        self._later.append((now + self._retry_ms, read))
        return None

    def overdue(self, now: Ms) -> list[int]:
        """Ops that were not answered in time."""
        return [op for op, read in self._inflight.items() if now - read.sent_at > self._timeout_ms]

    def deadline(self) -> Ms | None:
        """When there is something to do at the latest."""
        times = [at for at, _ in self._later]
        times += [read.sent_at + self._timeout_ms + 1 for read in self._inflight.values()]
        return min(times, default=None)

    def check(self) -> None:
        """Own invariants."""
        assert len(self._inflight) <= self._inflight_max
        assert all(read.attempts < self._attempts_max for read in self._inflight.values())

    def abandon(self, *kinds: type) -> None:
        """Nothing of these kinds is sent, sent again or waited for any more."""
        self._waiting = deque([one for one in self._waiting if type(one.purpose) not in kinds])
        self._later = [(at, one) for at, one in self._later if type(one.purpose) not in kinds]
        self._inflight = {
            op: one for op, one in self._inflight.items() if type(one.purpose) not in kinds
        }

    def forget(self) -> None:
        """Drop everything (a run begins anew)."""
        self._waiting.clear()
        self._later.clear()
        self._inflight.clear()
        self.sent = 0
