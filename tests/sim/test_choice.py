"""What a draw decides: the benign one hits no gate and takes the least time, and no draw depends on another."""

from hypothesis import given
from hypothesis import strategies as st

from qim.sim.choice import FAULT_MASK, Dice, Way, fault_level

draws = st.integers(0, 2**64 - 1)


def test_the_benign_draw_is_late_for_nothing_and_hit_by_nothing() -> None:
    way = Way(base_ms=3, spread_ms=50)
    assert (way.there(0), way.back(0)) == (3, 3)
    assert fault_level(0) == FAULT_MASK, "no rate below 65,536 reaches it"


@given(draws, st.integers(0, 100), st.integers(0, 100))
def test_ways_and_levels_stay_within_their_bounds(draw: int, base_ms: int, spread_ms: int) -> None:
    way = Way(base_ms, spread_ms)
    for taken in (way.there(draw), way.back(draw)):
        assert base_ms <= taken < base_ms + max(1, spread_ms)
    assert 0 <= fault_level(draw) <= FAULT_MASK


def test_a_rate_hits_its_share() -> None:
    dice = Dice(7)
    hit = sum(fault_level(dice.draw(1, number)) < FAULT_MASK // 4 for number in range(4_000))
    assert 900 < hit < 1_100


def test_each_try_of_a_payload_is_drawn_anew_whatever_else_is_drawn() -> None:
    alone, among = Dice(5), Dice(5)
    expected = [alone.draw(1, 77) for _ in range(3)]
    assert len(set(expected)) == 3
    drawn = []
    for number in range(3):
        among.draw(1, number)
        among.draw(2, 77)
        drawn.append(among.draw(1, 77))
    assert drawn == expected
    assert Dice(6).draw(1, 77) != expected[0]
