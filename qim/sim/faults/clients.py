"""What clients do, and strangers that pretend to be some."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from qim.sim.faults.kind import FaultBase

if TYPE_CHECKING:
    from qim.sim.scene import Scene

USER_MS: Final = 2_000


class CursorDamaged(FaultBase, frozen=True, kw_only=True, gc=False, tag="cursor_damaged"):
    """A client comes back with another cursor: tampered with, or ancient (its first one). It must rebuild and end whole."""

    node: str
    ancient: bool = False

    def begin(self, scene: "Scene") -> None:
        node, device = scene.nodes[self.node], scene.devices[self.node]
        if not node.alive:
            return
        scene.kill_now(self.node, 50)
        cursor = device.cursor
        if cursor is None:
            return
        if self.ancient:
            device.cursor = None
            device.covered_through = 0
        else:
            device.cursor = bytes((cursor[0] ^ 1, *cursor[1:]))
        scene.count("client.cursor_damaged")


class Twin(FaultBase, frozen=True, kw_only=True, gc=False, tag="twin"):
    """The same device a second time, from a copy that knows nothing, until ``until_ms``: one of the two is kicked.

    REPLACED is final until the user acts, so when the copy is gone the user looks at the first one again.
    """

    node: str

    def begin(self, scene: "Scene") -> Callable[[], None]:
        name = scene.add_twin(self.node)

        def gone() -> None:
            scene.remove_twin(name)
            scene.workload.wake(self.node)
            # A stopped process hears that it was replaced only when it runs again: the user acts once more then.
            scene.world.at(scene.plan.heal_ms + USER_MS, 0, scene.workload.wake, self.node)

        return gone


class Garbage(FaultBase, frozen=True, kw_only=True, gc=False, tag="garbage"):
    """A stranger dials a gateway and writes bytes no client writes; nobody else may notice.

    kind 0: noise; 1: a header that promises far too much; 2: a known frame before AUTH; 3: a frame cut short, then
    silence; 4: nothing at all.
    """

    gateway: str
    kind: int
    salt: int = 0

    def begin(self, scene: "Scene") -> None:
        scene.strangers.dial(self.gateway, self.kind, self.salt)


class UserActs(FaultBase, frozen=True, kw_only=True, gc=False, tag="user_acts"):
    """The user asks for a connection again and again, connected or not (retry storm)."""

    node: str
    times: int

    def begin(self, scene: "Scene") -> None:
        for index in range(self.times):
            at = scene.world.now + 1 + index * 3
            scene.world.at(at, 0, scene.workload.wake, self.node)
