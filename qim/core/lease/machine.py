"""LeaseKeeper: wishes, takes, renews and gives back the leases of one process (pipeline.md §0, "Leases are for liveness").

Which resources it wishes for is rendezvous hashing over the announced peers of a role; who gets them the registry
decides. Validity is ``sent + ttl - margin``, counted from when the grant or renewal was SENT, so that no slow answer can
lengthen it. The keeper does NOT make anything safe: safety rests on fences, barriers and claims; and it never tells a
machine about a lease whose validity has run out.

The keeper as a whole (a resource's own states stand in lease.py):

    new --Started--> announcing --Peers--> wishing --Granted, and renewed in time--> holding
    any --DrainRequested--> draining: wishes for nothing, gives back, withdraws --answered--> idle
"""

from collections.abc import Sequence
from typing import assert_never

from qim.core.contract.routing import rendezvous
from qim.core.lease.lease import Lease, LeaseState, release
from qim.core.lease.orders import (
    AcquireSent,
    AnnounceSent,
    Orders,
    RaiseSent,
    ReleaseSent,
    RenewSent,
)
from qim.core.lease.vocabulary import WISHES_MAX, LeaseConfig, LeaseEffect, LeaseEvent
from qim.core.machine import Choose, Ms
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, Started
from qim.core.ports.observe import Gauge
from qim.core.ports.registry import (
    Announce,
    Denied,
    EpochRaised,
    Granted,
    LeaseFreed,
    LeaseTaken,
    Peers,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)


class LeaseKeeper:
    """Hosted beside the machines whose leases it keeps; see the module's docstring for its states and what it is not."""

    def __init__(self, config: LeaseConfig, *, choose: Choose) -> None:
        assert config.renew_ms < config.ttl_ms - config.margin_ms, config
        assert sum(count for _, count in config.roles) + len(config.pinned) <= WISHES_MAX
        self.config = config
        self.leases: dict[Resource, Lease] = {}
        self._orders = Orders()
        self._choose = choose
        self._wall = 0
        self._started_at: Ms = 0
        self._now: Ms = 0
        self._running = False
        self._draining = False
        self._renew_at: Ms = 0
        self._announce_at: Ms = 0
        self._renewing = False
        self._peers: dict[Role, tuple[str, ...]] = {}
        for resource in config.pinned:
            self._wish(resource)

    def step(self, now: Ms, events: Sequence[LeaseEvent]) -> list[LeaseEffect]:
        """Take registry answers and wishes, give registry requests and facts for the local machines."""
        self._now = max(self._now, now)
        for event in events:
            match event:
                case Peers() | Renewed() | Granted() | Denied() | EpochRaised() | Released():
                    self._on_answer(event)
                case FreshEpochWanted():
                    self._on_fresh_epoch_wanted(event)
                case LeaseFreed():
                    self._on_freed(event)
                case LeaseTaken():
                    if event.owner != self.config.owner:
                        self._seen_elsewhere(event.resource, event.address)
                case Failed() | Unknown():
                    self._on_no_answer(event)
                case Started():
                    self._on_started(event)
                case DrainRequested():
                    self._on_drain()
                case _:
                    assert_never(event)
        if self._running:
            for lease in self.leases.values():
                lease.expire(self._now)
            self._announce()
            self._renew()
            self._acquire()
        return self._orders.taken()

    def deadline(self) -> Ms | None:
        """The next renewal, announcement, retry or end of a validity."""
        if not self._running:
            return None
        due = [self._announce_at]
        if not self._renewing:
            due.append(self._renew_at)
        # Where no more may be asked for, an answer is what is waited for: what is due before would have us woken for nothing.
        room = self._room() and not self._draining
        for lease in self.leases.values():
            if lease.told:
                due.append(lease.valid_until)
            if room and lease.state is LeaseState.FREE and lease.wished:
                due.append(lease.retry_at)
        return min(due)

    def check(self) -> None:
        """Assert what must hold between steps."""
        held = 0
        for lease in self.leases.values():
            if lease.state is LeaseState.HELD:
                held += 1
                assert lease.told, lease.resource
                assert lease.epoch > 0, lease.resource
        assert self._orders.acquiring <= self.config.acquires_inflight_max
        assert not (self._draining and held), "a drained keeper holds nothing"

    def idle(self) -> bool:
        """Nothing in flight that a graceful stop should wait for: no lease, no grant to come, nothing to give back."""
        return not any(lease.told for lease in self.leases.values()) and all(
            isinstance(sent, RenewSent | RaiseSent) for sent in self._orders.pending.values()
        )

    def gauges(self, now: Ms) -> list[Gauge]:
        """Leases wished for, held, and when the first of each role ends, by a driver that is asked for them."""
        out: list[Gauge] = []
        by_role: dict[Role, list[Lease]] = {}
        for lease in self.leases.values():
            by_role.setdefault(lease.resource.role, []).append(lease)
        for role, leases in by_role.items():
            held = [lease for lease in leases if lease.state is LeaseState.HELD]
            wished = sum(lease.wished for lease in leases)
            out.append(Gauge(name="leases_wished", value=wished, label=role))
            out.append(Gauge(name="leases_held", value=len(held), label=role))
            if held:
                left = max(0, min(lease.valid_until for lease in held) - now)
                out.append(Gauge(name="lease_valid_ms", value=left, label=role))
        return out

    def holds(self, resource: Resource, epoch: int, now: Ms) -> bool:
        """The driver's check as it hands an effect to I/O: held under exactly this epoch and still valid."""
        lease = self.leases.get(resource)
        return lease is not None and lease.holds(epoch, now)

    def knows_peers(self, role: Role) -> bool:
        """An announcement was answered: what is wished for of the role is known."""
        return role in self._peers

    # ------------------------------------------------------------ events

    def _on_started(self, event: Started) -> None:
        self._running = True
        self._wall = event.wall
        self._started_at = self._now
        self._announce_at = self._now
        self._renew_at = self._now + self.config.renew_ms

    def _on_answer(
        self, event: Granted | Denied | Renewed | Released | EpochRaised | Peers
    ) -> None:
        sent = self._orders.settled(event.op)
        match event, sent:
            case Peers(), AnnounceSent() | None:
                self._on_peers(event)
            case Granted(), AcquireSent():
                wall = self._wall + self._now - self._started_at
                self.leases[sent.resource].granted(self._now, event, sent, wall)
            case Denied(), AcquireSent():
                self.leases[sent.resource].denied(self._now, event)
            case EpochRaised(), RaiseSent():
                self.leases[sent.resource].raised(self._now, sent)
            case Renewed(), RenewSent():
                self._on_renewed(event, sent)
            case Released(), ReleaseSent():
                pass
            case _, None:
                pass  # answered after we gave it up; the op was settled before
            case _:
                raise AssertionError(f"{event} answers {sent}")

    def _on_peers(self, event: Peers) -> None:
        owners = (
            event.owners
            if self.config.owner in event.owners
            else (*event.owners, self.config.owner)
        )
        if self._draining or self._peers.get(event.role) == owners:
            return
        self._peers[event.role] = owners
        unwished: list[Lease] = []
        for role, count in self.config.roles:
            if role is not event.role:
                continue
            for number in range(count):
                resource = Resource(role=role, number=number)
                wished = rendezvous(number, owners) == self.config.owner
                lease = self.leases.get(resource)
                if lease is None:
                    if wished:
                        self._wish(resource)
                    continue
                if lease.wished and not wished and lease.told:
                    unwished.append(lease)
                lease.wished = wished
        self._give_back(unwished)

    def _on_renewed(self, event: Renewed, sent: RenewSent) -> None:
        self._renewing = False
        self._renew_at = sent.sent + self.config.renew_ms
        lost = frozenset(event.lost)
        for resource, epoch in sent.leases:
            self.leases[resource].renewed(self._now, sent, epoch, lost=resource in lost)

    def _on_fresh_epoch_wanted(self, event: FreshEpochWanted) -> None:
        lease = self.leases.get(event.resource)
        if lease is None or not lease.told or self._draining:
            # The machine must not wait for ever for a lease that went away while it asked.
            self._orders.give(LeaseGone(resource=event.resource))
            return
        lease.want_fresh(self._now, event.above)

    def _on_freed(self, event: LeaseFreed) -> None:
        """What we were denied is free: no need to wait out what was told then."""
        self._seen_elsewhere(event.resource, "")
        lease = self.leases.get(event.resource)
        if lease is not None and lease.wished and lease.state is LeaseState.FREE:
            lease.retry_at = min(lease.retry_at, self._now)

    def _seen_elsewhere(self, resource: Resource, address: str) -> None:
        """So that the machine can say who serves what it doesn't; of what is ours only answers of the registry decide."""
        lease = self.leases.get(resource)
        ours = any(role is resource.role for role, _ in self.config.roles)
        if ours and (lease is None or not lease.told):
            self._orders.give(LeaseGone(resource=resource, owner_address=address))

    def _on_no_answer(self, event: Failed | Unknown) -> None:
        match self._orders.settled(event.op):
            case AcquireSent(resource=resource) as sent:
                self.leases[resource].acquire_unanswered(self._now, event, sent)
            case RaiseSent(resource=resource):
                self.leases[resource].raise_unanswered(self._now)
            case RenewSent():
                self._renewing = False
                self._renew_at = self._now + self.config.retry_ms
            case AnnounceSent():
                self._announce_at = min(self._announce_at, self._now + self.config.retry_ms)
            case ReleaseSent() | None:
                pass  # it runs out by itself

    def _on_drain(self) -> None:
        """Give back every lease and withdraw the announcements, so that the others need not wait for them to end."""
        if self._draining:
            return
        self._draining = True
        told = [lease for lease in self.leases.values() if lease.told]
        for lease in self.leases.values():
            lease.wished = False
        self._give_back(told)
        if self._running:
            for role, _ in self.config.roles:
                self._say(role, 0)

    # ------------------------------------------------------------ what is due

    def _announce(self) -> None:
        if self._now < self._announce_at:
            return
        self._announce_at = self._now + self.config.renew_ms
        if self._draining:
            return
        pending = self._orders.pending.values()
        asked = {sent.role for sent in pending if isinstance(sent, AnnounceSent)}
        for role, _ in self.config.roles:
            if role not in asked:
                self._say(role, self.config.ttl_ms)

    def _say(self, role: Role, ttl_ms: Ms) -> None:
        self._orders.give(
            Announce(
                op=self._orders.op(AnnounceSent(role=role)),
                role=role,
                owner=self.config.owner,
                address=self.config.address,
                ttl_ms=ttl_ms,
            )
        )

    def _renew(self) -> None:
        if self._renewing or self._now < self._renew_at:
            return
        held = tuple(
            (lease.resource, lease.epoch)
            for lease in self.leases.values()
            if lease.state is LeaseState.HELD
        )
        if not held:
            self._renew_at = self._now + self.config.renew_ms
            return
        self._renewing = True
        self._orders.give(
            Renew(
                op=self._orders.op(RenewSent(leases=held, sent=self._now)),
                owner=self.config.owner,
                leases=held,
                ttl_ms=self.config.ttl_ms,
            )
        )

    def _acquire(self) -> None:
        if self._draining:
            return
        for lease in self.leases.values():
            if not self._room():
                return
            if lease.state is LeaseState.FREE and lease.wished and self._now >= lease.retry_at:
                lease.next_epoch_step(self._now)

    # ------------------------------------------------------------ inside

    def _room(self) -> bool:
        return self._orders.acquiring < self.config.acquires_inflight_max

    def _wish(self, resource: Resource) -> None:
        self.leases[resource] = Lease(
            resource, self.config, self._orders, self._choose, retry_at=self._now
        )

    def _give_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            lease.let_go()
        if leases:
            release(self._orders, self.config, leases)
