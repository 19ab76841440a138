"""A procedure as a machine: what it asks goes out one at a time, and the leases it took are renewed while it goes on (pipeline.md §0).

    NEW --Started--> ASKING --answer--> ASKING | OVER        ``report``, or ``refusal``
                     ASKING, a lease lost or its validity over --answer--> giving back, by the procedure itself --> OVER

A lease keeps others from starting, and nothing more: what a procedure did is proved by fences and by what stands in the log
(publishing.py). One whose lease is gone stops at the next answer all the same: somebody else may be at work by then.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from qim.core.machine import Ms
from qim.core.mending.asking import LEASE_TTL_MS, NotMended, Overtaken, Procedure
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.local import Started
from qim.core.ports.registry import Acquire, Granted, Release, Renew, Renewed, Resource

RENEW_MS: Final = LEASE_TTL_MS // 4
RETRY_MS: Final = 1_000
MARGIN_MS: Final = 5_000
"""By which clocks and a registry's answer may be apart at the end of a lease."""


class _Held(Struct):
    epoch: int
    valid_until: Ms


class Carrying:
    """One run of one procedure. It knows no time but ``now``, and asks for nothing by itself but renewals."""

    def __init__(self, procedure: Procedure[Any]) -> None:
        self._procedure = procedure
        self._op = 0
        self._asked: Any = None
        self._asked_at: Ms = 0
        self._held: dict[Resource, _Held] = {}
        self._owner = ""
        self._renew_at: Ms = 0
        self._renewing: Renew | None = None
        self._renewed_at: Ms = 0
        self._lost: list[Resource] = []
        self._stopped = False
        self.over = False
        self.report: Any = None
        self.refusal: NotMended | None = None

    def step(self, now: Ms, events: Sequence[Any]) -> list[Any]:
        """Take answers, give the next request; a renewal beside it when one is due."""
        out: list[Any] = []
        for event in events:
            if self._renewing is not None and getattr(event, "op", 0) == self._renewing.op:
                self._on_renewed(now, self._renewing, event)
        for event in events:
            if isinstance(event, Started):
                self._go(now, None, out)
            elif self._asked is not None and getattr(event, "op", 0) == self._asked.op:
                self._on_answer(now, event, out)
        if self._held and self._renewing is None and not self.over and now >= self._renew_at:
            self._renew(now, out)
        return out

    def deadline(self) -> Ms | None:
        """The next renewal; the end of a lease stops nothing before the answer that is waited for."""
        idle = self.over or self._renewing is not None or not self._held
        return None if idle else self._renew_at

    def check(self) -> None:
        """Assert what must hold between steps."""
        assert not (self.over and self._asked is not None)
        assert self.over or self.report is self.refusal is None

    def idle(self) -> bool:
        """It has come to its end; a renewal that is under way still concerns nobody."""
        return self.over

    def result(self) -> Any:
        """The report of the procedure. Raises NotMended as it did."""
        assert self.over
        if self.refusal is not None:
            raise self.refusal
        return self.report

    # ------------------------------------------------------------ the procedure

    def _on_answer(self, now: Ms, event: Any, out: list[Any]) -> None:
        asked = self._asked
        if isinstance(asked, Acquire) and isinstance(event, Granted):
            if not self._held:
                self._renew_at = self._asked_at + RENEW_MS
            self._owner = asked.owner
            valid_until = self._asked_at + asked.ttl_ms - MARGIN_MS
            self._held[asked.resource] = _Held(epoch=event.epoch, valid_until=valid_until)
        self._go(now, event, out)

    def _go(self, now: Ms, answer: Any, out: list[Any]) -> None:
        # What was just granted must be given back by who asked, and what is given back is over: neither is broken off.
        between = isinstance(self._asked, Acquire | Release)
        gone = [] if between or self._stopped else self._gone(now)
        self._asked = None
        try:
            if gone:
                self._stopped = True
                request = self._procedure.throw(_overtaken(gone))
            else:
                request = self._procedure.send(answer)
        except StopIteration as done:
            self.over, self.report = True, done.value
            return
        except NotMended as refused:
            self.over, self.refusal = True, refused
            return
        if isinstance(request, Release):
            self._give_back(request)
        self._op += 1
        self._asked, self._asked_at = replace(request, op=self._op), now
        out.append(self._asked)

    # ------------------------------------------------------------ the leases

    def _gone(self, now: Ms) -> list[Resource]:
        over = [one for one, held in self._held.items() if now >= held.valid_until]
        return self._lost + [one for one in over if one not in self._lost]

    def _give_back(self, request: Release) -> None:
        """Of ours: a procedure gives back a fanout's too, so that it looks again."""
        for resource, epoch in request.leases:
            held = self._held.get(resource)
            if held is not None and held.epoch == epoch:
                del self._held[resource]
                self._lost = [one for one in self._lost if one != resource]

    def _renew(self, now: Ms, out: list[Any]) -> None:
        self._op += 1
        leases = tuple((resource, held.epoch) for resource, held in self._held.items())
        self._renewing = Renew(op=self._op, owner=self._owner, leases=leases, ttl_ms=LEASE_TTL_MS)
        self._renewed_at = now
        out.append(self._renewing)

    def _on_renewed(self, now: Ms, asked: Renew, event: Renewed | Failed | Unknown) -> None:
        """What was given back meanwhile is lost to nobody."""
        self._renewing = None
        if not isinstance(event, Renewed):
            self._renew_at = now + RETRY_MS
            return
        self._renew_at = self._renewed_at + RENEW_MS
        for resource, epoch in asked.leases:
            held = self._held.get(resource)
            if held is None or held.epoch != epoch:
                continue
            if resource in event.lost:
                self._lost.append(resource)
            else:
                held.valid_until = self._renewed_at + LEASE_TTL_MS - MARGIN_MS


def _overtaken(gone: Sequence[Resource]) -> Overtaken:
    names = ", ".join(f"{one.role.value} {one.number}" for one in gone)
    return Overtaken(f"the lease of {names} ended amid the work, and somebody else may hold it")
