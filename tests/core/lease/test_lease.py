"""LeaseKeeper by hand-fed events, and a sweep of random answers against a tiny registry."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from qim.core.lease import LeaseConfig, LeaseEffect, LeaseEvent, LeaseKeeper, LeaseState
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Denied,
    EpochRaised,
    Granted,
    Peers,
    RaiseEpoch,
    Release,
    Released,
    Renew,
    Renewed,
    Resource,
    Role,
)

T = TypeVar("T")
CONFIG = LeaseConfig(owner="writer-1", address="writer-1", roles=((Role.WRITER, 2),))
FIRST = Resource(role=Role.WRITER, number=0)


def keeper(config: LeaseConfig = CONFIG) -> LeaseKeeper:
    made = LeaseKeeper(config, choose=lambda site, key: 0)
    return made


def only(effects: Sequence[LeaseEffect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def start(lease_keeper: LeaseKeeper, now: int = 0) -> list[LeaseEffect]:
    effects = lease_keeper.step(now, [Started(address="writer-1", wall=1_000_000)])
    (announce,) = only(effects, Announce)
    return lease_keeper.step(now, [Peers(op=announce.op, role=Role.WRITER, owners=("writer-1",))])


def grant(acquire: Acquire, epoch: int) -> Granted:
    return Granted(
        op=acquire.op, resource=acquire.resource, epoch=epoch, barrier_epoch=0, barrier_offset=-1
    )


def held(now: int = 0, epoch: int = 7) -> LeaseKeeper:
    lease_keeper = keeper()
    acquires = only(start(lease_keeper, now), Acquire)
    effects = lease_keeper.step(now, [grant(acquire, epoch) for acquire in acquires])
    assert len(only(effects, LeaseHeld)) == 2
    return lease_keeper


def test_a_lonely_peer_wishes_for_everything() -> None:
    acquires = only(start(keeper()), Acquire)
    assert [acquire.resource.number for acquire in acquires] == [0, 1]


def test_two_peers_share_and_neither_is_left_out() -> None:
    shares = []
    for owner in ("writer-1", "writer-2"):
        lease_keeper = keeper(LeaseConfig(owner=owner, address=owner, roles=((Role.WRITER, 64),)))
        (announce,) = only(lease_keeper.step(0, [Started(address=owner, wall=0)]), Announce)
        peers = Peers(op=announce.op, role=Role.WRITER, owners=("writer-1", "writer-2"))
        acquires = only(lease_keeper.step(0, [peers]), Acquire)
        shares.append({acquire.resource.number for acquire in acquires})
    assert shares[0] | shares[1] == set(range(64))
    assert not shares[0] & shares[1]
    assert min(len(share) for share in shares) > 10


def test_validity_counts_from_when_the_request_was_sent() -> None:
    lease_keeper = keeper()
    (first, _) = only(start(lease_keeper, now=100), Acquire)
    lease_keeper.step(4_000, [grant(first, 7)])
    assert lease_keeper.holds(FIRST, 7, 9_099)
    assert not lease_keeper.holds(FIRST, 7, 9_100)
    assert not lease_keeper.holds(FIRST, 6, 5_000)


def test_a_grant_that_arrives_after_its_validity_is_never_told() -> None:
    lease_keeper = keeper()
    (first, _) = only(start(lease_keeper, now=0), Acquire)
    effects = lease_keeper.step(9_000, [grant(first, 7)])
    assert not only(effects, LeaseHeld)
    assert [acquire.resource for acquire in only(effects, Acquire)] == [FIRST]


def test_one_renew_carries_all_and_lengthens_from_its_sending() -> None:
    lease_keeper = held()
    (renew,) = only(lease_keeper.step(3_000, []), Renew)
    assert renew.leases == ((FIRST, 7), (Resource(role=Role.WRITER, number=1), 7))
    assert not only(lease_keeper.step(3_500, []), Renew), "one in flight"
    lease_keeper.step(5_000, [Renewed(op=renew.op, lost=())])
    assert lease_keeper.holds(FIRST, 7, 11_999)
    assert not lease_keeper.holds(FIRST, 7, 12_000)


def test_unanswered_renewal_is_repeated_and_then_the_lease_is_gone() -> None:
    lease_keeper = held()
    (renew,) = only(lease_keeper.step(3_000, []), Renew)
    lease_keeper.step(8_000, [Unknown(op=renew.op)])
    assert only(lease_keeper.step(8_500, []), Renew)
    gone = only(lease_keeper.step(9_000, []), LeaseGone)
    assert [effect.resource.number for effect in gone] == [0, 1]


def test_lost_in_a_renewal_is_told_and_wished_again() -> None:
    lease_keeper = held()
    (renew,) = only(lease_keeper.step(3_000, []), Renew)
    effects = lease_keeper.step(3_100, [Renewed(op=renew.op, lost=(FIRST,))])
    assert only(effects, LeaseGone) == [LeaseGone(resource=FIRST)]
    assert [acquire.resource for acquire in only(effects, Acquire)] == [FIRST]


def test_a_renewal_of_a_replaced_epoch_says_nothing() -> None:
    lease_keeper = held()
    (renew,) = only(lease_keeper.step(3_000, []), Renew)
    (again,) = only(lease_keeper.step(3_001, [FreshEpochWanted(resource=FIRST)]), Acquire)
    lease_keeper.step(3_002, [grant(again, 8)])
    effects = lease_keeper.step(3_003, [Renewed(op=renew.op, lost=(FIRST,))])
    assert not only(effects, LeaseGone)
    assert lease_keeper.holds(FIRST, 8, 3_003)


def test_fresh_epoch_without_more_to_exceed_is_one_acquire() -> None:
    lease_keeper = held()
    effects = lease_keeper.step(10, [FreshEpochWanted(resource=FIRST, above=3)])
    assert not only(effects, RaiseEpoch)
    assert not lease_keeper.holds(FIRST, 7, 10), "the old epoch is not ours to use any more"
    (again,) = only(effects, Acquire)
    (told,) = only(lease_keeper.step(11, [grant(again, 8)]), LeaseHeld)
    assert told.epoch == 8


def test_a_higher_epoch_seen_is_raised_first() -> None:
    lease_keeper = held()
    effects = lease_keeper.step(10, [FreshEpochWanted(resource=FIRST, above=9)])
    (raised,) = only(effects, RaiseEpoch)
    assert (raised.resource, raised.above) == (FIRST, 9)
    assert not only(effects, Acquire)
    (again,) = only(lease_keeper.step(20, [EpochRaised(op=raised.op)]), Acquire)
    assert only(lease_keeper.step(30, [grant(again, 10)]), LeaseHeld)


def test_a_raise_without_answer_is_repeated() -> None:
    lease_keeper = held()
    (raised,) = only(lease_keeper.step(10, [FreshEpochWanted(resource=FIRST, above=9)]), RaiseEpoch)
    lease_keeper.step(20, [Unknown(op=raised.op)])
    (repeated,) = only(lease_keeper.step(1_000, []), RaiseEpoch)
    assert repeated.above == 9


def test_a_grant_not_above_what_was_wanted_meanwhile_is_not_told() -> None:
    lease_keeper = held()
    (again,) = only(lease_keeper.step(10, [FreshEpochWanted(resource=FIRST)]), Acquire)
    lease_keeper.step(11, [FreshEpochWanted(resource=FIRST, above=40)])
    effects = lease_keeper.step(12, [grant(again, 8)])
    assert not only(effects, LeaseHeld)
    (raised,) = only(effects, RaiseEpoch)
    assert raised.above == 40


def test_wanting_what_is_not_held_is_answered() -> None:
    lease_keeper = held()
    stranger = Resource(role=Role.MAILBOX, number=3)
    effects = lease_keeper.step(10, [FreshEpochWanted(resource=stranger)])
    assert only(effects, LeaseGone) == [LeaseGone(resource=stranger)]


def test_unknown_of_an_acquire_asks_again() -> None:
    lease_keeper = keeper()
    (first, second) = only(start(lease_keeper), Acquire)
    lease_keeper.step(10, [Unknown(op=first.op), Failed(op=second.op, why=FailReason.UNREACHABLE)])
    again = only(lease_keeper.step(1_100, []), Acquire)
    assert [acquire.resource.number for acquire in again] == [0, 1]


def test_denied_waits_for_the_other_owner() -> None:
    lease_keeper = keeper()
    (first, _) = only(start(lease_keeper), Acquire)
    denied = Denied(op=first.op, resource=FIRST, owner="writer-2", remaining_ms=2_000)
    lease_keeper.step(10, [denied])
    assert not only(lease_keeper.step(1_500, []), Acquire)
    assert only(lease_keeper.step(3_100, []), Acquire)


def test_a_refresh_denied_is_told_as_gone() -> None:
    lease_keeper = held()
    (again,) = only(lease_keeper.step(10, [FreshEpochWanted(resource=FIRST)]), Acquire)
    denied = Denied(op=again.op, resource=FIRST, owner="writer-2", remaining_ms=2_000)
    assert only(lease_keeper.step(11, [denied]), LeaseGone) == [LeaseGone(resource=FIRST)]


def test_a_refresh_whose_validity_ends_first_is_gone_and_taken_up_when_granted() -> None:
    lease_keeper = held()
    (again,) = only(lease_keeper.step(8_000, [FreshEpochWanted(resource=FIRST)]), Acquire)
    assert LeaseGone(resource=FIRST) in lease_keeper.step(9_000, [])
    (told,) = only(lease_keeper.step(9_100, [grant(again, 9)]), LeaseHeld)
    assert told.epoch == 9


def test_a_new_peer_takes_its_share_over_gracefully() -> None:
    lease_keeper = keeper(
        LeaseConfig(owner="writer-1", address="writer-1", roles=((Role.WRITER, 16),))
    )
    acquires = only(start(lease_keeper), Acquire)
    lease_keeper.step(0, [grant(acquire, 7) for acquire in acquires])
    (announce,) = only(lease_keeper.step(3_000, []), Announce)
    peers = Peers(op=announce.op, role=Role.WRITER, owners=("writer-1", "writer-2"))
    effects = lease_keeper.step(3_001, [peers])
    (release,) = only(effects, Release)
    assert {gone.resource for gone in only(effects, LeaseGone)} == {r for r, _ in release.leases}
    assert 0 < len(release.leases) < 16
    assert not only(lease_keeper.step(3_002, [Released(op=release.op)]), Acquire)


def test_drain_gives_everything_back_and_takes_nothing() -> None:
    lease_keeper = held()
    effects = lease_keeper.step(10, [DrainRequested()])
    (release,) = only(effects, Release)
    assert len(release.leases) == 2
    assert not lease_keeper.idle()
    assert not lease_keeper.step(20_000, [Released(op=release.op)])
    assert lease_keeper.idle()
    assert only(lease_keeper.step(20_001, [FreshEpochWanted(resource=FIRST)]), LeaseGone)


def test_a_grant_while_draining_is_given_back() -> None:
    lease_keeper = keeper()
    (first, second) = only(start(lease_keeper), Acquire)
    lease_keeper.step(1, [DrainRequested(), Failed(op=second.op, why=FailReason.CANCELLED)])
    effects = lease_keeper.step(2, [grant(first, 9)])
    assert not only(effects, LeaseHeld)
    assert only(effects, Release)[0].leases == ((FIRST, 9),)
    lease_keeper.step(3, [Failed(op=only(effects, Release)[0].op, why=FailReason.UNREACHABLE)])
    assert lease_keeper.idle()


def test_pinned_resources_need_no_peers() -> None:
    pinned = Resource(role=Role.INSTANCE, number=4)
    lease_keeper = keeper(LeaseConfig(owner="w", address="w", pinned=(pinned,)))
    (acquire,) = only(lease_keeper.step(0, [Started(address="w", wall=0)]), Acquire)
    assert acquire.resource == pinned


def test_acquires_in_flight_are_bounded() -> None:
    lease_keeper = keeper(
        LeaseConfig(
            owner="writer-1",
            address="writer-1",
            roles=((Role.WRITER, 16),),
            acquires_inflight_max=4,
        )
    )
    acquires = only(start(lease_keeper), Acquire)
    assert len(acquires) == 4
    more = only(lease_keeper.step(5, [grant(acquires[0], 1)]), Acquire)
    assert len(more) == 1


def test_not_started_does_nothing() -> None:
    lease_keeper = keeper()
    assert lease_keeper.step(0, []) == []
    assert lease_keeper.deadline() is None


def test_an_answer_nobody_waits_for_is_ignored() -> None:
    lease_keeper = held()
    assert not only(lease_keeper.step(1, [Renewed(op=999, lost=(FIRST,))]), LeaseGone)
    lease_keeper.step(1, [Unknown(op=999)])


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
