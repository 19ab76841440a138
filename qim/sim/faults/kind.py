"""What every fault has in common; the kinds stand beside, by what they hit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from qim.sim.scene import Scene

TOLERATED: Final = "tolerated"


class Rated(Protocol):
    """A service of the world that fails at rates; ``rated`` says at a glance whether any window is open."""

    rated: bool
    rated_windows: int

    @property
    def rates(self) -> Struct: ...


def open_window(service: Rated, fault: Struct) -> Callable[[], None]:
    """Raise each rate of ``service`` by what ``fault`` has under its name; the answer lowers them again."""
    rates = service.rates

    def change(sign: int) -> None:
        for name in rates.__struct_fields__:
            setattr(rates, name, getattr(rates, name) + sign * getattr(fault, name))
        service.rated_windows += sign
        service.rated = service.rated_windows > 0

    change(1)
    return lambda: change(-1)


class FaultBase(Struct, frozen=True, kw_only=True, gc=False):
    """What every fault has: when it begins, and when what it does to rates and wires ends (0: it only begins)."""

    at_ms: int
    until_ms: int = 0
    tolerated: ClassVar[bool] = True
    drawn_by: ClassVar[str] = "swarm"
    """The profile in which the census must see it."""

    def expected(self) -> str:
        """TOLERATED, or the name of the check that must fire, silence being the failure."""
        return TOLERATED

    def begin(self, scene: "Scene") -> Callable[[], None] | None:
        """Make it happen; give back what undoes it at ``until_ms``."""
        raise NotImplementedError
