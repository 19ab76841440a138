"""Clocks of a node: steps, drift, freezes; a monotonic clock never goes back, and nobody is called too late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim.sim.clock import TRUE_RATE, Curve, Piece

BACK = (Piece(0, 1_000), Piece(100, 500))
NEVER = 3_000
TICK_MS = 2
"""Of the slowest of these clocks."""


def test_a_wall_clock_goes_back_where_a_monotonic_one_stands() -> None:
    wall, monotonic = Curve(BACK, monotone=False), Curve(BACK, monotone=True)
    times = (0, 99, 100, 400, 599, 700)
    assert [wall.read(at) for at in times] == [1_000, 1_099, 500, 800, 999, 1_100]
    assert [monotonic.read(at) for at in times] == [1_000, 1_099, 1_099, 1_099, 1_099, 1_100]


@pytest.mark.parametrize("monotone", [True, False])
def test_a_frozen_clock_jumps_to_where_it_would_be(monotone: bool) -> None:
    clock = Curve((Piece(0, 1_000),), monotone=monotone)
    clock.freeze(100)
    clock.freeze(150)
    clock.thaw(200)
    assert clock.read(250) == 1_100, "one of two is over"
    clock.thaw(300)
    assert [clock.read(at) for at in (300, 350)] == [1_300, 1_350]


def test_a_step_moves_what_is_read_and_when_it_is_due() -> None:
    clock = Curve((Piece(0, 1_000),), monotone=False)
    assert clock.when(1_500, 0) == 500
    clock.shift(100, 300)
    assert clock.read(100) == 1_400
    assert clock.when(1_500, 100) == 200
    clock.shift(150, -1_000)
    assert clock.read(150) == 450


pieces = st.lists(
    st.builds(
        Piece,
        st.integers(1, 400),
        st.integers(0, 2_000),
        st.sampled_from([TRUE_RATE // 2, TRUE_RATE - 2_000, TRUE_RATE, TRUE_RATE + 2_000]),
    ),
    max_size=4,
    unique_by=lambda piece: piece.at_ms,
)


@given(pieces, st.booleans(), st.integers(0, 2_500), st.integers(0, 500))
def test_who_waits_for_a_time_is_called_when_it_comes(
    later: list[Piece], monotone: bool, value: int, at: int
) -> None:
    """Called again from each look, which is how a driver does it."""
    clock = Curve((Piece(0, 0), *sorted(later, key=lambda piece: piece.at_ms)), monotone=monotone)
    shown = Curve((Piece(0, 0), *sorted(later, key=lambda piece: piece.at_ms)), monotone=monotone)
    first = next((then for then in range(at + 1, NEVER) if shown.read(then) >= value), NEVER)
    then = at
    while then < first:
        looked, then = then, clock.when(value, then)
        assert then > looked
    assert then <= first + TICK_MS or first == NEVER
