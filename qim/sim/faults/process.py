"""What happens to processes and their clocks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qim.core.ports.local import DrainRequested
from qim.sim.faults.base import FaultBase

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class Crash(FaultBase, frozen=True, kw_only=True, gc=False, tag="crash"):
    """kill -9 between two effects of the next step (``salt`` says which), then a new process after ``down_ms``."""

    node: str
    salt: int = 0
    down_ms: int = 500

    def begin(self, scene: "Scene") -> None:
        scene.kill(self.node, self.salt, self.down_ms)


class Pause(FaultBase, frozen=True, kw_only=True, gc=False, tag="pause"):
    """SIGSTOP between two effects of the next step; at ``until_ms`` a zombie finds what came and sends what it held."""

    node: str
    salt: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        generation = scene.stop(self.node, self.salt)

        def resume() -> None:
            scene.resume(self.node, generation)

        return resume


class SlowNode(FaultBase, frozen=True, kw_only=True, gc=False, tag="slow"):
    """Everything this process hands out takes ``extra_ms`` more."""

    node: str
    extra_ms: int

    def begin(self, scene: "Scene") -> Callable[[], None]:
        node = scene.nodes[self.node]
        node.slow_ms = self.extra_ms

        def restore() -> None:
            node.slow_ms = 0

        return restore


class Restart(FaultBase, frozen=True, kw_only=True, gc=False, tag="restart"):
    """A graceful stop (one step of a rolling restart): drained, gone, and back after ``down_ms``."""

    node: str
    down_ms: int = 500

    def begin(self, scene: "Scene") -> None:
        scene.drain(self.node, self.down_ms, DrainRequested())


class ScaleOut(FaultBase, frozen=True, kw_only=True, gc=False, tag="scale_out"):
    """One more process of a role, for good."""

    role: str

    def begin(self, scene: "Scene") -> None:
        scene.add(self.role)


class WallStep(FaultBase, frozen=True, kw_only=True, gc=False, tag="wall_step"):
    """The wall clock of a process (or of ``log``) jumps by ``by_ms``, forth or back."""

    node: str
    by_ms: int

    def begin(self, scene: "Scene") -> None:
        scene.wall_of(self.node).shift(scene.world.now, self.by_ms)


class ClockFreeze(FaultBase, frozen=True, kw_only=True, gc=False, tag="freeze"):
    """Wall and monotonic clock of a process stand still; afterwards they jump to where they would be."""

    node: str

    def begin(self, scene: "Scene") -> Callable[[], None]:
        node = scene.nodes[self.node]
        clocks = (node.wall, node.monotonic)
        for clock in clocks:
            clock.freeze(scene.world.now)

        def thaw() -> None:
            for clock in clocks:
                clock.thaw(scene.world.now)

        return thaw
