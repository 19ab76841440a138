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
"""So long nobody may be found before the gateway says that it doesn't serve: every shard may be on its way elsewhere."""
OWNER_ASK_SECONDS: Final = 2.0
"""Between two questions about a shard that has an owner."""
BEHIND: Final = {ServiceRole.WRITER: Role.WRITER, ServiceRole.MAILBOX: Role.MAILBOX}


class _Search:
    """One role's."""

    def __init__(self) -> None:
        self.number = 0
        self.asking = False
        self.found_at: float | None = None


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
            age = None if search.found_at is None else now - search.found_at
            if not search.asking and (age is None or age >= OWNER_ASK_SECONDS):
                self._ask(role, search)
            if age is None or age >= OWNER_GRACE_SECONDS:
                missing.append(f"no owner of {SERVES[role]} is known")
        return ", ".join(missing)

    def _ask(self, role: ServiceRole, search: _Search) -> None:
        search.asking = True

        def answered(answer: Any) -> None:
            search.asking = False
            if not isinstance(answer, LeaseRead):
                return
            if answer.address:
                search.found_at = self._now()
            else:
                search.number = (search.number + 1) % self._counts[role]

        resource = Resource(role=BEHIND[role], number=search.number)
        self._registry.submit(ReadLease(op=0, resource=resource), answered)
