"""Who opens a leased resource: one name a machine and life, another key a try."""

from qim.core.machine import ChoiceKey
from qim.core.opener import Opener
from qim.core.ports.registry import Role


def chance(number: int) -> Opener:
    def choose(site: str, key: ChoiceKey) -> int:
        return number

    return Opener(choose, Role.FANOUT)


def test_a_name_is_of_one_life_of_one_role() -> None:
    others = [Opener(lambda site, key: 1, role).name for role in Role]
    assert len({*others, chance(1).name, chance(2).name}) == len(others) + 1
    assert chance(1).name == Opener(lambda site, key: 1, Role.FANOUT).name


def test_a_key_is_of_one_try_and_never_a_name() -> None:
    opener = chance(1)
    places = [(0, 1, 1), (0, 1, 2), (0, 2, 1), (1, 1, 1)]
    keys = {opener.fresh_key(*place) for place in places}
    assert len(keys) == len(places)
    assert opener.name not in keys
    assert opener.fresh_key(0, 1, 1) != chance(2).fresh_key(0, 1, 1)
