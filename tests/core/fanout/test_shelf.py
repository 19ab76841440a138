"""The shelf of versions and the timers: what is asked when, what is kept, what waits."""

from qim.core.contract.entities import MembershipVersion
from qim.core.ports.store_reads import VersionsRead
from qim.core.timers import Timers, back_off
from qim.core.version_shelf import VersionShelf
from tests.core.fanout.bench import version

Key = tuple[bytes, int, bytes]


def shelf(names_max: int = 2, members_max: int = 10) -> VersionShelf:
    return VersionShelf(
        shard_count=1,
        names_max=names_max,
        members_max=members_max,
        retry_first_ms=50,
        retry_most_ms=200,
    )


def key(named: MembershipVersion) -> Key:
    return named.conversation_id, named.version, named.digest


def want(kept: VersionShelf, *named: MembershipVersion, waiter: int = 0, offset: int = 5) -> None:
    for one in named:
        kept.want(0, key(one), writer_shard=3, waiter=waiter, offset=offset)
    kept.check()


def answer(kept: VersionShelf, *versions: MembershipVersion | None, applied: int = 0) -> object:
    reply = VersionsRead(op=1, versions=versions, applied=(applied,) * len(versions))
    result = kept.answered(0, reply)
    kept.check()
    return result


ONE, TWO, THREE = (version(n, tuple(range(1, 6))) for n in (1, 2, 3))


def test_one_read_at_a_time_of_bounded_size() -> None:
    kept = shelf()
    want(kept, ONE, TWO, THREE)
    assert kept.next_names(0) == ((3, *key(ONE)), (3, *key(TWO)))
    assert kept.next_names(0) == ()
    assert kept.deadline() is None
    answer(kept, ONE, TWO)
    assert kept.next_names(0) == ((3, *key(THREE)),)


def test_the_longest_unused_makes_room() -> None:
    kept = shelf()
    want(kept, ONE, TWO)
    kept.next_names(0)
    answer(kept, ONE, TWO)
    assert kept.find(key(ONE)) is not None
    want(kept, THREE)
    kept.next_names(0)
    answer(kept, THREE)
    assert kept.find(key(TWO)) is None
    assert kept.find(key(ONE)) is not None
    assert kept.find(key(THREE)) is not None
    kept.clear()
    kept.check()
    assert kept.find(key(ONE)) is None


def test_what_one_answer_brings_always_finds_room() -> None:
    kept = shelf(members_max=3)
    want(kept, ONE, TWO)
    kept.next_names(0)
    answer(kept, ONE, TWO)
    assert kept.find(key(ONE)) is not None
    assert kept.find(key(TWO)) is not None


def test_an_answer_nobody_waits_for_any_more_is_kept_all_the_same() -> None:
    kept = shelf()
    want(kept, ONE, TWO, waiter=1)
    want(kept, TWO, waiter=2)
    kept.next_names(0)
    kept.forget(1)
    assert kept.waiting() == 1
    answer(kept, ONE, None)
    assert kept.find(key(ONE)) is not None
    want(kept, ONE)
    assert kept.next_names(0) == ((3, *key(ONE)),)
    answer(kept, ONE)
    kept.check()
    kept.forget(2)
    assert kept.waiting() == 0


def test_a_failed_read_of_forgotten_names_leaves_nothing() -> None:
    kept = shelf()
    want(kept, ONE, TWO)
    kept.next_names(0)
    kept.forget(0)
    kept.failed(0)
    assert kept.deadline() is None
    want(kept, ONE)
    kept.next_names(0)
    kept.failed(0)
    assert kept.deadline() == 50


def test_an_unknown_offset_is_never_called_unknown() -> None:
    kept = shelf()
    want(kept, ONE, offset=-1)
    kept.next_names(0)
    answer(kept, None, applied=1_000)
    assert kept.waiting() == 1


def test_timers_are_taken_in_the_order_of_their_times() -> None:
    timers = Timers()
    timers.set((2, "a"), 30)
    timers.set((1, "b"), 10)
    timers.set((1, "a"), 20)
    timers.set((3, "a"), 40)
    assert timers.next() == 10
    assert timers.due(30) == [(1, "b"), (1, "a"), (2, "a")]
    assert timers.has((3, "a"))
    timers.clear((3, "a"))
    timers.set((4, "a"), 5)
    timers.set((4, "b"), 6)
    timers.clear_number(4)
    assert timers.next() is None
    assert len(timers) == 0


def test_back_off_doubles_up_to_its_bound() -> None:
    assert [back_off(n, 50, 300) for n in (1, 2, 3, 4, 500)] == [50, 100, 200, 300, 300]
