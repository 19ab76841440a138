"""The registry's fake: leases with epochs that only rise, barriers beside them, announcements.

Its clock is the world's. Ways to fail: answers lost (applied or not), unreachable from one process, a lease that expires
under its live owner, a reader that is shown yesterday (watch lag; never for the read that OPEN makes after OpenShard).
"""

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.registry import (
    BARRIERS_KEPT,
    Acquire,
    Announce,
    BarrierRegistered,
    Denied,
    EpochRaised,
    Granted,
    LeaseRead,
    Peers,
    RaiseEpoch,
    ReadLease,
    RegisterBarrier,
    RegistryReply,
    RegistryRequest,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)
from qim.sim.choice import TIEBREAK_SHIFT, Way, fault_level
from qim.sim.network import Cuts
from qim.sim.node import Host
from qim.sim.sites import REGISTRY

if TYPE_CHECKING:
    from qim.sim.world import World

REPLY_TIMEOUT_MS: Final = 2_000
LAG_MS: Final = 1_500


class Leased(Struct, kw_only=True):
    """What the registry knows of one resource; ``expires_at`` in world time."""

    epoch: int
    owner: str = ""
    address: str = ""
    expires_at: int = 0
    barriers: list[tuple[int, int]] = []
    seen_before: tuple[int, str, str] = (0, "", "")
    changed_at: int = 0


class Registry:
    """Applies requests as they arrive, one after the other."""

    name = "registry"

    def __init__(
        self, world: "World", cuts: Cuts, *, first_epoch: int, base_ms: int, spread_ms: int
    ) -> None:
        self.world = world
        self.cuts = cuts
        self.first_epoch = first_epoch
        self.way = Way(base_ms, spread_ms)
        self.leases: dict[Resource, Leased] = {}
        self.announced: dict[tuple[Role, str], int] = {}
        self.reply_lost = 0
        self.lagging = False
        self.counts: dict[str, int] = {}

    def request(self, host: Host, effect: RegistryRequest) -> None:
        """One completion comes back."""
        world = self.world
        draw = world.dice.draw(REGISTRY[type(effect)], host.identity)
        arrival = world.now + self.way.there(draw) + host.node.slow_ms
        world.at(arrival, draw >> TIEBREAK_SHIFT, self._arrive, (host, effect, draw, world.now))

    def _arrive(self, payload: tuple[Host, RegistryRequest, int, int]) -> None:
        host, effect, draw, sent = payload
        world = self.world
        if self.cuts and self.cuts.between(host.node.name, self.name):
            self._count("registry.cut")
            failed = Failed(op=effect.op, why=FailReason.UNREACHABLE)
            world.at(sent + REPLY_TIMEOUT_MS, 0, host.take, failed)
            return
        answer = self._apply(host, effect)
        lost = fault_level(draw) < self.reply_lost
        if lost or (self.cuts and self.cuts.between(self.name, host.node.name)):
            self._count("registry.reply_lost")
            world.at(sent + REPLY_TIMEOUT_MS, 0, host.take, Unknown(op=effect.op))
            return
        world.at(world.now + self.way.back(draw), draw >> TIEBREAK_SHIFT, host.take, answer)

    def _apply(self, host: Host, effect: RegistryRequest) -> RegistryReply:
        kind = type(effect)
        if kind is Renew:
            return self._renew(effect)  # type: ignore[arg-type]
        if kind is ReadLease:
            return self._read(host, effect)  # type: ignore[arg-type]
        if kind is Announce:
            return self._announce(effect)  # type: ignore[arg-type]
        if kind is Acquire:
            return self._acquire(effect)  # type: ignore[arg-type]
        if kind is RegisterBarrier:
            return self._register(effect)  # type: ignore[arg-type]
        if kind is RaiseEpoch:
            return self._raise(effect)  # type: ignore[arg-type]
        return self._release(effect)  # type: ignore[arg-type]

    def lease(self, resource: Resource) -> Leased:
        """The entry of a resource, made when first named."""
        lease = self.leases.get(resource)
        if lease is None:
            lease = self.leases[resource] = Leased(epoch=self.first_epoch, barriers=[])
        return lease

    # ------------------------------------------------------------ requests

    def _acquire(self, effect: Acquire) -> Granted | Denied:
        lease = self.lease(effect.resource)
        now = self.world.now
        if lease.owner and lease.owner != effect.owner and lease.expires_at > now:
            return Denied(
                op=effect.op,
                resource=effect.resource,
                owner=lease.owner,
                remaining_ms=lease.expires_at - now,
            )
        self._remember(lease)
        lease.epoch += 1
        lease.owner, lease.address = effect.owner, effect.address
        lease.expires_at = now + effect.ttl_ms
        self.world.trace.entries.append(
            (now, "lease", effect.resource.role, effect.resource.number, effect.owner, lease.epoch)
        )
        epoch, offset = max(lease.barriers, default=(0, -1))
        return Granted(
            op=effect.op,
            resource=effect.resource,
            epoch=lease.epoch,
            barrier_epoch=epoch,
            barrier_offset=offset,
        )

    def _renew(self, effect: Renew) -> Renewed:
        now = self.world.now
        lost: list[Resource] = []
        for resource, epoch in effect.leases:
            lease = self.lease(resource)
            held = lease.owner == effect.owner and lease.epoch == epoch and lease.expires_at > now
            if held:
                lease.expires_at = now + effect.ttl_ms
            else:
                lost.append(resource)
        return Renewed(op=effect.op, lost=tuple(lost))

    def _release(self, effect: Release) -> Released:
        for resource, epoch in effect.leases:
            lease = self.lease(resource)
            if lease.owner == effect.owner and lease.epoch == epoch:
                self._remember(lease)
                lease.owner = lease.address = ""
                lease.expires_at = 0
        return Released(op=effect.op)

    def _raise(self, effect: RaiseEpoch) -> EpochRaised:
        lease = self.lease(effect.resource)
        lease.epoch = max(lease.epoch, effect.above)
        return EpochRaised(op=effect.op)

    def _register(self, effect: RegisterBarrier) -> BarrierRegistered:
        lease = self.lease(effect.resource)
        if (effect.epoch, effect.offset) not in lease.barriers:
            lease.barriers.append((effect.epoch, effect.offset))
        below = sorted(barrier for barrier in lease.barriers if barrier[1] < effect.log_start)
        if len(below) > BARRIERS_KEPT:
            least = below[-BARRIERS_KEPT]
            lease.barriers = [barrier for barrier in lease.barriers if barrier >= least]
        return BarrierRegistered(op=effect.op)

    def _read(self, host: Host, effect: ReadLease) -> LeaseRead:
        lease = self.lease(effect.resource)
        now = self.world.now
        epoch, owner, address = lease.epoch, lease.owner, lease.address
        if lease.expires_at <= now:
            owner = address = ""
        if self.lagging and host.node.role == "gateway" and now - lease.changed_at < LAG_MS:
            self._count("registry.lagged")
            epoch, owner, address = lease.seen_before
        below = [entry for entry in lease.barriers if entry[1] < effect.barriers_below]
        barrier_epoch, barrier_offset = max(below, default=(0, -1))
        return LeaseRead(
            op=effect.op,
            resource=effect.resource,
            epoch=epoch,
            owner=owner,
            address=address,
            barrier_epoch=barrier_epoch,
            barrier_offset=barrier_offset,
        )

    def _announce(self, effect: Announce) -> Peers:
        now = self.world.now
        self.announced[effect.role, effect.owner] = now + effect.ttl_ms
        owners = sorted(
            owner
            for (role, owner), until in self.announced.items()
            if role is effect.role and until > now
        )
        return Peers(op=effect.op, role=effect.role, owners=tuple(owners))

    # ------------------------------------------------------------ what faults do

    def expire(self, resource: Resource) -> None:
        """The lease runs out under its live owner, who does not know yet."""
        lease = self.lease(resource)
        if lease.owner:
            self._count("registry.expired_under_owner")
            self._remember(lease)
            lease.expires_at = self.world.now

    def set_back(self, resource: Resource, epochs: int) -> None:
        """An older copy is put back: the newest grants of a resource never were, nor what was registered under them."""
        lease = self.lease(resource)
        forgotten = min(epochs, lease.epoch - self.first_epoch)
        if not forgotten:
            return
        self._count("registry.set_back")
        self._remember(lease)
        lease.epoch -= forgotten
        lease.owner = lease.address = ""
        lease.expires_at = self.world.now
        lease.barriers = [barrier for barrier in lease.barriers if barrier[0] <= lease.epoch]

    def usurp(self, resource: Resource) -> int:
        """Somebody is granted the lease and gone in the same moment; the epoch it had."""
        self._count("registry.usurped")
        lease = self.lease(resource)
        self._remember(lease)
        lease.epoch += 1
        lease.owner = lease.address = ""
        lease.expires_at = self.world.now
        return lease.epoch

    def _remember(self, lease: Leased) -> None:
        lease.seen_before = (lease.epoch, lease.owner, lease.address)
        lease.changed_at = self.world.now

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
