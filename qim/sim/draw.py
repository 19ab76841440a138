"""Keyed draws for plans: by what is decided, never by how much was drawn before."""

from collections.abc import Sequence
from typing import TypeVar

from qim.core.machine import ChoiceKey
from qim.sim.choice import choose

T = TypeVar("T")


class Draw:
    """Keyed draws of one plan."""

    def __init__(self, seed: int, profile: str) -> None:
        self.seed = seed
        self.profile = profile

    def number(self, low: int, high: int, site: str, *key: int | str) -> int:
        """low..high, both inclusive."""
        return low + self.raw(site, *key) % (high - low + 1)

    def chance(self, percent: int, site: str, *key: int | str) -> bool:
        """True in ``percent`` of 100."""
        return self.raw(site, *key) % 100 < percent

    def pick(self, options: Sequence[T], site: str, *key: int | str) -> T:
        """One of them."""
        return options[self.raw(site, *key) % len(options)]

    def raw(self, site: str, *key: int | str) -> int:
        """u64."""
        whole: ChoiceKey = (self.profile, *key)
        return choose(self.seed, f"plan.{site}", whole) >> 7
