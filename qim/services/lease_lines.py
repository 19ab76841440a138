"""What becomes of a process's leases, as log lines: held, expired, lost, given back; one line a role for all of one step."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from typing import Any, Final

from qim.adapters.reporting import Log
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.observe import Count
from qim.core.ports.registry import Resource
from qim.services.runtime import Hosted, Route

HELD: Final = "leases held"
GIVEN_BACK: Final = "leases given back"
WHY: Final = {"lease_expired": "leases expired", "lease_lost": "leases lost"}
"""By the counter that the keeper raises right before it tells that a lease is gone."""
LEVELS: Final = {HELD: "info", GIVEN_BACK: "info"}


class LeaseLines:
    """Listens on the keeper's own routes; what is told of others' leases, and a fresh epoch, is no news."""

    def __init__(self, loop: AbstractEventLoop, log: Log) -> None:
        self._loop = loop
        self._log = log
        self._held: dict[Resource, None] = {}
        self._why = ""
        self._news: dict[tuple[str, str], list[int]] = {}

    def routes(
        self, bus: dict[type, Route], count: Callable[[str, int, str], None]
    ) -> dict[type, Route]:
        """Those of ``bus`` (routing.lease_bus) and of Count, each with an ear."""
        held, gone = bus[LeaseHeld], bus[LeaseGone]

        def counted(effect: Any, _: Hosted) -> None:
            count(effect.name, effect.value, effect.label)
            self._why = WHY.get(effect.name, "")

        def begun(effect: Any, hosted: Hosted) -> None:
            held(effect, hosted)
            if effect.resource not in self._held:
                self._held[effect.resource] = None
                self._tell(HELD, effect.resource)

        def ended(effect: Any, hosted: Hosted) -> None:
            gone(effect, hosted)
            why, self._why = self._why or GIVEN_BACK, ""
            if effect.resource in self._held:
                del self._held[effect.resource]
                self._tell(why, effect.resource)

        return {LeaseHeld: begun, LeaseGone: ended, Count: counted}

    def _tell(self, event: str, resource: Resource) -> None:
        if not self._news:
            self._loop.call_soon(self._write)
        self._news.setdefault((event, resource.role.value), []).append(resource.number)

    def _write(self) -> None:
        news, self._news = self._news, {}
        for (event, role), numbers in news.items():
            level = LEVELS.get(event, "warning")
            fields: dict[str, object] = {"role": role, "numbers": spans(numbers)}
            self._log(level, event, {**fields, "held": self._count(role)})

    def _count(self, role: str) -> int:
        return sum(one.role.value == role for one in self._held)


def spans(numbers: Iterable[int]) -> str:
    """Whole numbers as people write them: 0-3 7 9-10."""
    told: list[str] = []
    begin = end = -2
    for number in [*sorted(set(numbers)), -2]:
        if number == end + 1:
            end = number
            continue
        if end >= 0:
            told.append(str(begin) if begin == end else f"{begin}-{end}")
        begin = end = number
    return " ".join(told)
