"""What clients do, and strangers that pretend to be some."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from qim.core.contract.cursor import decode_cursor, encode_cursor
from qim.core.contract.errors import ProtocolError
from qim.sim.faults.kind import FaultBase
from qim.sim.secret import SECRET

if TYPE_CHECKING:
    from qim.sim.scene import Scene

FUTURE_RECORDS: Final = 10_000


class CursorDamaged(FaultBase, frozen=True, kw_only=True, gc=False, tag="cursor_damaged"):
    """A client comes back with another cursor and must end whole: ``how`` is tampered, ancient (none), or future.

    A future cursor is rightly signed and names what the log has not got yet, as after a loss nobody was told of.
    """

    node: str
    how: str = "tampered"

    def begin(self, scene: "Scene") -> None:
        node, device = scene.nodes[self.node], scene.devices[self.node]
        cursor = device.cursor
        if not node.alive or cursor is None:
            return
        scene.kill_now(self.node, 50)
        if self.how == "ancient":
            device.cursor = None
            device.covered_through = 0
        elif self.how == "future":
            try:
                known = decode_cursor(cursor, SECRET)
            except ProtocolError:
                return  # it was tampered with before
            device.cursor = encode_cursor(replace(known, seq=known.seq + FUTURE_RECORDS), SECRET)
        else:
            device.cursor = bytes((cursor[0] ^ 1, *cursor[1:]))
        scene.count(f"client.cursor_{self.how}")


class Twin(FaultBase, frozen=True, kw_only=True, gc=False, tag="twin"):
    """The same device a second time, from a copy that knows nothing, until ``until_ms``: one of the two is kicked.

    REPLACED is final until the user acts: the user looks at the first one again whenever it says so (workload.py).
    """

    node: str

    def begin(self, scene: "Scene") -> Callable[[], None]:
        name = scene.add_twin(self.node)

        def gone() -> None:
            scene.lose(name)
            scene.workload.wake(self.node)

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
