"""LeaseKeeper against a tiny registry that answers at random, lost or not at all: its promises hold."""

from hypothesis import given
from hypothesis import strategies as st

from qim.core.lease import LeaseEffect, LeaseEvent, LeaseState
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Denied,
    EpochRaised,
    Peers,
    RaiseEpoch,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)
from tests.core.lease.hand import grant, keeper


class Registry:
    """The least registry: every grant exceeds all before."""

    def __init__(self) -> None:
        self.epoch = 0

    def answer(self, effect: LeaseEffect, fate: int) -> LeaseEvent | None:
        if not isinstance(effect, Acquire | Renew | Release | RaiseEpoch | Announce):
            return None
        applied = fate != 1
        answer: LeaseEvent
        match effect:
            case Acquire():
                if fate == 3:
                    return Denied(
                        op=effect.op, resource=effect.resource, owner="x", remaining_ms=700
                    )
                self.epoch += applied
                answer = grant(effect, self.epoch)
            case Renew():
                lost = tuple(r for r, _ in effect.leases) if fate == 3 else ()
                answer = Renewed(op=effect.op, lost=lost)
            case Release():
                answer = Released(op=effect.op)
            case RaiseEpoch():
                self.epoch = max(self.epoch, effect.above) if applied else self.epoch
                answer = EpochRaised(op=effect.op)
            case Announce():
                owners = ("other", "writer-1") if fate == 3 else ("writer-1",)
                answer = Peers(op=effect.op, role=effect.role, owners=owners)
        if fate == 1:
            return Failed(op=effect.op, why=FailReason.UNREACHABLE)
        return Unknown(op=effect.op) if fate == 2 else answer


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4_000), st.integers(0, 6))))
def test_every_order_of_answers_keeps_the_promises(
    moves: list[tuple[int, int, int]],
) -> None:
    """A LeaseHeld epoch is always fresh, every LeaseGone follows a LeaseHeld, and waits always end."""
    registry, lease_keeper, now = Registry(), keeper(), 0
    waiting = list(lease_keeper.step(0, [Started(address="writer-1", wall=0)]))
    told: dict[Resource, int] = {}
    greatest: dict[Resource, int] = {}
    for fate, wait, wish in moves:
        now += wait
        events: list[LeaseEvent] = []
        if waiting:
            answer = registry.answer(waiting.pop(0), fate)
            events += [answer] if answer is not None else []
        if wish < 2:
            resource = Resource(role=Role.WRITER, number=wish)
            events.append(FreshEpochWanted(resource=resource, above=wait % 3 * registry.epoch))
        effects = lease_keeper.step(now, events)
        lease_keeper.check()
        for effect in effects:
            if isinstance(effect, LeaseHeld):
                assert effect.epoch > greatest.get(effect.resource, 0)
                fresh_wanted = wish == effect.resource.number
                assert fresh_wanted or lease_keeper.holds(effect.resource, effect.epoch, now)
                greatest[effect.resource] = told[effect.resource] = effect.epoch
            elif isinstance(effect, LeaseGone):
                told.pop(effect.resource, None)
        waiting += effects
        deadline = lease_keeper.deadline()
        assert deadline is not None
        for lease in lease_keeper.leases.values():
            assert lease.told == (lease.resource in told)
            if lease.state is LeaseState.FREE and lease.wished:
                assert deadline <= max(lease.retry_at, now)
