"""A process of the world: machines behind inboxes, routes from their effects to the fakes, and ways to die.

A crash is the loss of the object: entries addressed to a dead host fall on the floor. It may come between any two effects
of one step. A paused process takes nothing and steps nothing, while what it had handed to I/O goes on; when it resumes it
finds its unread bytes and its late answers, and the effects it had checked but not yet handed over (a zombie).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from qim.core.lease import LeaseKeeper
from qim.core.machine import Choose
from qim.core.ports.local import FreshEpochWanted, LeaseGone, LeaseHeld, Started
from qim.core.ports.registry import Resource
from qim.sim.choice import machine_choose
from qim.sim.clock import Curve

if TYPE_CHECKING:
    from qim.sim.world import World

SPINS_MAX: Final = 2_000
"""Steps in a row with nothing in and nothing out: a deadline that never moves."""


class HostedMachine(Protocol):
    """What the simulator needs of any machine."""

    def step(self, now: int, events: Any) -> Any: ...

    def deadline(self) -> int | None: ...

    def check(self) -> None: ...

    def idle(self) -> bool: ...


Route = Callable[["Host", Any], None]
Observe = Callable[["Host", int, list[Any], Any], None]


class Node:
    """One process: name = address. ``generation`` rises with every start."""

    def __init__(
        self, world: "World", name: str, role: str, *, monotonic: Curve, wall: Curve
    ) -> None:
        self.world = world
        self.name = name
        self.role = role
        self.generation = 0
        self.alive = False
        self.paused = False
        self.monotonic = monotonic
        self.wall = wall
        self.hosts: list[Host] = []
        self.keeper: Host | None = None
        self.doom: int | None = None
        self.doom_pauses = False
        self.doom_effect = ""
        self.unchecked = False
        self.crashed: Callable[[Node], None] = _unheard
        self.died: Callable[[Host, BaseException], None] = _unheard_death
        self.slow_ms = 0
        self.unread: list[tuple[Callable[[Any], None], Any]] = []
        """What came over the wire while the process was stopped: read at ``resume`` by the same targets."""

    def choose(self) -> Choose:
        """The entropy of the present generation's machines."""
        return machine_choose(self.world.dice.seed, self.name, self.generation)

    def start(self, hosts: list["Host"]) -> None:
        """A new generation with these hosts; every machine begins with ``Started``."""
        assert not self.alive, self.name
        self.alive = True
        self.paused = False
        self.doom = None
        self.hosts = hosts
        self.keeper = next((h for h in hosts if isinstance(h.machine, LeaseKeeper)), None)
        wall = self.wall.read(self.world.now)
        for host in hosts:
            host.take(Started(address=self.name, wall=wall))

    def crash(self) -> None:
        """kill -9: the objects are gone, whatever they had handed to I/O goes on without them."""
        self.alive = False
        self.paused = False
        for host in self.hosts:
            host.die()
        self.hosts = []
        self.keeper = None
        self.unread = []
        self.doom = None
        self.generation += 1
        self.crashed(self)

    def pause(self) -> None:
        """SIGSTOP: nothing is taken or stepped until ``resume``."""
        self.paused = self.alive

    def resume(self) -> None:
        """SIGCONT: everything that came meanwhile is there at once, and held effects go out now."""
        if not self.paused:
            return
        self.paused = False
        # Checked before the pause: a zombie's I/O goes out unchecked, which is what fences are for.
        self.unchecked = True
        for host in self.hosts:
            host.resume()
        self.unchecked = False
        unread, self.unread = self.unread, []
        for target, payload in unread:
            target(payload)

    def holds(self, resource: Resource, epoch: int) -> bool:
        """The driver's check as it hands an effect to I/O (pipeline.md §0); true where no keeper is hosted."""
        if self.keeper is None or self.unchecked:
            return True
        keeper: LeaseKeeper = self.keeper.machine  # type: ignore[assignment]
        return keeper.holds(resource, epoch, self.monotonic.read(self.world.now))


class Host:
    """A machine, its inbox, its timer and its routes."""

    __slots__ = (
        "_held",
        "_timer_at",
        "bus",
        "conns",
        "dead",
        "identity",
        "inbox",
        "lanes",
        "machine",
        "name",
        "node",
        "observe",
        "queued",
        "routes",
        "spins",
        "take",
        "world",
    )

    def __init__(
        self,
        node: Node,
        name: str,
        machine: HostedMachine,
        routes: Mapping[type, Route],
        *,
        identity: int,
        observe: Observe | None = None,
    ) -> None:
        self.node = node
        self.world = node.world
        self.name = name
        self.machine = machine
        self.routes = routes
        self.identity = identity
        """u64 that stands for (node, generation, machine) in draws of operations without payload."""
        self.inbox: list[Any] = []
        self.queued = False
        self.dead = False
        self.lanes: dict[Any, tuple[int, int]] = {}
        self.conns: dict[int, Any] = {}
        self.bus: list[Host] = []
        self.observe = observe
        self.spins = 0
        self.take = self._take
        self._timer_at = -1
        self._held: list[Any] = []

    def _take(self, event: Any) -> None:
        if self.dead:
            return
        self.inbox.append(event)
        if not self.queued:
            self.queued = True
            self.world.ready.append(self)

    def in_line(self, lane: Any, at: int, tiebreak: int) -> tuple[int, int]:
        """When it gets there, if nothing of ``lane`` that this process sent before may come after it."""
        place, last = (at, tiebreak), self.lanes.get(lane)
        if last is not None and last > place:
            return last
        self.lanes[lane] = place
        return place

    def tick(self, due: int) -> None:
        """A deadline has come; an outdated one only costs a look."""
        if self._timer_at == due and not self.dead:
            self._timer_at = -1
            if not self.queued:
                self.queued = True
                self.world.ready.append(self)

    def run(self) -> None:
        """One step with everything that waits, its effects routed in order."""
        self.queued = False
        node = self.node
        if self.dead or node.paused:
            return
        events, self.inbox = self.inbox, []
        world = self.world
        now = node.monotonic.read(world.now)
        machine = self.machine
        try:
            effects = machine.step(now, events)
            machine.check()
        except Exception as error:
            # Our own bug: the process dies and is started again (architecture.md), and the world is not clean.
            node.died(self, error)
            node.crash()
            return
        world.steps += 1
        world.events += len(events)
        if self.observe is not None:
            self.observe(self, now, events, effects)
        if effects or events:
            self.spins = 0
        else:
            self.spins += 1
            assert self.spins < SPINS_MAX, f"{self.name} is called again and again for nothing"
        if node.doom is not None and effects:
            self._last_step(list(effects))
        else:
            routes = self.routes
            for effect in effects:
                routes[type(effect)](self, effect)
        if not self.dead:
            self.arm()

    def arm(self) -> None:
        """Ask to be called at the machine's deadline."""
        deadline = self.machine.deadline()
        if deadline is None:
            return
        world = self.world
        due = self.node.monotonic.when(deadline, world.now)
        if self._timer_at < 0 or due < self._timer_at or self._timer_at <= world.now:
            self._timer_at = due
            world.at(due, 0, self.tick, due)

    def _last_step(self, effects: list[Any]) -> None:
        """The process dies or is stopped between two effects of this step: any two, or around one of a kind."""
        node = self.node
        assert node.doom is not None
        done = node.doom % (len(effects) + 1)
        if node.doom_effect:
            kinds = [type(effect).__name__ for effect in effects]
            done = len(effects)
            if node.doom_effect in kinds:
                done = kinds.index(node.doom_effect) + node.doom % 2
        awaited = node.doom_effect and done == len(effects) and node.doom_effect not in kinds
        if not awaited:
            node.doom = None
        for effect in effects[:done]:
            self.routes[type(effect)](self, effect)
        if awaited:
            return
        if node.doom_pauses:
            self._held = effects[done:]
            node.pause()
        else:
            node.crash()

    def resume(self) -> None:
        """Hand over what had been checked before the pause, then step with all that came meanwhile."""
        held, self._held = self._held, []
        for effect in held:
            self.routes[type(effect)](self, effect)
        if not self.queued:
            self.queued = True
            self.world.ready.append(self)

    def die(self) -> None:
        """Forget everything; streams notice by themselves."""
        self.dead = True
        self.inbox = []
        for conn in list(self.conns.values()):
            conn.host_died()
        self.conns = {}


def lease_bus(role_host: Host, keeper_host: Host) -> None:
    """Facts between the keeper and the machine whose leases it keeps, in order and without loss."""
    role_host.bus = [keeper_host]
    keeper_host.bus = [role_host]


def route_local(host: Host, effect: LeaseHeld | LeaseGone | FreshEpochWanted) -> None:
    """Same process: taken in the same millisecond. The edge stamps the wall clock (ports/local.py)."""
    if type(effect) is LeaseHeld:
        effect = LeaseHeld(
            resource=effect.resource,
            epoch=effect.epoch,
            barrier_epoch=effect.barrier_epoch,
            barrier_offset=effect.barrier_offset,
            wall=host.node.wall.read(host.world.now),
        )
    for other in host.bus:
        other.take(effect)


def _unheard(node: Node) -> None:
    """Nobody restarts it."""


def _unheard_death(host: Host, error: BaseException) -> None:
    raise error
