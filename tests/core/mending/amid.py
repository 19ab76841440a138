"""An operator amid a living world: a procedure as a machine of its own process, over the world's network and time."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from qim.core.mending.asking import NotMended, Procedure
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local import Started
from qim.core.ports.store import store_role
from qim.sim.choice import choose
from qim.sim.node import Host
from qim.sim.scene import Scene

AGAIN_MS: Final = 700
RUNS_MAX: Final = 20
STORE_MS: Final = 2


class Operator:
    """Runs ``procedure``, and again where it was refused, as every refusal says; ``report`` once it came to its end."""

    def __init__(self, procedure: Callable[[], Procedure[Any]]) -> None:
        self._begun = procedure
        self._running: Procedure[Any] | None = None
        self._op = 0
        self._again_at: int | None = None
        self.refusals: list[str] = []
        self.report: Any = None

    def step(self, now: int, events: Sequence[Any]) -> list[Any]:
        out: list[Any] = []
        for event in events:
            if isinstance(event, Started):
                self._again_at = now
            elif getattr(event, "op", 0) == self._op and self._running is not None:
                self._go(now, event, out)
        if self._again_at is not None and now >= self._again_at:
            self._again_at, self._running = None, self._begun()
            self._go(now, None, out)
        return out

    def _go(self, now: int, answer: Any, out: list[Any]) -> None:
        assert self._running is not None
        try:
            request = self._running.send(answer)
        except StopIteration as done:
            self._running, self.report = None, done.value
            return
        except NotMended as refused:
            self._running = None
            self.refusals.append(str(refused))
            if len(self.refusals) < RUNS_MAX:
                self._again_at = now + AGAIN_MS
            return
        self._op += 1
        out.append(replace(request, op=self._op))

    def deadline(self) -> int | None:
        return self._again_at

    def check(self) -> None:
        """Nothing of its own."""

    def idle(self) -> bool:
        return self._running is None and self._again_at is None


def ordered(scene: Scene, procedure: Callable[[], Procedure[Any]], patience_ms: int) -> Operator:
    """Have it carried out while the world goes on."""
    operator = Operator(procedure)
    node = scene.make_node("operator-1", "operator")
    identity = choose(scene.plan.seed, "process", (node.name,))
    routes = _Routes(scene)
    node.start([Host(node, "operator-1/operator", operator, routes, identity=identity)])
    until = scene.world.now + patience_ms
    while scene.world.now < until and not scene.world.stopped and operator.report is None:
        scene.world.run(scene.world.now + 50)
    return operator


class _Routes(dict[type, Any]):
    """The services' routes; what only an operator asks of a store goes straight to it."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.routes)
        self._scene = scene

    def __missing__(self, kind: type) -> Any:
        return self._store

    def _store(self, host: Host, request: Any) -> None:
        scene, world = self._scene, self._scene.world
        store = scene.stores[store_role(request)]

        def arrive(_: object) -> None:
            if world.now < max(store.down_until, store.stalled_until):
                host.take(Failed(op=request.op, why=FailReason.UNREACHABLE))
            else:
                host.take(replace(store.ask(request), op=request.op))

        world.at(world.now + STORE_MS, 0, arrive, None)
