"""Whether anybody serves what a gateway asks for: one writer shard and one mailbox shard with a live owner, at least.

A gateway learns owners when clients ask (core/gateway/owners.py) and keeps them; who asks nothing knows nobody. So the
registry is asked here: one lease of each role, the next number where nobody holds it.
"""

from collections.abc import Callable
from typing import Any, Final

from qim.core.contract.params import Parameters
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.services.roles import SERVES, ServiceRole, resources
from qim.services.routing import Port

OWNER_GRACE_SECONDS: Final = 5.0
"""So long the registry may name nobody before the gateway says that it doesn't serve: every shard may be on its way elsewhere.

A registry that doesn't answer names nobody's end: owners serve on for as long as their leases last."""
OWNER_ASK_SECONDS: Final = 2.0
"""Between two questions about a shard that has an owner."""
BEHIND: Final = {ServiceRole.WRITER: Role.WRITER, ServiceRole.MAILBOX: Role.MAILBOX}


class _Search:
    """One role's."""

    def __init__(self) -> None:
        self.number = 0
        self.asking = False
        self.found_at: float | None = None
        self.none_since: float | None = None


class OwnersBehind:
    """``look`` on the event loop: it asks where it is time to, and judges by what was answered."""

    def __init__(self, registry: Port, parameters: Parameters, now: Callable[[], float]) -> None:
        self._registry = registry
        self._now = now
        self._counts = {role: resources(role, parameters) for role in BEHIND}
        self._searches = {role: _Search() for role in BEHIND}

    def look(self) -> str:
        """Whose owners nobody knows, as words; empty where there is one of each."""
        now, missing = self._now(), []
        for role, search in self._searches.items():
            found_at, none_since = search.found_at, search.none_since
            due = found_at is None or now - found_at >= OWNER_ASK_SECONDS
            if not search.asking and (due or none_since is not None):
                self._ask(role, search)
            gone = none_since is not None and now - none_since >= OWNER_GRACE_SECONDS
            if found_at is None or gone:
                missing.append(f"no owner of {SERVES[role]} is known")
        return ", ".join(missing)

    def _ask(self, role: ServiceRole, search: _Search) -> None:
        search.asking = True

        def answered(answer: Any) -> None:
            search.asking = False
            if not isinstance(answer, LeaseRead):
                return
            if answer.address:
                search.found_at, search.none_since = self._now(), None
            else:
                search.none_since = self._now() if search.none_since is None else search.none_since
                search.number = (search.number + 1) % self._counts[role]

        resource = Resource(role=BEHIND[role], number=search.number)
        self._registry.submit(ReadLease(op=0, resource=resource), answered)
