"""LeaseKeeper by hand-fed events: shares, validity, renewals, denials, hints of the registry, bounds."""

from qim.core.lease import LeaseConfig, LeaseEvent, LeaseState
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.registry import (
    Acquire,
    Announce,
    Denied,
    EpochRaised,
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
from tests.core.lease.hand import FIRST, grant, held, keeper, only, start


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


def test_an_unanswered_announcement_is_repeated_soon() -> None:
    """Until it is answered the process wishes for nothing: a renewal's time later would be too late."""
    lease_keeper = keeper()
    (announce,) = only(lease_keeper.step(0, [Started(address="writer-1", wall=0)]), Announce)
    lease_keeper.step(100, [Unknown(op=announce.op)])
    assert lease_keeper.deadline() == 600
    assert not only(lease_keeper.step(599, []), Announce)
    assert only(lease_keeper.step(600, []), Announce)


def test_lost_in_a_renewal_is_told_and_wished_again() -> None:
    lease_keeper = held()
    (renew,) = only(lease_keeper.step(3_000, []), Renew)
    effects = lease_keeper.step(3_100, [Renewed(op=renew.op, lost=(FIRST,))])
    assert only(effects, LeaseGone) == [LeaseGone(resource=FIRST)]
    assert [acquire.resource for acquire in only(effects, Acquire)] == [FIRST]


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


def test_not_started_does_nothing() -> None:
    lease_keeper = keeper()
    assert lease_keeper.step(0, []) == []
    assert lease_keeper.deadline() is None


def test_an_answer_nobody_waits_for_is_ignored() -> None:
    lease_keeper = held()
    assert not only(lease_keeper.step(1, [Renewed(op=999, lost=(FIRST,))]), LeaseGone)
    lease_keeper.step(1, [Unknown(op=999)])
