"""Routing is frozen: a user's shard and lane, a conversation's writer, never move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.core.contract import routing as r

U64 = st.integers(0, 2**64 - 1)
COUNTS = st.integers(0, 16).map(lambda power: 1 << power)
NAMES = st.lists(st.text(max_size=8), min_size=1, max_size=8, unique=True).map(tuple)


def test_users_are_frozen() -> None:
    users = (0, 1, 2, 7, 10_000, 2**53 + 1, 2**64 - 1)
    assert [(r.bucket(user), r.shard(user, 64), r.lane(user)) for user in users] == [
        (44249, 43, 7),
        (35827, 34, 55),
        (20764, 20, 5),
        (64252, 62, 52),
        (15075, 14, 39),
        (53644, 52, 11),
        (17427, 17, 56),
    ]


def test_conversations_are_frozen() -> None:
    conversations = (bytes(16), bytes(range(16)), b"\xff" * 16)
    assert [(r.conversation_bucket(c), r.writer_shard(c, 16)) for c in conversations] == [
        (35176, 8),
        (28891, 7),
        (45843, 11),
    ]


@given(U64, COUNTS)
def test_shards_are_ranges_of_buckets(user: int, count: int) -> None:
    assert r.shard(user, count) == r.bucket(user) // (65536 // count)
    assert 0 <= r.shard(user, count) < count
    assert 0 <= r.lane(user) < 64


@given(st.binary(min_size=16, max_size=16), COUNTS)
def test_writer_shards_are_ranges_of_buckets(conversation_id: bytes, count: int) -> None:
    assert r.writer_shard(conversation_id, count) == r.conversation_bucket(conversation_id) // (
        65536 // count
    )


def test_a_shard_has_users_in_all_lanes() -> None:
    lanes_of_one_shard = {r.lane(user) for user in range(100_000) if r.shard(user, 64) == 5}
    assert len(lanes_of_one_shard) == 64


@pytest.mark.parametrize(("count", "legal"), [(1, True), (2, True), (64, True), (65536, True), (0, False), (3, False),
                                              (-64, False), (131072, False), (65535, False)])  # fmt: skip
def test_legal_shard_counts(count: int, legal: bool) -> None:
    assert r.shard_count_is_legal(count) is legal


# ---------------------------------------------------------------- rendezvous


def test_wishes_are_frozen() -> None:
    names = ("writer-1", "writer-2", "writer-3")
    assert [r.rendezvous(shard, names) for shard in range(8)] == [
        "writer-1",
        "writer-3",
        "writer-1",
        "writer-1",
        "writer-2",
        "writer-1",
        "writer-2",
        "writer-3",
    ]


@given(U64, NAMES, st.randoms(use_true_random=False))
def test_a_wish_does_not_depend_on_the_order_of_instances(
    resource: int, names: tuple[str, ...], rng: object
) -> None:
    shuffled = list(names)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert r.rendezvous_order(resource, shuffled) == r.rendezvous_order(resource, names)
    assert sorted(r.rendezvous_order(resource, names)) == sorted(names)


@given(U64, NAMES)
def test_losing_an_instance_moves_only_what_it_held(resource: int, names: tuple[str, ...]) -> None:
    order = r.rendezvous_order(resource, names)
    assert r.rendezvous(resource, names) == order[0]
    for gone in names:
        left = tuple(name for name in names if name != gone)
        assert r.rendezvous_order(resource, left) == tuple(name for name in order if name != gone)


def test_wishes_are_spread() -> None:
    names = ("a", "b", "c", "d")
    held = [r.rendezvous(resource, names) for resource in range(4096)]
    assert all(850 < held.count(name) < 1200 for name in names)


def test_no_instance_no_wish() -> None:
    with pytest.raises(ValueError, match="at least one"):
        r.rendezvous(1, ())
    assert r.rendezvous_order(1, ()) == ()
