"""What every fault has in common; the kinds stand beside, by what they hit."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

if TYPE_CHECKING:
    from qim.sim.scene import Scene

TOLERATED: Final = "tolerated"


class FaultBase(Struct, frozen=True, kw_only=True, gc=False):
    """What every fault has: when it begins, and when what it does to rates and wires ends (0: it only begins)."""

    at_ms: int
    until_ms: int = 0
    tolerated: ClassVar[bool] = True

    def expected(self) -> str:
        """TOLERATED, or the name of the check that must fire, silence being the failure."""
        return TOLERATED

    def begin(self, scene: "Scene") -> Callable[[], None] | None:
        """Make it happen; give back what undoes it at ``until_ms``."""
        raise NotImplementedError
