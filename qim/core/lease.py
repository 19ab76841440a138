"""LeaseKeeper: wishes, takes, renews and gives back the leases of one process (pipeline.md §0, "Leases are for liveness").

Which resources it wishes for is rendezvous hashing over the announced peers of a role; who gets them the registry
decides. Validity is ``sent + ttl - margin``, counted from when the grant or renewal was SENT, so that no slow answer can
lengthen it. The keeper does NOT make anything safe: safety rests on fences, barriers and claims; and it never tells a
machine about a lease whose validity has run out.

A resource's states:

    FREE --wished, due--> ACQUIRING --Granted--> HELD --FreshEpochWanted--> RAISING --EpochRaised--> ACQUIRING
    FREE <--Denied, Failed-- ACQUIRING           HELD --FreshEpochWanted (nothing to raise)--> ACQUIRING
    FREE <--validity over, lost in a Renewed, no longer wished, drained-- HELD

Unknown of an Acquire or RaiseEpoch: asked again, since each grant is a fresh epoch and a raise is idempotent.
"""

from collections.abc import Sequence
from typing import assert_never

from qim.core.contract.routing import rendezvous
from qim.core.lease_pending import (
    AcquireSent,
    AnnounceSent,
    LeasePending,
    RaiseSent,
    ReleaseSent,
    RenewSent,
)
from qim.core.lease_vocabulary import (
    WISHES_MAX,
    Lease,
    LeaseConfig,
    LeaseEffect,
    LeaseEvent,
    LeaseState,
)
from qim.core.machine import Choose, Ms
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.observe import Count, Gauge
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Denied,
    EpochRaised,
    Granted,
    LeaseFreed,
    LeaseTaken,
    Peers,
    RaiseEpoch,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)

__all__ = ["LeaseConfig", "LeaseEffect", "LeaseEvent", "LeaseKeeper", "LeaseState"]


class LeaseKeeper:
    """Hosted beside the machines whose leases it keeps; see the module's docstring for its states and what it is not."""

    def __init__(self, config: LeaseConfig, *, choose: Choose) -> None:
        assert config.renew_ms < config.ttl_ms - config.margin_ms, config
        assert sum(count for _, count in config.roles) + len(config.pinned) <= WISHES_MAX
        self.config = config
        self.leases: dict[Resource, Lease] = {}
        self.pending: dict[int, LeasePending] = {}
        self._choose = choose
        self._op = 0
        self._wall = 0
        self._started_at: Ms = 0
        self._now: Ms = 0
        self._running = False
        self._draining = False
        self._renew_at: Ms = 0
        self._announce_at: Ms = 0
        self._renewing = False
        self._acquiring = 0
        self._peers: dict[Role, tuple[str, ...]] = {}
        for resource in config.pinned:
            self.leases[resource] = Lease(resource=resource, wished=True)

    def step(self, now: Ms, events: Sequence[LeaseEvent]) -> list[LeaseEffect]:
        """Take registry answers and wishes, give registry requests and facts for the local machines."""
        self._now = max(self._now, now)
        out: list[LeaseEffect] = []
        for event in events:
            match event:
                case Peers() | Renewed() | Granted() | Denied() | EpochRaised() | Released():
                    self._on_answer(event, out)
                case FreshEpochWanted():
                    self._on_fresh_epoch_wanted(event, out)
                case LeaseFreed():
                    self._on_freed(event, out)
                case LeaseTaken():
                    if event.owner != self.config.owner:
                        self._seen_elsewhere(event.resource, event.address, out)
                case Failed() | Unknown():
                    self._on_no_answer(event, out)
                case Started():
                    self._on_started(event)
                case DrainRequested():
                    self._on_drain(out)
                case _:
                    assert_never(event)
        if self._running:
            self._expire(out)
            self._announce(out)
            self._renew(out)
            self._acquire(out)
        return out

    def deadline(self) -> Ms | None:
        """The next renewal, announcement, retry or end of a validity."""
        if not self._running:
            return None
        due = [self._announce_at]
        if not self._renewing:
            due.append(self._renew_at)
        # Where no more may be asked for, an answer is what is waited for: what is due before would have us woken for nothing.
        room = self._acquiring < self.config.acquires_inflight_max and not self._draining
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
                assert lease.told, lease
                assert lease.epoch > 0, lease
        assert self._acquiring <= self.config.acquires_inflight_max
        assert not (self._draining and held), "a drained keeper holds nothing"

    def idle(self) -> bool:
        """Nothing in flight that a graceful stop should wait for: no lease, no grant to come, nothing to give back."""
        return not any(lease.told for lease in self.leases.values()) and all(
            isinstance(sent, RenewSent | RaiseSent) for sent in self.pending.values()
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
        return (
            lease is not None
            and lease.state is LeaseState.HELD
            and lease.epoch == epoch
            and now < lease.valid_until
        )

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
        self,
        event: Granted | Denied | Renewed | Released | EpochRaised | Peers,
        out: list[LeaseEffect],
    ) -> None:
        sent = self.pending.pop(event.op, None)
        match event, sent:
            case Peers(), AnnounceSent() | None:
                self._on_peers(event, out)
            case Renewed(), RenewSent():
                self._on_renewed(event, sent, out)
            case Granted(), AcquireSent():
                self._on_granted(event, sent, out)
            case Denied(), AcquireSent():
                self._on_denied(event, out)
            case EpochRaised(), RaiseSent():
                self._on_raised(sent, out)
            case Released(), ReleaseSent():
                pass
            case _, None:
                pass  # answered after we gave it up; the op was settled before
            case _:
                raise AssertionError(f"{event} answers {sent}")

    def _on_raised(self, sent: RaiseSent, out: list[LeaseEffect]) -> None:
        lease = self.leases[sent.resource]
        lease.above = 0 if lease.above <= sent.above else lease.above
        if lease.wished:
            self._next_epoch_step(lease, out)
        else:
            self._gone(lease, out)

    def _on_granted(self, event: Granted, sent: AcquireSent, out: list[LeaseEffect]) -> None:
        self._acquiring -= 1
        lease = self.leases[sent.resource]
        if event.epoch <= lease.epoch:
            # Set back, from a backup: it must not give out again what fences and barriers have seen.
            lease.above = max(lease.above, lease.epoch)
            out.append(Count(name="lease_registry_set_back", label=sent.resource.role))
        # A barrier registered since, by an owner whose grant it forgot, is visible as well.
        lease.above = max(lease.above, event.barrier_epoch)
        lease.epoch = event.epoch
        lease.valid_until = sent.sent + self.config.ttl_ms - self.config.margin_ms
        if not lease.wished:
            self._gone(lease, out)
            self._release((lease,), out)
            return
        if lease.above >= event.epoch:
            self._next_epoch_step(lease, out)
            return
        lease.above = 0
        if self._now >= lease.valid_until:
            out.append(Count(name="lease_grant_too_late", label=sent.resource.role))
            self._gone(lease, out)
            lease.retry_at = self._now
            return
        lease.state = LeaseState.HELD
        lease.told = True
        out.append(
            LeaseHeld(
                resource=lease.resource,
                epoch=event.epoch,
                barrier_epoch=event.barrier_epoch,
                barrier_offset=event.barrier_offset,
                wall=self._wall + self._now - self._started_at,
            )
        )

    def _on_denied(self, event: Denied, out: list[LeaseEffect]) -> None:
        self._acquiring -= 1
        lease = self.leases[event.resource]
        self._gone(lease, out)
        wait = min(max(event.remaining_ms, self.config.retry_ms), self.config.renew_ms)
        lease.retry_at = self._now + wait + self._jitter("lease.denied", lease)

    def _on_renewed(self, event: Renewed, sent: RenewSent, out: list[LeaseEffect]) -> None:
        self._renewing = False
        self._renew_at = sent.sent + self.config.renew_ms
        lost = frozenset(event.lost)
        for resource, epoch in sent.leases:
            lease = self.leases[resource]
            # An answer about an epoch we have already replaced says nothing about the present one.
            if lease.state is not LeaseState.HELD or lease.epoch != epoch:
                continue
            if resource in lost:
                out.append(Count(name="lease_lost", label=resource.role))
                self._gone(lease, out)
                lease.retry_at = self._now
            else:
                lease.valid_until = sent.sent + self.config.ttl_ms - self.config.margin_ms

    def _seen_elsewhere(self, resource: Resource, address: str, out: list[LeaseEffect]) -> None:
        """So that the machine can say who serves what it doesn't; of what is ours only answers of the registry decide."""
        lease = self.leases.get(resource)
        ours = any(role is resource.role for role, _ in self.config.roles)
        if ours and (lease is None or not lease.told):
            out.append(LeaseGone(resource=resource, owner_address=address))

    def _on_freed(self, event: LeaseFreed, out: list[LeaseEffect]) -> None:
        """What we were denied is free: no need to wait out what was told then."""
        self._seen_elsewhere(event.resource, "", out)
        lease = self.leases.get(event.resource)
        if lease is not None and lease.wished and lease.state is LeaseState.FREE:
            lease.retry_at = min(lease.retry_at, self._now)

    def _on_peers(self, event: Peers, out: list[LeaseEffect]) -> None:
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
                        self.leases[resource] = Lease(
                            resource=resource, wished=True, retry_at=self._now
                        )
                    continue
                if lease.wished and not wished and lease.told:
                    unwished.append(lease)
                lease.wished = wished
        self._give_back(unwished, out)

    def _on_fresh_epoch_wanted(self, event: FreshEpochWanted, out: list[LeaseEffect]) -> None:
        lease = self.leases.get(event.resource)
        if lease is None or not lease.told or self._draining:
            # The machine must not wait for ever for a lease that went away while it asked.
            out.append(LeaseGone(resource=event.resource))
            return
        lease.above = max(lease.above, event.above)
        if lease.state is LeaseState.HELD:
            self._next_epoch_step(lease, out)

    def _on_no_answer(self, event: Failed | Unknown, out: list[LeaseEffect]) -> None:
        match self.pending.pop(event.op, None):
            case AcquireSent(resource=resource) as sent:
                self._acquiring -= 1
                lease = self.leases[resource]
                if not lease.wished:
                    self._gone(lease, out)
                    if isinstance(event, Unknown) and not sent.only_to_release:
                        # It may stand under an epoch we were not told; a fresh one can be named in a Release.
                        self._ask(lease, out, only_to_release=True)
                    return
                lease.state = LeaseState.FREE
                lease.retry_at = self._now + self._jitter("lease.acquire", lease)
            case RaiseSent(resource=resource):
                lease = self.leases[resource]
                lease.state = LeaseState.FREE
                lease.retry_at = self._now + self._jitter("lease.raise", lease)
            case RenewSent():
                self._renewing = False
                self._renew_at = self._now + self.config.retry_ms
            case AnnounceSent():
                self._announce_at = min(self._announce_at, self._now + self.config.retry_ms)
            case ReleaseSent() | None:
                pass  # it runs out by itself

    def _on_drain(self, out: list[LeaseEffect]) -> None:
        """Give back every lease and withdraw the announcements, so that the others need not wait for them to end."""
        if self._draining:
            return
        self._draining = True
        told = [lease for lease in self.leases.values() if lease.told]
        for lease in self.leases.values():
            lease.wished = False
        self._give_back(told, out)
        if self._running:
            for role, _ in self.config.roles:
                self._say(role, 0, out)

    # ------------------------------------------------------------ what is due

    def _expire(self, out: list[LeaseEffect]) -> None:
        for lease in self.leases.values():
            if lease.told and self._now >= lease.valid_until:
                out.append(Count(name="lease_expired", label=lease.resource.role))
                waiting = lease.state
                self._gone(lease, out)
                if waiting in (LeaseState.ACQUIRING, LeaseState.RAISING):
                    lease.state = waiting
                lease.retry_at = self._now

    def _announce(self, out: list[LeaseEffect]) -> None:
        if self._now < self._announce_at:
            return
        self._announce_at = self._now + self.config.renew_ms
        if self._draining:
            return
        asked = {sent.role for sent in self.pending.values() if isinstance(sent, AnnounceSent)}
        for role, _ in self.config.roles:
            if role in asked:
                continue
            self._say(role, self.config.ttl_ms, out)

    def _say(self, role: Role, ttl_ms: Ms, out: list[LeaseEffect]) -> None:
        out.append(
            Announce(
                op=self._send(AnnounceSent(role=role)),
                role=role,
                owner=self.config.owner,
                address=self.config.address,
                ttl_ms=ttl_ms,
            )
        )

    def _renew(self, out: list[LeaseEffect]) -> None:
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
        out.append(
            Renew(
                op=self._send(RenewSent(leases=held, sent=self._now)),
                owner=self.config.owner,
                leases=held,
                ttl_ms=self.config.ttl_ms,
            )
        )

    def _acquire(self, out: list[LeaseEffect]) -> None:
        if self._draining:
            return
        for lease in self.leases.values():
            if self._acquiring >= self.config.acquires_inflight_max:
                return
            if lease.state is LeaseState.FREE and lease.wished and self._now >= lease.retry_at:
                self._next_epoch_step(lease, out)

    def _next_epoch_step(self, lease: Lease, out: list[LeaseEffect]) -> None:
        """Raise the registry where a higher epoch was seen than it gave us, then ask for a fresh one."""
        if lease.above and lease.above >= lease.epoch:
            lease.state = LeaseState.RAISING
            op = self._send(RaiseSent(resource=lease.resource, above=lease.above))
            out.append(RaiseEpoch(op=op, resource=lease.resource, above=lease.above))
            return
        if self._acquiring >= self.config.acquires_inflight_max:
            lease.state = LeaseState.FREE
            lease.retry_at = self._now
            return
        self._ask(lease, out)

    def _ask(self, lease: Lease, out: list[LeaseEffect], *, only_to_release: bool = False) -> None:
        lease.state = LeaseState.ACQUIRING
        self._acquiring += 1
        sent = AcquireSent(resource=lease.resource, sent=self._now, only_to_release=only_to_release)
        out.append(
            Acquire(
                op=self._send(sent),
                resource=lease.resource,
                owner=self.config.owner,
                address=self.config.address,
                ttl_ms=self.config.ttl_ms,
            )
        )

    # ------------------------------------------------------------ helpers of the above

    def _gone(self, lease: Lease, out: list[LeaseEffect]) -> None:
        lease.state = LeaseState.FREE
        if lease.told:
            lease.told = False
            out.append(LeaseGone(resource=lease.resource))

    def _give_back(self, leases: Sequence[Lease], out: list[LeaseEffect]) -> None:
        """Also where a fresh epoch is being asked for: until it is granted, the one we were told stands."""
        for lease in leases:
            waiting = lease.state
            self._gone(lease, out)
            if waiting is not LeaseState.HELD:
                lease.state = waiting
        if leases:
            self._release(leases, out)

    def _release(self, leases: Sequence[Lease], out: list[LeaseEffect]) -> None:
        held = tuple((lease.resource, lease.epoch) for lease in leases)
        op = self._send(ReleaseSent(count=len(held)))
        out.append(Release(op=op, owner=self.config.owner, leases=held))

    def _send(self, sent: LeasePending) -> int:
        self._op += 1
        self.pending[self._op] = sent
        return self._op

    def _jitter(self, site: str, lease: Lease) -> Ms:
        key = (self.config.owner, str(lease.resource.role), lease.resource.number, self._op)
        return self.config.retry_ms // 2 + self._choose(site, key) % max(1, self.config.retry_ms)
