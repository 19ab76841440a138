"""Who owns a shard, as the registry said lately (contract.md, Routing: learnt, never computed).

A cached address is a guess that costs one refused request when it is wrong. "Nobody" is never cached.
"""

from qim.core.gateway.context import NodeContext, OwnerLookup
from qim.core.machine import Ms
from qim.core.ports.registry import ReadLease, Resource


class Owners:
    """A bounded cache with one lookup in flight a resource; it sends nothing to anybody it finds."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._known: dict[Resource, tuple[str, Ms]] = {}
        self._waiting: dict[Resource, list[int]] = {}
        self.waiters = 0

    def address(self, resource: Resource) -> str | None:
        """The owner's address if it is known and fresh."""
        known = self._known.get(resource)
        if known is None or self._context.now >= known[1]:
            return None
        return known[0]

    def known(self) -> int:
        """Owners in the cache."""
        return len(self._known)

    def wait(self, resource: Resource, rid: int) -> bool:
        """Let request ``rid`` wait for a lookup, started if none is under way. False: too many wait already."""
        if self.waiters >= self._context.config.owner_waiters_max:
            return False
        self.waiters += 1
        waiting = self._waiting.get(resource)
        if waiting is not None:
            waiting.append(rid)
            return True
        self._waiting[resource] = [rid]
        op = self._context.expect(OwnerLookup(resource=resource))
        self._context.order(ReadLease(op=op, resource=resource))
        return True

    def resolved(self, resource: Resource, address: str) -> list[int]:
        """The lookup's answer ("": nobody, or it failed); the requests that waited for it, in order."""
        if address:
            self.learn(resource, address)
        rids = self._waiting.pop(resource)
        self.waiters -= len(rids)
        return rids

    def learn(self, resource: Resource, address: str) -> None:
        """Remember an owner for owner_ttl_ms; the longest known goes when there are too many."""
        self._known.pop(resource, None)
        if len(self._known) >= self._context.config.owners_max:
            del self._known[next(iter(self._known))]
        self._known[resource] = (address, self._context.now + self._context.config.owner_ttl_ms)

    def forget(self, resource: Resource, address: str) -> None:
        """It isn't, or doesn't answer: ask the registry the next time, unless another is known already."""
        known = self._known.get(resource)
        if known is not None and known[0] == address:
            del self._known[resource]

    def check(self) -> None:
        """The count of waiters is exact and bounded."""
        assert self.waiters == sum(map(len, self._waiting.values()))
        assert self.waiters <= self._context.config.owner_waiters_max
        assert len(self._known) <= self._context.config.owners_max
