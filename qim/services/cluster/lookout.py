"""What a process of a cluster looks at four times a second: whether it serves, who it leans on, who is behind it.

What changes is a line in the log; what is missing is at /readyz. That is asked on another thread and must walk no machine's
state, so the look is taken on the event loop and its words are kept.
"""

from collections.abc import Callable

from qim.adapters.reporting import Log
from qim.services.cluster.adapters import Opened
from qim.services.cluster.behind import OwnersBehind
from qim.services.hosting import Hosting
from qim.services.links import Links
from qim.services.roles import SERVES, ServiceRole


class Lookout:
    """``begin`` once machines are hosted; then ``own`` is what they don't serve yet, ``all_round`` that and the rest."""

    def __init__(self, role: ServiceRole, now: Callable[[], float], log: Log) -> None:
        self._role = role
        self._now = now
        self._log = log
        self._links = Links(now, log)
        self._behind: OwnersBehind | None = None
        self._hosting: Hosting | None = None
        self._served = 0

    def begin(self, opened: Opened, hosting: Hosting) -> None:
        """From now on."""
        self._hosting = hosting
        self._links.watch(tuple(opened.links))
        if self._role is ServiceRole.GATEWAY:
            parameters = hosting.deployment.parameters
            self._behind = OwnersBehind(opened.registry, parameters, self._now)

    def own(self) -> str:
        """What of its shards isn't open, as words: a start waits for this alone, so that no order of starts matters."""
        hosting = self._hosting
        assert hosting is not None, "begun"
        if self._role in SERVES and not hosting.knows_peers():
            return "the other processes of this role are not known yet"
        return hosting.not_serving()

    def all_round(self) -> str:
        """Everything that keeps it from serving, as words. Changes are told here."""
        self._tell_of_shards()
        behind = "" if self._behind is None else self._behind.look()
        return ", ".join(filter(None, (self.own(), self._links.look(), behind)))

    def _tell_of_shards(self) -> None:
        assert self._hosting is not None, "begun"
        serving = self._hosting.serving(self._role)
        if serving != self._served:
            event = "shards opened" if serving > self._served else "shards closed"
            self._log("info", event, {"serving": serving, "before": self._served})
            self._served = serving
