"""The servers a process leans on: each outage is one line in the log and each end of one, and /readyz is red meanwhile.

What an adapter knows is looked at, at most four times a second; it isn't asked to tell. A server that is away for less than
a look leaves no line here: its other incarnation does (pipeline.md §0).
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from qim.adapters.reporting import Log

LINK_GRACE_SECONDS: Final = 3.0
"""So long a server that is needed may be away before the process says that it doesn't serve: a restart or a failover."""
LINKS_LOOK_SECONDS: Final = 0.25


def _unknown() -> str:
    return ""


class Link(Struct, frozen=True, kw_only=True):
    """A server. ``name``: as words. ``needed``: nothing is served without it, while without the registry leases end first.

    ``told``: its adapter writes the lines itself, as Kafka's does (services/cluster/library_logs.py).
    """

    name: str
    stands: Callable[[], bool]
    why: Callable[[], str] = _unknown
    """What was the matter last; "" where nobody knows."""
    needed: bool = True
    told: bool = False


class Links:
    """``look`` on the event loop, as often as you like; it takes the loop's time from ``now``."""

    def __init__(self, now: Callable[[], float], log: Log) -> None:
        self._now = now
        self._log = log
        self._links: tuple[Link, ...] = ()
        self._lost_at: dict[str, float] = {}
        self._looked_at: float | None = None

    def watch(self, links: tuple[Link, ...]) -> None:
        """From now on; they stand, or nobody would be there to look at them."""
        self._links = links

    def look(self) -> str:
        """Who has been away for too long, as words; empty when everything needed is there."""
        now = self._now()
        if self._looked_at is None or now - self._looked_at >= LINKS_LOOK_SECONDS:
            self._looked_at = now
            for link in self._links:
                self._judge(link, now)
        return ", ".join(
            f"{link.name} is out of reach for {now - self._lost_at[link.name]:.0f} s"
            for link in self._links
            if link.needed and now - self._lost_at.get(link.name, now) >= LINK_GRACE_SECONDS
        )

    def _judge(self, link: Link, now: float) -> None:
        stands, lost_at = link.stands(), self._lost_at.get(link.name)
        if stands == (lost_at is None):
            return
        if lost_at is None:
            self._lost_at[link.name] = now
            if not link.told:
                self._log("warning", "connection lost", {"to": link.name, "why": link.why()})
            return
        del self._lost_at[link.name]
        if not link.told:
            away = round(now - lost_at, 1)
            self._log("info", "connection back", {"to": link.name, "away_seconds": away})
