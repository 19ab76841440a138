"""The network between services: every message goes through its wire bytes; connections keep their order.

What may happen to a message: latency, loss, a double, a second connection that overtakes, one-way and two-way partitions.
Nothing is owed for a Send (ports/network.py).
"""

from typing import TYPE_CHECKING, Any

from qim.core.contract.rpc import decode_message, encode_message
from qim.core.ports.network import Received, Send
from qim.sim.choice import DETAIL_MASK, DETAIL_SHIFT, TIEBREAK_SHIFT, Way, fault_level
from qim.sim.node import Host
from qim.sim.sites import RPC, RPC_REPEAT

if TYPE_CHECKING:
    from qim.sim.world import World


class Trouble:
    """What is wrong between two names now: rates of 65,536. Names may be "*"."""

    __slots__ = ("drop", "extra_ms", "overtake", "repeat", "source", "target")

    def __init__(
        self,
        source: str,
        target: str,
        *,
        drop: int = 0,
        repeat: int = 0,
        overtake: int = 0,
        extra_ms: int = 0,
    ) -> None:
        self.source = source
        self.target = target
        self.drop = drop
        self.repeat = repeat
        self.overtake = overtake
        self.extra_ms = extra_ms

    def concerns(self, source: str, target: str) -> bool:
        return self.source in ("*", source) and self.target in ("*", target)


class Cuts(list[tuple[str, str]]):
    """One-way partitions between named things (processes, ``store``, ``log``, ``registry``), as (source, target).

    A list, because every hop asks whether there is any: that must not be a call.
    """

    __slots__ = ()

    def between(self, source: str, target: str) -> bool:
        """True if nothing gets from ``source`` to ``target`` now."""
        for a, b in self:  # noqa: SIM110 - asked at every hop, and a generator costs more than the answer
            if (a == "*" or a == source) and (b == "*" or b == target):
                return True
        return False


class Network:
    """Routes ``Send``; ``addresses`` names the host that hears ``Received`` for a process."""

    def __init__(self, world: "World", *, base_ms: int, spread_ms: int) -> None:
        self.world = world
        self.way = Way(base_ms, spread_ms)
        self.cuts = Cuts()
        self.troubles: list[Trouble] = []
        self.addresses: dict[str, Host] = {}
        self.counts: dict[str, int] = {}

    def send(self, host: Host, effect: Send) -> None:
        """Encode, draw, and let it travel."""
        world = self.world
        message = effect.message
        data = encode_message(message)
        traces = effect.traces
        identity = traces[0] if traces else host.identity
        draw = world.dice.draw(RPC[type(message)], identity)
        source = host.node.name
        world.trace.entries.append((world.now, source, effect.address, data))
        tiebreak = draw >> TIEBREAK_SHIFT
        arrival = world.now + self.way.there(draw) + host.node.slow_ms
        payload = (source, effect.address, data)
        if self.troubles:
            arrival, lane_kept = self._trouble(draw, arrival, tiebreak, payload, identity)
            if arrival < 0:
                return
            if not lane_kept:
                world.at(arrival, tiebreak, self._arrive, payload)
                return
        at, order = host.in_line(effect.address, arrival, tiebreak)
        world.at(at, order, self._arrive, payload)

    def _trouble(
        self, draw: int, arrival: int, tiebreak: int, payload: tuple[str, str, bytes], identity: int
    ) -> tuple[int, bool]:
        """(arrival or -1 for lost, whether the connection's order holds)."""
        detail = draw >> DETAIL_SHIFT & DETAIL_MASK
        for trouble in self.troubles:
            if not trouble.concerns(payload[0], payload[1]):
                continue
            arrival += trouble.extra_ms
            level = fault_level(draw)
            if level < trouble.drop:
                self._count("network.drop")
                return -1, True
            level -= trouble.drop
            if 0 <= level < trouble.repeat:
                self._count("network.repeat")
                again = self.world.dice.draw(RPC_REPEAT, identity)
                self.world.at(
                    arrival + 1 + again % 3_000, again >> TIEBREAK_SHIFT, self._arrive, payload
                )
                return arrival, True
            level -= trouble.repeat
            if 0 <= level < trouble.overtake:
                self._count("network.overtake")
                return arrival + detail % 400, False
        return arrival, True

    def _arrive(self, payload: tuple[str, str, bytes]) -> None:
        source, address, data = payload
        if self.cuts and self.cuts.between(source, address):
            self._count("network.cut")
            return
        target = self.addresses.get(address)
        if target is None or target.dead:
            return
        node = target.node
        if node.paused:
            node.unread.append((self._arrive, payload))
            return
        wall = node.wall.read(self.world.now)
        target.take(Received(source=source, wall=wall, message=decode_message(data)))

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def drop_send(host: Host, effect: Any) -> None:
    """A route for effects that go nowhere in this world."""
