"""LeaseKeeper by hand-fed events, and a sweep of random answers against a tiny registry."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qim.core.lease import LeaseConfig, LeaseEffect, LeaseEvent, LeaseKeeper, LeaseState
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld, Started
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


def withdrawn(lease_keeper: LeaseKeeper, effects: Sequence[LeaseEffect], now: int) -> None:
    """The registry answers the withdrawal of an announcement."""
    (announce,) = only(effects, Announce)
    assert announce.ttl_ms == 0
    peers = Peers(op=announce.op, role=Role.WRITER, owners=("writer-2",))
    assert not lease_keeper.step(now, [peers])


def test_drain_gives_everything_back_and_takes_nothing() -> None:
    lease_keeper = held()
    effects = lease_keeper.step(10, [DrainRequested()])
    (release,) = only(effects, Release)
    assert len(release.leases) == 2
    withdrawn(lease_keeper, effects, 11)
    assert not lease_keeper.idle()
    assert not lease_keeper.step(20_000, [Released(op=release.op), DrainRequested()])
    assert lease_keeper.idle()
    assert only(lease_keeper.step(20_001, [FreshEpochWanted(resource=FIRST)]), LeaseGone)


def test_a_grant_while_draining_is_given_back() -> None:
    lease_keeper = keeper()
    (first, second) = only(start(lease_keeper), Acquire)
    effects = lease_keeper.step(
        1, [DrainRequested(), Failed(op=second.op, why=FailReason.CANCELLED)]
    )
    withdrawn(lease_keeper, effects, 1)
    assert not lease_keeper.idle(), "a grant may come"
    effects = lease_keeper.step(2, [grant(first, 9)])
    assert not only(effects, LeaseHeld)
    assert only(effects, Release)[0].leases == ((FIRST, 9),)
    lease_keeper.step(3, [Failed(op=only(effects, Release)[0].op, why=FailReason.UNREACHABLE)])
    assert lease_keeper.idle()


def test_what_may_have_been_granted_while_draining_is_given_back() -> None:
    """The epoch of an unanswered grant is not known, that of a fresh one is."""
    lease_keeper = keeper()
    (first, second) = only(start(lease_keeper), Acquire)
    withdrawn(lease_keeper, lease_keeper.step(1, [DrainRequested()]), 1)
    effects = lease_keeper.step(2, [Unknown(op=first.op), Unknown(op=second.op)])
    (again, other) = only(effects, Acquire)
    assert (again.resource, again.owner) == (FIRST, "writer-1")
    denied = Denied(op=other.op, resource=other.resource, owner="writer-2", remaining_ms=5_000)
    effects = lease_keeper.step(3, [grant(again, 12), denied])
    assert not only(effects, LeaseHeld)
    (release,) = only(effects, Release)
    assert release.leases == ((FIRST, 12),)
    assert not lease_keeper.step(4, [Released(op=release.op)])
    assert lease_keeper.idle()


def test_a_second_unknown_while_draining_is_left_to_run_out() -> None:
    lease_keeper = keeper()
    acquires = only(start(lease_keeper), Acquire)
    withdrawn(lease_keeper, lease_keeper.step(1, [DrainRequested()]), 1)
    effects = lease_keeper.step(2, [Unknown(op=acquire.op) for acquire in acquires])
    assert not lease_keeper.step(3, [Unknown(op=again.op) for again in only(effects, Acquire)])
    assert lease_keeper.idle()


def test_drain_while_a_fresh_epoch_is_asked_for_gives_both_back() -> None:
    lease_keeper = held()
    (again,) = only(lease_keeper.step(5, [FreshEpochWanted(resource=FIRST)]), Acquire)
    effects = lease_keeper.step(10, [DrainRequested()])
    (release,) = only(effects, Release)
    assert (FIRST, 7) in release.leases, "until the fresh one is granted the old one stands"
    assert len(only(effects, LeaseGone)) == 2
    (release,) = only(lease_keeper.step(11, [grant(again, 8)]), Release)
    assert release.leases == ((FIRST, 8),)


def test_no_longer_wished_while_a_higher_epoch_is_raised_is_given_back() -> None:
    lease_keeper = held()
    (raised,) = only(lease_keeper.step(5, [FreshEpochWanted(resource=FIRST, above=30)]), RaiseEpoch)
    names = tuple(f"writer-{number}" for number in range(2, 40))
    effects = lease_keeper.step(6, [Peers(op=0, role=Role.WRITER, owners=names)])
    assert (FIRST, 7) in only(effects, Release)[0].leases
    assert LeaseGone(resource=FIRST) in effects
    assert not lease_keeper.step(7, [EpochRaised(op=raised.op)])
    assert lease_keeper.leases[FIRST].state is LeaseState.FREE


def test_a_lease_given_back_to_another_is_not_asked_for_again() -> None:
    """Two that hear of each other at different times hand over once, to and fro never."""
    lease_keeper = held()
    other = tuple(f"writer-{number}" for number in range(2, 40))
    effects = lease_keeper.step(6, [Peers(op=0, role=Role.WRITER, owners=other)])
    assert only(effects, Release)
    for now in range(7, 3_000, 100):
        events: list[LeaseEvent] = [
            LeaseFreed(resource=FIRST),
            Peers(op=0, role=Role.WRITER, owners=other),
        ]
        effects = lease_keeper.step(now, events)
        assert not only(effects, Acquire) and not only(effects, Release)


def test_peers_that_the_registry_noticed_are_heard_at_once() -> None:
    lease_keeper = keeper(
        LeaseConfig(owner="writer-1", address="writer-1", roles=((Role.WRITER, 16),))
    )
    (announce,) = only(lease_keeper.step(0, [Started(address="writer-1", wall=0)]), Announce)
    both = Peers(op=announce.op, role=Role.WRITER, owners=("writer-1", "writer-2"))
    ours = only(lease_keeper.step(0, [both]), Acquire)
    assert 0 < len(ours) < 16
    alone = Peers(op=0, role=Role.WRITER, owners=("writer-1",))
    taken = only(lease_keeper.step(500, [alone]), Acquire)
    assert len(ours) + len(taken) == 16
    assert not lease_keeper.step(501, [alone]), "nothing new"


def test_a_freed_lease_is_asked_for_without_waiting() -> None:
    lease_keeper = keeper()
    (first, second) = only(start(lease_keeper), Acquire)
    denied = Denied(op=first.op, resource=FIRST, owner="writer-2", remaining_ms=9_000)
    effects = lease_keeper.step(10, [denied, LeaseFreed(resource=second.resource)])
    assert not only(effects, Acquire), "the answer of the one in flight is still to come"
    (again,) = only(lease_keeper.step(500, [LeaseFreed(resource=FIRST)]), Acquire)
    assert again.resource == FIRST
    stranger = Resource(role=Role.MAILBOX, number=3)
    assert not lease_keeper.step(501, [LeaseFreed(resource=stranger)])


def test_who_holds_what_is_not_ours_is_handed_to_the_machines() -> None:
    lease_keeper = held()
    second = Resource(role=Role.WRITER, number=1)
    strangers = (Resource(role=Role.MAILBOX, number=1), Resource(role=Role.INSTANCE, number=1))
    taken = [
        LeaseTaken(resource=resource, owner="writer-2", address="writer-2:1")
        for resource in (second, *strangers)
    ]
    assert not lease_keeper.step(1, taken), (
        "of ours only an answer decides, of other roles nobody asks"
    )
    (renew,) = only(lease_keeper.step(3_000, []), Renew)
    lease_keeper.step(3_001, [Renewed(op=renew.op, lost=(second,))])
    told = LeaseGone(resource=second, owner_address="writer-2:1")
    assert lease_keeper.step(3_002, taken) == [told]
    own = LeaseTaken(resource=second, owner="writer-1", address="writer-1:1")
    assert not lease_keeper.step(3_003, [own])
    assert LeaseGone(resource=second) in lease_keeper.step(3_004, [LeaseFreed(resource=second)])


def test_a_registry_that_was_set_back_is_raised_above_what_it_gave_before() -> None:
    lease_keeper = held(epoch=70)
    (renew,) = only(lease_keeper.step(3_000, []), Renew)
    effects = lease_keeper.step(3_001, [Renewed(op=renew.op, lost=(FIRST,))])
    (again,) = only(effects, Acquire)
    effects = lease_keeper.step(3_002, [grant(again, 5)])
    assert not only(effects, LeaseHeld), "an epoch that was used before"
    (raised,) = only(effects, RaiseEpoch)
    assert raised.above == 70
    (again,) = only(lease_keeper.step(3_003, [EpochRaised(op=raised.op)]), Acquire)
    (told,) = only(lease_keeper.step(3_004, [grant(again, 71)]), LeaseHeld)
    assert told.epoch == 71


def test_a_barrier_not_below_the_grant_raises_a_registry_that_was_set_back() -> None:
    """Registered since, by an owner whose grant it forgot."""
    lease_keeper = held(epoch=70)
    (renew,) = only(lease_keeper.step(3_000, []), Renew)
    (again,) = only(lease_keeper.step(3_001, [Renewed(op=renew.op, lost=(FIRST,))]), Acquire)
    granted = replace(grant(again, 71), barrier_epoch=71, barrier_offset=9)
    effects = lease_keeper.step(3_002, [granted])
    assert not only(effects, LeaseHeld)
    (raised,) = only(effects, RaiseEpoch)
    assert raised.above == 71
    (again,) = only(lease_keeper.step(3_003, [EpochRaised(op=raised.op)]), Acquire)
    granted = replace(grant(again, 72), barrier_epoch=71, barrier_offset=9)
    (told,) = only(lease_keeper.step(3_004, [granted]), LeaseHeld)
    assert told.epoch == 72


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
    due = lease_keeper.deadline()
    assert due is not None
    assert due > 0, "an answer is waited for: no driver may be kept spinning meanwhile"
    more = only(lease_keeper.step(5, [grant(acquires[0], 1)]), Acquire)
    assert len(more) == 1


def test_a_fresh_epoch_waits_where_too_many_are_asked_for_already() -> None:
    lease_keeper = keeper(
        LeaseConfig(
            owner="writer-1", address="w", roles=((Role.WRITER, 2),), acquires_inflight_max=1
        )
    )
    (first,) = only(start(lease_keeper), Acquire)
    (second,) = only(lease_keeper.step(1, [grant(first, 7)]), Acquire)
    assert not only(lease_keeper.step(2, [FreshEpochWanted(resource=FIRST)]), Acquire)
    (again,) = only(lease_keeper.step(3, [grant(second, 7)]), Acquire)
    assert again.resource == FIRST
    (told,) = only(lease_keeper.step(4, [grant(again, 8)]), LeaseHeld)
    assert told.epoch == 8


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
