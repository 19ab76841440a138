"""The two shared routines, proven on every store: raw bytes in any locale, no number ever a double."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qim.adapters.redis.layout import INCARNATION_KEY
from tests.adapters.store.servers import Store

WIDTHS = st.sampled_from([4, 8, 16])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Same width; often equal up to some byte, often at a carry."""
    width = draw(WIDTHS)
    first = draw(st.binary(min_size=width, max_size=width))
    kept = draw(st.integers(0, width))
    second = first[:kept] + draw(st.binary(min_size=width - kept, max_size=width - kept))
    full = draw(st.integers(0, width))
    return first[: width - full] + b"\xff" * full, second


def verdicts(store: Store, given_pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, ...]]:
    raw = store.raw(
        "comparison_self_test", [INCARNATION_KEY], [value for pair in given_pairs for value in pair]
    )
    return [tuple(raw[i : i + 3]) for i in range(1, len(raw), 3)]


def expected(first: bytes, second: bytes) -> tuple[bytes, bytes, bytes]:
    value = int.from_bytes(first, "big") + 1
    fits = value < 1 << 8 * len(first)
    successor = value.to_bytes(len(first), "big") if fits else b""
    return (b"1" if first < second else b"0"), max(first, second), successor


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(pairs(), min_size=1, max_size=60))
def test_order_and_successor(store: Store, given_pairs: list[tuple[bytes, bytes]]) -> None:
    assert verdicts(store, given_pairs) == [expected(*pair) for pair in given_pairs]


def test_every_byte_against_every_byte(store: Store) -> None:
    values = [bytes((high, low)) for high in (0, 0x61, 0xFF) for low in range(256)]
    for first in (b"\x00\x00", b"A\x00", b"a\x7f", b"a\xff", b"\xff\xff"):
        given_pairs = [(first, second) for second in values]
        assert verdicts(store, given_pairs) == [expected(*pair) for pair in given_pairs]


def test_neighbours_that_doubles_confuse(store: Store) -> None:
    values = [(1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 48) + 6, (1 << 64) - 2]
    given_pairs = [(v.to_bytes(8, "big"), (v + 1).to_bytes(8, "big")) for v in values]
    for (first, second), (below, greater, successor) in zip(
        given_pairs, verdicts(store, given_pairs), strict=True
    ):
        assert (below, greater, successor) == (b"1", second, second), first
