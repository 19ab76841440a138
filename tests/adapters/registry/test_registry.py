"""Registry conformance: every rule of core/ports/registry.py, on each registry."""

from qim.core.ports.registry import (
    BARRIERS_KEPT,
    BarrierRegistered,
    Denied,
    EpochRaised,
    Granted,
    Released,
    Resource,
    Role,
)
from tests.adapters.registry.registries import OTHER, SHARD, TTL_MS, Asker

# ------------------------------------------------------------ grants


def test_a_free_resource_is_granted_and_read_back(asker: Asker) -> None:
    reply = asker.acquire("a")
    assert isinstance(reply, Granted)
    assert reply.resource == SHARD
    assert reply.epoch > 0
    assert (reply.barrier_epoch, reply.barrier_offset) == (0, -1)
    read = asker.read()
    assert (read.resource, read.epoch) == (SHARD, reply.epoch)
    assert (read.owner, read.address) == ("a", "a:1")


def test_what_nobody_ever_held_has_no_owner(asker: Asker) -> None:
    read = asker.read(OTHER)
    assert (read.owner, read.address, read.epoch) == ("", "", 0)
    assert (read.barrier_epoch, read.barrier_offset) == (0, -1)


def test_acquire_by_the_holder_is_a_fresh_epoch(asker: Asker) -> None:
    first = asker.granted("a")
    second = asker.granted("a")
    assert second > first
    assert asker.lost("a", (SHARD, first)) == (SHARD,), "the older one is gone"
    assert asker.lost("a", (SHARD, second)) == ()


def test_another_is_denied_for_at_most_the_rest_of_the_lease(asker: Asker) -> None:
    epoch = asker.granted("a")
    asker.registry.let_pass(4_000)
    reply = asker.acquire("b")
    assert isinstance(reply, Denied)
    assert (reply.resource, reply.owner) == (SHARD, "a")
    assert 0 < reply.remaining_ms <= TTL_MS - 4_000 + asker.registry.denial_slack_ms
    assert asker.read().epoch == epoch, "a denial costs no epoch"
    asker.registry.let_pass(reply.remaining_ms)
    assert asker.granted("b") > epoch
    assert asker.lost("a", (SHARD, epoch)) == (SHARD,)


def test_resources_do_not_touch_each_other(asker: Asker) -> None:
    asker.granted("a")
    mailbox = Resource(role=Role.MAILBOX, number=SHARD.number)
    for resource in (OTHER, mailbox):
        assert asker.granted("b", resource) > 0
        assert asker.read(resource).owner == "b"
    assert asker.read().owner == "a"


# ------------------------------------------------------------ renewing and giving back


def test_a_renewed_lease_outlives_its_first_term(asker: Asker) -> None:
    epoch = asker.granted("a")
    for _ in range(3):
        asker.registry.let_pass(TTL_MS - 2_000)
        assert asker.lost("a", (SHARD, epoch)) == ()
    assert isinstance(asker.acquire("b"), Denied)
    assert asker.read().epoch == epoch


def test_renew_names_exactly_what_is_lost(asker: Asker) -> None:
    held = asker.granted("a")
    others = asker.granted("b", OTHER)
    never = Resource(role=Role.FANOUT, number=0)
    lost = asker.lost("a", (SHARD, held), (OTHER, others), (never, 1))
    assert lost == (OTHER, never)
    assert asker.lost("a", (SHARD, held + 1)) == (SHARD,), "an epoch it never had"


def test_an_expired_lease_is_lost_even_if_nobody_took_it(asker: Asker) -> None:
    epoch = asker.granted("a")
    asker.registry.let_pass(TTL_MS + 10)
    assert asker.read().owner == ""
    assert asker.lost("a", (SHARD, epoch)) == (SHARD,)
    assert asker.granted("a") > epoch


def test_what_is_given_back_can_be_taken_at_once(asker: Asker) -> None:
    epoch = asker.granted("a")
    assert isinstance(asker.release("a", (SHARD, epoch)), Released)
    assert asker.read().owner == ""
    assert asker.granted("b") > epoch
    assert asker.lost("a", (SHARD, epoch)) == (SHARD,)


def test_a_release_by_another_or_of_an_older_epoch_gives_nothing_back(asker: Asker) -> None:
    first = asker.granted("a")
    second = asker.granted("a")
    asker.release("b", (SHARD, second))
    asker.release("a", (SHARD, first))
    asker.release("a", (OTHER, 1))
    assert asker.read().owner == "a"
    assert asker.lost("a", (SHARD, second)) == ()


# ------------------------------------------------------------ raising


def test_every_grant_exceeds_what_was_raised(asker: Asker) -> None:
    asker.granted("a")
    assert isinstance(asker.raise_epoch(1_000), EpochRaised)
    assert asker.read().epoch >= 1_000
    assert asker.granted("a") > 1_000


def test_raising_to_less_changes_nothing(asker: Asker) -> None:
    asker.raise_epoch(50)
    epoch = asker.granted("a")
    asker.raise_epoch(7)
    assert asker.read().epoch == epoch
    assert asker.lost("a", (SHARD, epoch)) == ()
    assert asker.granted("a") > epoch


def test_a_raise_above_the_holder_takes_its_lease(asker: Asker) -> None:
    """Somebody saw a higher epoch in a fence: the holder's own is worth nothing any more."""
    epoch = asker.granted("a")
    asker.raise_epoch(epoch + 5)
    assert asker.lost("a", (SHARD, epoch)) == (SHARD,)


def test_a_raise_of_what_nobody_held_yet_counts(asker: Asker) -> None:
    asker.raise_epoch(77, OTHER)
    assert asker.granted("a", OTHER) > 77
    assert asker.granted("a") < 77


# ------------------------------------------------------------ barriers


def test_the_greatest_barrier_comes_with_the_grant(asker: Asker) -> None:
    for epoch, offset in ((3, 10), (9, 40), (5, 25)):
        assert isinstance(asker.register(epoch, offset), BarrierRegistered)
    reply = asker.acquire("a")
    assert (reply.barrier_epoch, reply.barrier_offset) == (9, 40)
    other = asker.acquire("a", OTHER)
    assert (other.barrier_epoch, other.barrier_offset) == (0, -1)


def test_a_reader_gets_the_greatest_epoch_below_its_offset(asker: Asker) -> None:
    # a zombie's barrier may stand behind one of a higher epoch
    for epoch, offset in ((2, 0), (7, 20), (4, 30), (9, 50)):
        asker.register(epoch, offset)
    expected = {0: (0, -1), 1: (2, 0), 20: (2, 0), 21: (7, 20), 31: (7, 20), 50: (7, 20)}
    for below, barrier in expected.items():
        read = asker.read(below=below)
        assert (read.barrier_epoch, read.barrier_offset) == barrier, below
    assert asker.read(below=51).barrier_epoch == 9
    assert asker.read().barrier_epoch == 9


def test_a_barrier_registered_again_is_the_same_and_none_is_forgotten(asker: Asker) -> None:
    asker.register(5, 10)
    asker.register(5, 10)
    asker.register(5, 90)
    read = asker.read(below=50)
    assert (read.barrier_epoch, read.barrier_offset) == (5, 10)
    assert asker.read().barrier_offset == 90


def test_of_the_barriers_below_the_logs_start_the_greatest_are_kept(asker: Asker) -> None:
    """Whoever begins at the log's start takes the greatest one below it; older ones would stand there for ever."""
    last = 3 * BARRIERS_KEPT
    for epoch in range(1, last + 1):
        asker.register(epoch, 10 * epoch)
        asker.register(epoch, 10 * epoch, OTHER)
    start = 10 * last - 25
    asker.register(last + 1, 10 * last + 10, log_start=start)
    below = [epoch for epoch in range(1, last + 1) if 10 * epoch < start]
    oldest = below[-BARRIERS_KEPT]
    asker.settled(lambda: asker.read(below=10 * oldest).barrier_offset == -1)
    for epoch in (oldest, below[-1], last, last + 1):
        read = asker.read(below=10 * epoch + 1)
        assert (read.barrier_epoch, read.barrier_offset) == (epoch, 10 * epoch)
    assert asker.read(below=start).barrier_epoch == below[-1]
    assert asker.read(OTHER, below=11).barrier_epoch == 1
    asker.register(last + 2, 10 * last + 20, log_start=start)
    assert asker.read(below=10 * oldest + 1).barrier_epoch == oldest


# ------------------------------------------------------------ announcements


def test_peers_are_the_live_ones_of_the_role_by_name(asker: Asker) -> None:
    assert asker.announce("b") == ("b",)
    assert asker.announce("a") == ("a", "b")
    assert asker.announce("w", Role.WRITER) == ("w",)
    asker.registry.let_pass(TTL_MS - 2_000)
    assert asker.announce("a") == ("a", "b")
    asker.registry.let_pass(3_000)
    assert asker.announce("c") == ("a", "c"), "b fell silent"


# ------------------------------------------------------------ reopening


def test_epochs_rise_and_barriers_stay_across_a_reopen(asker: Asker) -> None:
    told = [asker.granted("a"), asker.granted("a")]
    asker.raise_epoch(40, OTHER)
    asker.register(2, 11)
    asker.registry.reopen()
    assert asker.read().epoch == told[-1]
    assert asker.read(OTHER).epoch == 40
    asker.registry.let_pass(TTL_MS + 10)
    reply = asker.acquire("b")
    assert reply.epoch > told[-1]
    assert (reply.barrier_epoch, reply.barrier_offset) == (2, 11)
    assert asker.granted("b", OTHER) > 40


def test_a_withdrawn_announcement_is_gone_at_once(asker: Asker) -> None:
    asker.announce("a")
    asker.announce("b")
    assert asker.announce("b", ttl_ms=0) == ("a",)
    assert asker.announce("a") == ("a",)
    assert asker.announce("c", ttl_ms=0) == ("a",), "one that was never made"
    assert asker.announce("b") == ("a", "b")
