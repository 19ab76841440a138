"""LeaseKeeper at its end: a drain gives back what is held and what may still have been granted."""

from collections.abc import Sequence

from qim.core.lease import LeaseEffect, LeaseKeeper
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import DrainRequested, FreshEpochWanted, LeaseGone, LeaseHeld
from qim.core.ports.registry import Acquire, Announce, Denied, Peers, Release, Released, Role
from tests.core.lease.hand import FIRST, grant, held, keeper, only, start


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
