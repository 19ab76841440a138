"""Operators amid a living world: a procedure of qim/core/mending/ as a process of its own, over the world's wires and time.

Every process of the roles that a procedure wants stopped is killed and kept down until it is over (a supervisor that is told
to wait). A refusal is answered as it says: the same again, later. A run may stop anywhere; the next one is another's, and
waits for the leases of the first.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

from msgspec.structs import replace

from qim.core.contract.hashing import H
from qim.core.mending.asking import NothingYet, NotMended, Procedure
from qim.core.ports.completion import StoreRole
from qim.core.ports.local import Started
from qim.core.ports.store_operator import OperatorMailboxRequest, OperatorMessageRequest
from qim.sim.choice import choose
from qim.sim.node import Host, Node

if TYPE_CHECKING:
    from qim.sim.scene import Scene

AGAIN_MS: Final = 700
KEPT_DOWN_MS: Final = 100
"""How often a supervisor looks whether it may start what is kept down."""
Begun = Callable[[str], Procedure[Any]]
"""The procedure of a run, given the name of who carries it out."""


class Operator:
    """Carries a procedure out, and again where it was refused. ``stops_after``: so many requests after which the first run ends."""

    def __init__(
        self, name: str, begun: Begun, over: Callable[[Any], None], stops_after: int
    ) -> None:
        self._name = name
        self._begun = begun
        self._over = over
        self._stops_after = stops_after
        self._running: Procedure[Any] | None = None
        self._run = 0
        self._op = 0
        self._again_at: int | None = None
        self.refusals: list[str] = []
        self.report: Any = None
        """Once a run came to its end."""

    def step(self, now: int, events: Sequence[Any]) -> list[Any]:
        """Hear the answer to the last request, ask the next one."""
        out: list[Any] = []
        for event in events:
            if isinstance(event, Started):
                self._again_at = now
            elif getattr(event, "op", 0) == self._op and self._running is not None:
                self._go(now, event, out)
        if self._again_at is not None and now >= self._again_at:
            self._again_at, self._running = None, self._begun(f"{self._name}.{self._run}")
            self._go(now, None, out)
        return out

    def _go(self, now: int, answer: Any, out: list[Any]) -> None:
        assert self._running is not None
        try:
            request = self._running.send(answer)
        except StopIteration as done:
            self._end(done.value)
            return
        except NothingYet as nothing:
            self._end(nothing)
            return
        except NotMended as refused:
            self.refusals.append(str(refused))
            self._running, self._again_at = None, now + AGAIN_MS
            return
        self._op += 1
        out.append(replace(request, op=self._op))
        if self._op == self._stops_after:
            # What it had asked may still be done; nobody hears of it, and nobody gives its leases back.
            self._running, self._again_at, self._run = None, now + AGAIN_MS, self._run + 1

    def _end(self, report: Any) -> None:
        self._running, self.report = None, report
        self._over(report)

    def deadline(self) -> int | None:
        """The next run."""
        return self._again_at

    def check(self) -> None:
        """Nothing of its own."""

    def idle(self) -> bool:
        """Between runs, or at the end."""
        return self._running is None


class Operators:
    """Who is at work in a world, and which roles are kept down for it."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self._down: dict[str, int] = {}
        self._working = 0
        self._made = 0
        self.reports: list[Any] = []

    def working(self) -> int:
        """Acts that have not come to their end."""
        return self._working

    def keeps_down(self, role: str) -> bool:
        """No process of this role may start now."""
        return self._down.get(role, 0) > 0

    def expect(self) -> None:
        """Somebody has something to mend, and orders it when they have noticed."""
        self._working += 1

    def order(self, roles: tuple[str, ...], begun: Begun, stops_after: int) -> Operator:
        """Stop all processes of ``roles``, have it carried out, let them start again. It was expected."""
        scene = self._scene
        self._made += 1
        scene.count("operator.ordered")
        for role in roles:
            self._down[role] = self._down.get(role, 0) + 1
        for node in list(scene.nodes.values()):
            if node.role in roles:
                scene.kill_now(node.name, 1)
        node = scene.make_node(f"operator-{self._made}", "operator")

        def over(report: Any) -> None:
            scene.world.at(scene.world.now, 0, self._over, (node, roles, report))

        machine = Operator(node.name, begun, over, stops_after)
        identity = choose(scene.plan.seed, "process", (node.name, 0, "operator"))
        routes = {
            **scene.routes,
            **dict.fromkeys(get_args(OperatorMailboxRequest), scene.boxes.request),
            **dict.fromkeys(
                get_args(OperatorMessageRequest), scene.stores[StoreRole.MESSAGE].request
            ),
        }
        node.start(
            [
                Host(
                    node,
                    f"{node.name}/operator",
                    machine,
                    routes,
                    identity=identity,
                    observe=scene.observe,
                )
            ]
        )
        return machine

    def _over(self, payload: tuple[Node, tuple[str, ...], Any]) -> None:
        node, roles, report = payload
        scene = self._scene
        self.reports.append(report)
        scene.history.acted(report)
        self._working -= 1
        for role in roles:
            self._down[role] -= 1
        scene.count(f"operator.{type(report).__name__}")
        scene.lose(node.name)


def key_of(name: str) -> bytes:
    """What a run marks an empty store with."""
    return H("qim.sim.operator", name)
