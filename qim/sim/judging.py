"""What the services answer each user once a world has settled, asked by a process of its own, as a gateway would ask.

What is asked stands in asking.py; here it travels through the world's network, and is repeated when refused for the moment.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, assert_never

from qim.core.contract.sequences import before_first
from qim.core.ports.local import Started
from qim.core.ports.log import Topic
from qim.core.ports.network import Received, Send
from qim.core.ports.registry import Resource, Role
from qim.core.retention import RetentionPolicy
from qim.sim.asking import Asking, Later, Projected, Question, StatesEnd, Wanted, is_not_now
from qim.sim.choice import choose
from qim.sim.node import Host
from qim.sim.told import Told
from qim.sim.visible import Clock, Visible

if TYPE_CHECKING:
    from qim.sim.scene import Scene

ASK_AGAIN_MS: Final = 5_000
"""Longer than any service takes over a question that it answers or ends."""
PATIENCE_MS: Final = 30_000
LOOK_MS: Final = 20
EVENTS_MAX: Final = 100_000
"""Of the whole judging: more means that machines keep each other busy."""


class Judge:
    """Sends one question at a time and keeps its answer; a machine only in its shape."""

    def __init__(self) -> None:
        self._rid = 1 << 60
        self._asked: Send | None = None
        self._out: list[Send] = []
        self.answer: Any = None

    def ask(self, address: str, message: Any) -> None:
        """The next question; what may still come for an older one is not heard."""
        self._rid += 1
        named = type(message)(
            **{f: getattr(message, f) for f in message.__struct_fields__} | {"rid": self._rid}
        )
        self._out.append(Send(address=address, message=named))
        self.answer = None

    def step(self, now: int, events: Sequence[Any]) -> list[Send]:
        """Hear answers of the question asked last, hand out what is to be asked."""
        for event in events:
            if isinstance(event, Received) and getattr(event.message, "rid", 0) == self._rid:
                self.answer = event.message
        out, self._out = self._out, []
        return out

    def deadline(self) -> None:
        """Nothing by itself."""

    def check(self) -> None:
        """Nothing of its own."""

    def idle(self) -> bool:
        """Always."""
        return True


class WorldClocks:
    """The clocks of a world's processes."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene

    def of(self, *resources: Resource) -> Clock:
        """What the clocks of those show who hold these."""
        scene = self._scene
        walls: list[int] = []
        for resource in resources:
            leased = scene.registry.leases.get(resource)
            if leased is not None and leased.address:
                walls.append(scene.nodes[leased.address].wall.read(scene.world.now))
        latest = [scene.history.expired_before, *walls]
        if any(resource.role is Role.SESSION for resource in resources):
            # A summary that is kept is the word of whoever owned the conversation then, by a clock that may be ahead.
            writers = [node for node in scene.nodes.values() if node.role == "writer"]
            latest += [node.wall.read(scene.world.now) for node in writers]
        # What the archive let go is gone, though its owner's clock may be behind.
        walls.append(max(latest))
        policy = RetentionPolicy(ephemeral_ms=scene.plan.parameters.ephemeral_ms)
        return Clock(earliest=min(walls, default=0), latest=max(walls, default=0), policy=policy)


class Judging:
    """One judging of one world."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self._judge = Judge()
        self._asking = Asking(scene.plan.topology, WorldClocks(scene))
        node = scene.make_node("judge-1", "judge")
        self._host = Host(
            node,
            "judge-1/judge",
            self._judge,
            scene.routes,
            identity=choose(scene.plan.seed, "process", ("judge-1", 0, "judge")),
            observe=scene.observe,
        )
        self._events_max = scene.world.events + EVENTS_MAX
        scene.network.addresses[node.name] = self._host
        node.start([self._host])

    def told(self, user: int, visible: Visible) -> Told:
        """Everything about one user."""
        told = Told()
        asked = self._asking.about(user, visible, told)
        try:
            wanted = next(asked)
            while True:
                wanted = asked.send(self._found(wanted))
        except StopIteration:
            return told

    def _found(self, wanted: Wanted) -> Any:
        scene = self._scene
        match wanted:
            case Question():
                return self._answer(wanted.resource, wanted.message)
            case Projected():
                start = scene.log.partitions[Topic.DISPATCH, wanted.number].start
                reached = scene.history.projected.get(wanted.number, [-1])
                shard_epoch = scene.history.oracle.epoch(wanted.number)
                return before_first(shard_epoch, reached[0] if reached[0] >= 0 else start)
            case StatesEnd():
                return len(scene.log.partitions[Topic.USER_STATE, wanted.number].records)
            case Later():
                return scene.world.run(scene.world.now + wanted.ms)
            case _:
                assert_never(wanted)

    def _answer(self, resource: Resource, message: Any) -> Any:
        """Ask until it is answered with something else than «not now»."""
        scene, world = self._scene, self._scene.world
        until = world.now + PATIENCE_MS
        answer: Any = None
        while world.now < until and not world.stopped:
            # While nobody holds the lease nothing is asked, and an older question's answer is none to this one.
            self._judge.answer = None
            leased = scene.registry.leases.get(resource)
            if leased is not None and leased.address:
                self._judge.ask(leased.address, message)
                self._host.take(Started(address="judge-1", wall=0))
            again = world.now + ASK_AGAIN_MS
            while self._judge.answer is None and world.now < again and not world.stopped:
                world.run(world.now + LOOK_MS)
                if world.events > self._events_max:
                    scene.history.found("runaway", "world", f"judging: {world.events} events")
                    world.stopped = True
            answer = self._judge.answer
            if answer is not None and not is_not_now(answer):
                return answer
            world.run(world.now + LOOK_MS)
        return answer


def judge(scene: "Scene") -> None:
    """Ask for every user; a service that answers one user nothing is not asked for all the others."""
    judging = Judging(scene)
    visible = Visible(scene.history.oracle)
    for user in scene.plan.users:
        if scene.world.stopped:
            return
        scene.told[user] = judging.told(user, visible)
        if scene.told[user].unanswered:
            return
