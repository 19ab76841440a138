"""A process as far as leases go: EtcdRegistry and LeaseKeeper on the runtime, and what its machines were told when."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, get_args

from qim.adapters.etcd import EtcdRegistry
from qim.adapters.wall_clock import wall_ms
from qim.core.lease import LeaseConfig, LeaseKeeper
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.registry import RegistryRequest, Resource, Role
from qim.services.runtime import Hosted, Runtime, monotonic_ms, routes_for

SECONDS_MAX = 120.0
"""A test that waits longer has failed."""
ENDS_MS = 2_000
"""TTL of leases whose end a test waits for."""
STAYS_MS = 60_000
"""TTL of leases that only an owner who gives them back loses, however slow the machine is."""
RENEW_MS = 400
MARGIN_MS = 500


class Unobserved:
    """Takes observations and forgets them, but not a machine that died."""

    def __init__(self) -> None:
        self.dead: list[BaseException] = []

    def count(self, name: str, value: int, label: str) -> None: ...

    def gauge(self, name: str, value: int, label: str) -> None: ...

    def observe(self, name: str, seconds: float, label: str) -> None: ...

    def timer(self, name: str, label: str) -> Callable[[float], None]:
        return lambda seconds: None

    def sample(self, *args: Any, **named: Any) -> None: ...

    def stage(self, machine: str, trace_id: int, stage: str, detail: str, sent_at: int) -> None: ...

    def violation(self, machine: str, check: str, detail: str) -> None: ...

    def warned(self, machine: str, what: str, detail: str) -> None: ...

    def died(self, machine: str, error: BaseException) -> None:
        self.dead.append(error)


class LeaseProcess:
    """Wishes for ``count`` writer shards; ``held`` is what its machines believe now, ``told`` all they were ever told in order."""

    def __init__(
        self,
        owner: str,
        registry: EtcdRegistry,
        count: int,
        changed: asyncio.Event,
        others: "Sequence[LeaseProcess]",
        *,
        watched: bool = True,
        ttl_ms: int = ENDS_MS,
    ) -> None:
        self.owner = owner
        self.registry = registry
        self.held: dict[Resource, int] = {}
        self.told: list[LeaseHeld | LeaseGone] = []
        self.elsewhere: dict[Resource, str] = {}
        """Whom its machines would name in a NOT_OWNER."""
        self.doubled: list[str] = []
        """Leases that it was told of while another process might still have used them."""
        self._others = others
        self._changed = changed
        self._observer = Unobserved()
        self._runtime = Runtime(asyncio.get_running_loop(), self._observer)
        config = LeaseConfig(
            owner=owner,
            address=f"{owner}:1",
            roles=((Role.WRITER, count),),
            ttl_ms=ttl_ms,
            renew_ms=RENEW_MS,
            margin_ms=MARGIN_MS,
            retry_ms=200,
        )
        self.keeper = LeaseKeeper(config, choose=lambda site, key: 0)
        routes = routes_for(get_args(RegistryRequest), self._asked)
        routes |= {LeaseHeld: self._heard, LeaseGone: self._heard}
        self._hosted = self._runtime.add("lease", self.keeper, routes)
        if watched:
            registry.watch(self._hosted.post)
        self._hosted.post(Started(address=owner, wall=wall_ms()))

    def _asked(self, effect: Any, hosted: Hosted) -> None:
        def answer(reply: Any) -> None:
            hosted.post(reply)
            # After the step that takes it.
            asyncio.get_running_loop().call_soon(self._changed.set)

        self.registry.submit(effect, answer)

    def _heard(self, effect: Any, _: Hosted) -> None:
        if isinstance(effect, LeaseGone) and effect.resource not in self.held:
            self.elsewhere[effect.resource] = effect.owner_address
            self._changed.set()
            return
        self.told.append(effect)
        match effect:
            case LeaseHeld():
                self.held[effect.resource] = effect.epoch
                for other in self._others:
                    if other is not self and other.may_use(effect.resource):
                        self.doubled.append(f"{effect} of {self.owner}, used by {other.owner}")
            case LeaseGone():
                self.held.pop(effect.resource, None)
        self._changed.set()

    def names(self, owners: dict[Resource, str]) -> bool:
        """A NOT_OWNER for any of these would name its owner."""
        return owners.items() <= self.elsewhere.items()

    def may_use(self, resource: Resource) -> bool:
        """What its driver would still hand to I/O (pipeline.md §0)."""
        epoch = self.held.get(resource, 0)
        return self.keeper.holds(resource, epoch, monotonic_ms())

    def holds_above(self, resource: Resource, epoch: int) -> bool:
        """Its machines believe to hold it under a higher epoch."""
        return self.held.get(resource, 0) > epoch

    def want_fresh(self, resource: Resource) -> None:
        """As a machine does after a reset of its store."""
        self._hosted.post(FreshEpochWanted(resource=resource))

    async def drain(self) -> None:
        """A graceful stop: until everything has been given back."""
        self._hosted.post(DrainRequested())
        await until(self._changed, lambda: not self._hosted.inbox and self.keeper.idle())
        await self.die()

    async def die(self) -> None:
        """The process ends and gives nothing back."""
        self._runtime.stop()
        assert not self._observer.dead, self._observer.dead
        await self.registry.close()


async def until(changed: asyncio.Event, reached: Callable[[], bool]) -> None:
    """Wait for facts that processes are told, until they add up."""
    async with asyncio.timeout(SECONDS_MAX):
        while not reached():
            changed.clear()
            await changed.wait()
