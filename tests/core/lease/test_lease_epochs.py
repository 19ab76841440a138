"""LeaseKeeper and epochs: fresh ones are asked for, and none is told that is not above all before."""

from msgspec.structs import replace

from qim.core.lease import LeaseConfig
from qim.core.ports.completion import Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.registry import Acquire, Denied, EpochRaised, RaiseEpoch, Renew, Renewed, Role
from tests.core.lease.hand import FIRST, grant, held, keeper, only, start


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
