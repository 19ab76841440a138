"""The auditor's reads: bounded in flight, repeated a bounded number of times, answered or given up with a reason.

Every read is harmless to repeat, so Failed and Unknown are one thing here: not answered yet.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from qim.core.machine import Ms


class _Read(Struct):
    request: Any
    done: Callable[[Any], None]
    what: str
    attempts: int = 0
    sent_at: Ms = 0


class Reads:
    """A queue of requests whose ``op`` is given at the moment of sending; ``settled`` once nothing is open."""

    def __init__(
        self, *, inflight_max: int, attempts_max: int, retry_ms: Ms, timeout_ms: Ms
    ) -> None:
        self._inflight_max = inflight_max
        self._attempts_max = attempts_max
        self._retry_ms = retry_ms
        self._timeout_ms = timeout_ms
        self._op = 0
        self._waiting: deque[_Read] = deque()
        self._later: list[tuple[Ms, _Read]] = []
        self._inflight: dict[int, _Read] = {}
        self.given_up: list[str] = []

    @property
    def settled(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not (self._waiting or self._later or self._inflight)

    def ask(self, request: Any, done: Callable[[Any], None], what: str) -> None:
        """Queue a request (its op is ignored); ``what`` names the range in the report if it is given up."""
        self._waiting.append(_Read(request=request, done=done, what=what))

    def send(self, now: Ms) -> list[Any]:
        """The requests to give to the driver now."""
        due = [read for at, read in self._later if at <= now]
        self._later = [(at, read) for at, read in self._later if at > now]
        self._waiting.extend(due)
        for op in [
            op for op, read in self._inflight.items() if now - read.sent_at > self._timeout_ms
        ]:
            self.failed(op, now)
        effects: list[Any] = []
        while self._waiting and len(self._inflight) < self._inflight_max:
            read = self._waiting.popleft()
            self._op += 1
            read.sent_at = now
            self._inflight[self._op] = read
            effects.append(msgspec.structs.replace(read.request, op=self._op))
        return effects

    def answered(self, reply: Any) -> None:
        """A typed reply; late ones of given-up reads are dropped."""
        read = self._inflight.pop(reply.op, None)
        if read is not None:
            read.done(reply)

    def failed(self, op: int, now: Ms) -> None:
        """No answer: again later, or given up."""
        read = self._inflight.pop(op, None)
        if read is None:
            return
        read.attempts += 1
        if read.attempts >= self._attempts_max:
            self.given_up.append(read.what)
        else:
            self._later.append((now + self._retry_ms, read))

    def deadline(self) -> Ms | None:
        """When ``send`` has something to do at the latest."""
        times = [at for at, _ in self._later]
        times += [read.sent_at + self._timeout_ms + 1 for read in self._inflight.values()]
        return min(times, default=None)

    def forget(self) -> None:
        """Drop everything (a new run begins)."""
        self._waiting.clear()
        self._later.clear()
        self._inflight.clear()
        self.given_up.clear()
