"""An operator amid a living world whose test stops and starts the processes itself."""

from collections.abc import Callable
from typing import Any

from qim.core.mending.asking import Procedure
from qim.sim.operators import Operator
from qim.sim.scene import Scene


def ordered(scene: Scene, procedure: Callable[[], Procedure[Any]], patience_ms: int) -> Operator:
    """Have it carried out while the world goes on."""
    scene.operators.expect()
    operator = scene.operators.order((), lambda name: procedure(), 0)
    until = scene.world.now + patience_ms
    while scene.world.now < until and not scene.world.stopped and operator.report is None:
        scene.world.run(scene.world.now + 50)
    return operator
