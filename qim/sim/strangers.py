"""Connections of nobody's client: they write what no client writes and ignore what they hear."""

from typing import TYPE_CHECKING, Any, Final

from qim.core.contract.frames import Auth, Ping, encode_frame
from qim.core.ports.sockets import Dial, Write
from qim.sim.choice import choose
from qim.sim.node import Host, Node

if TYPE_CHECKING:
    from qim.sim.scene import Scene

NOISE_BYTES_MAX: Final = 300
PATIENCE_MS: Final = 20_000


class _Deaf:
    """A machine that hears and says nothing."""

    def step(self, now: int, events: Any) -> tuple[()]:
        return ()

    def deadline(self) -> None:
        return None

    def check(self) -> None:
        """Nothing to check."""

    def idle(self) -> bool:
        return True


class Strangers:
    """One process that opens a connection for each piece of garbage."""

    def __init__(self, scene: "Scene", node: Node) -> None:
        self.scene = scene
        self.node = node
        self._conns = 0
        self.host = Host(
            node,
            f"{node.name}/stranger",
            _Deaf(),
            {},
            identity=choose(0, node.name, ()),
            observe=scene.observe,
        )
        node.start([self.host])

    def dial(self, gateway: str, kind: int, salt: int) -> None:
        """Dial, and write once the stream should be open."""
        self._conns += 1
        conn = self._conns
        streams, world = self.scene.streams, self.scene.world
        streams.dial(self.host, Dial(conn=conn, address=gateway))
        if kind == 4:
            return
        data = _garbage(kind, salt)
        world.at(world.now + 200, 0, self._write, Write(conn=conn, data=data))

    def _write(self, effect: Write) -> None:
        self.scene.count("client.garbage")
        self.scene.streams.write(self.host, effect)


def _garbage(kind: int, salt: int) -> bytes:
    if kind == 0:
        size = 1 + salt % NOISE_BYTES_MAX
        return b"".join(
            choose(salt, "noise", (i,)).to_bytes(8, "big") for i in range(size // 8 + 1)
        )
    if kind == 1:
        return b"\xff\xff\xff\xff\x00\x10\x00\x00" + bytes(8)
    if kind == 2:
        return encode_frame(Ping(client_time=salt % 2**32), stream=0, request=1)
    auth = Auth(access_token="nobody", device_id=b"x", attempt=1, cursor=None)
    whole = encode_frame(auth, stream=0, request=1)
    return whole[: 1 + salt % (len(whole) - 1)]
