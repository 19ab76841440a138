"""One resource as the keeper holds it: its states, its epoch, how long it is valid, and what the local machine was told.

    FREE --wished, due--> ACQUIRING --Granted--> HELD --FreshEpochWanted--> RAISING --EpochRaised--> ACQUIRING
    FREE <--Denied, Failed-- ACQUIRING           HELD --FreshEpochWanted (nothing to raise)--> ACQUIRING
    FREE <--validity over, lost in a Renewed, no longer wished, drained-- HELD

Unknown of an Acquire or RaiseEpoch: asked again, since each grant is a fresh epoch and a raise is idempotent.
"""

from collections.abc import Sequence
from enum import IntEnum

from qim.core.lease.orders import AcquireSent, Orders, RaiseSent, ReleaseSent, RenewSent
from qim.core.lease.vocabulary import LeaseConfig
from qim.core.machine import Choose, Ms
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.local import LeaseGone, LeaseHeld
from qim.core.ports.observe import Count
from qim.core.ports.registry import Acquire, Denied, Granted, RaiseEpoch, Release, Resource


class LeaseState(IntEnum):
    """Where one resource stands with us."""

    FREE = 0
    RAISING = 1
    ACQUIRING = 2
    HELD = 3


class Lease:
    """``told``: the local machine believes it holds it (LeaseHeld without LeaseGone), under an epoch it may no longer use."""

    __slots__ = (
        "_choose", "_config", "_orders", "above", "epoch", "resource", "retry_at", "state", "told", "valid_until", "wished",
    )  # fmt: skip

    def __init__(
        self,
        resource: Resource,
        config: LeaseConfig,
        orders: Orders,
        choose: Choose,
        *,
        retry_at: Ms = 0,
    ) -> None:
        self.resource = resource
        self.state = LeaseState.FREE
        self.epoch = 0
        self.valid_until: Ms = 0
        self.retry_at = retry_at
        self.above = 0
        """The greatest epoch seen that a grant must exceed; 0: none."""
        self.wished = True
        self.told = False
        self._config = config
        self._orders = orders
        self._choose = choose

    def holds(self, epoch: int, now: Ms) -> bool:
        """Held under exactly this epoch, and still valid."""
        return self.state is LeaseState.HELD and self.epoch == epoch and now < self.valid_until

    # ------------------------------------------------------------ asked for

    def next_epoch_step(self, now: Ms) -> None:
        """Raise the registry where a higher epoch was seen than it gave us, then ask for a fresh one."""
        if self.above and self.above >= self.epoch:
            self.state = LeaseState.RAISING
            op = self._orders.op(RaiseSent(resource=self.resource, above=self.above))
            self._orders.give(RaiseEpoch(op=op, resource=self.resource, above=self.above))
            return
        if self._orders.acquiring >= self._config.acquires_inflight_max:
            self.state = LeaseState.FREE
            self.retry_at = now
            return
        self._ask(now)

    def _ask(self, now: Ms, *, only_to_release: bool = False) -> None:
        self.state = LeaseState.ACQUIRING
        sent = AcquireSent(resource=self.resource, sent=now, only_to_release=only_to_release)
        self._orders.give(
            Acquire(
                op=self._orders.op(sent),
                resource=self.resource,
                owner=self._config.owner,
                address=self._config.address,
                ttl_ms=self._config.ttl_ms,
            )
        )

    # ------------------------------------------------------------ answered

    def granted(self, now: Ms, event: Granted, sent: AcquireSent, wall: int) -> None:
        """HELD, if it is wished for, high enough and still valid; ``wall`` is for the machine that is told."""
        if event.epoch <= self.epoch:
            # Set back, from a backup: it must not give out again what fences and barriers have seen.
            self.above = max(self.above, self.epoch)
            self._count("lease_registry_set_back")
        # A barrier registered since, by an owner whose grant it forgot, is visible as well.
        self.above = max(self.above, event.barrier_epoch)
        self.epoch = event.epoch
        self.valid_until = self._validity(sent.sent)
        if not self.wished:
            self._free()
            release(self._orders, self._config, (self,))
            return
        if self.above >= event.epoch:
            self.next_epoch_step(now)
            return
        self.above = 0
        if now >= self.valid_until:
            self._count("lease_grant_too_late")
            self._free()
            self.retry_at = now
            return
        self.state = LeaseState.HELD
        self.told = True
        self._orders.give(
            LeaseHeld(
                resource=self.resource,
                epoch=event.epoch,
                barrier_epoch=event.barrier_epoch,
                barrier_offset=event.barrier_offset,
                wall=wall,
            )
        )

    def denied(self, now: Ms, event: Denied) -> None:
        """Another holds it: as long as that was said to last, but no longer than a renewal takes to show it."""
        self._free()
        wait = min(max(event.remaining_ms, self._config.retry_ms), self._config.renew_ms)
        self.retry_at = now + wait + self._jitter("lease.denied")

    def raised(self, now: Ms, sent: RaiseSent) -> None:
        """The registry will give more than ``sent.above``."""
        self.above = 0 if self.above <= sent.above else self.above
        if self.wished:
            self.next_epoch_step(now)
        else:
            self._free()

    def acquire_unanswered(self, now: Ms, event: Failed | Unknown, sent: AcquireSent) -> None:
        """Asked again later; where nobody wishes for it any more, only if it may have been granted."""
        if self.wished:
            self.state = LeaseState.FREE
            self.retry_at = now + self._jitter("lease.acquire")
            return
        self._free()
        if isinstance(event, Unknown) and not sent.only_to_release:
            # It may stand under an epoch we were not told; a fresh one can be named in a Release.
            self._ask(now, only_to_release=True)

    def raise_unanswered(self, now: Ms) -> None:
        """Raised again later: it is idempotent."""
        self.state = LeaseState.FREE
        self.retry_at = now + self._jitter("lease.raise")

    # ------------------------------------------------------------ held

    def renewed(self, now: Ms, sent: RenewSent, epoch: int, *, lost: bool) -> None:
        """Valid from when the renewal was sent, or lost; an epoch that was replaced meanwhile says nothing of this one."""
        if self.state is not LeaseState.HELD or self.epoch != epoch:
            return
        if lost:
            self._count("lease_lost")
            self._free()
            self.retry_at = now
        else:
            self.valid_until = self._validity(sent.sent)

    def want_fresh(self, now: Ms, above: int) -> None:
        """The local machine can't use its epoch any more, and has seen ``above``."""
        self.above = max(self.above, above)
        if self.state is LeaseState.HELD:
            self.next_epoch_step(now)

    def expire(self, now: Ms) -> None:
        """The machine is told when its validity is over; what is being asked for goes on."""
        if self.told and now >= self.valid_until:
            self._count("lease_expired")
            self.let_go()
            self.retry_at = now

    def let_go(self) -> None:
        """Also where a fresh epoch is being asked for: until it is granted, the one we were told stands."""
        if self.state is LeaseState.HELD:
            self.state = LeaseState.FREE
        if self.told:
            self.told = False
            self._orders.give(LeaseGone(resource=self.resource))

    # ------------------------------------------------------------ inside

    def _free(self) -> None:
        self.let_go()
        self.state = LeaseState.FREE

    def _validity(self, sent: Ms) -> Ms:
        return sent + self._config.ttl_ms - self._config.margin_ms

    def _count(self, name: str) -> None:
        self._orders.give(Count(name=name, label=self.resource.role))

    def _jitter(self, site: str) -> Ms:
        role, number = str(self.resource.role), self.resource.number
        key = (self._config.owner, role, number, self._orders.last_op)
        retry_ms = self._config.retry_ms
        return retry_ms // 2 + self._choose(site, key) % max(1, retry_ms)


def release(orders: Orders, config: LeaseConfig, leases: Sequence[Lease]) -> None:
    """Give them back to the registry, under the epochs they were granted."""
    held = tuple((lease.resource, lease.epoch) for lease in leases)
    op = orders.op(ReleaseSent(count=len(held)))
    orders.give(Release(op=op, owner=config.owner, leases=held))
