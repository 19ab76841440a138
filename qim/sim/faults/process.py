"""What happens to processes and their clocks."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qim.core.contract.logvalue import barrier_value
from qim.core.ports.completion import StoreRole
from qim.core.ports.local import DrainRequested
from qim.core.ports.log import Append, LogRecord, Topic
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_message import OpenShard, ShardOpened
from qim.sim.faults.kind import FaultBase

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class Crash(FaultBase, frozen=True, kw_only=True, gc=False, tag="crash"):
    """kill -9 between two effects of the next step (``salt`` says which), then a new process after ``down_ms``.

    With ``at_effect``: right before or after the next order of that name.
    """

    node: str
    salt: int = 0
    down_ms: int = 500
    at_effect: str = ""

    def begin(self, scene: "Scene") -> None:
        scene.kill(self.node, self.salt, self.down_ms, self.at_effect)


class Pause(FaultBase, frozen=True, kw_only=True, gc=False, tag="pause"):
    """SIGSTOP between two effects of the next step; at ``until_ms`` a zombie finds what came and sends what it held."""

    node: str
    salt: int = 0
    at_effect: str = ""

    def begin(self, scene: "Scene") -> Callable[[], None]:
        generation = scene.stop(self.node, self.salt, self.at_effect)

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


class Lost(FaultBase, frozen=True, kw_only=True, gc=False, tag="lost"):
    """A process is gone for good, or stopped for ever with its sockets open: the others of its role must do without it."""

    node: str
    stopped: bool = False

    def begin(self, scene: "Scene") -> None:
        if self.stopped:
            scene.stop(self.node, 0)
            scene.count("process.stopped_for_ever")
        else:
            scene.lose(self.node)
            scene.count("process.lost")


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


class Usurper(FaultBase, frozen=True, kw_only=True, gc=False, tag="usurper"):
    """Another process takes a writer shard, opens it, and is never seen again; its barrier lands ``late_ms`` later."""

    number: int
    late_ms: int = 0

    def begin(self, scene: "Scene") -> None:
        resource = Resource(role=Role.WRITER, number=self.number)
        epoch = scene.registry.usurp(resource)
        host = scene.strangers.host
        store = scene.stores[StoreRole.MESSAGE]
        if scene.world.now < store.down_until:
            return
        name = b"usurper" + bytes(9)
        request = OpenShard(op=0, shard=self.number, epoch=epoch, fresh_key=name, opener=name)
        answer = store.ask(request)
        scene.history.store(host, request, answer)
        if not isinstance(answer, ShardOpened):
            return
        scene.count("writer.usurped")
        barrier = LogRecord(key=b"", value=barrier_value(epoch))
        effect = Append(
            op=0, topic=Topic.OUTBOX, partition=self.number, epoch=epoch, records=(barrier,)
        )

        def landed(_: object) -> None:
            (stored,) = scene.log.put(host, effect)
            if not self.late_ms:
                scene.registry.lease(resource).barriers.append((epoch, stored.offset))

        scene.world.at(scene.world.now + self.late_ms, 0, landed, None)
