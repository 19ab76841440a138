"""What happens between processes, and to their leases."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qim.core.ports.registry import Resource, Role
from qim.sim.faults.kind import FaultBase
from qim.sim.network import Trouble

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class LeaseExpires(FaultBase, frozen=True, kw_only=True, gc=False, tag="lease_expires"):
    """A lease runs out under its live owner."""

    role: Role
    number: int

    def begin(self, scene: "Scene") -> None:
        scene.registry.expire(Resource(role=self.role, number=self.number))


class RegistrySetBack(FaultBase, frozen=True, kw_only=True, gc=False, tag="registry_set_back"):
    """An older copy of the registry is put back: it forgets the last ``epochs`` grants of a resource, and grants them again."""

    role: Role
    number: int
    epochs: int = 1

    def begin(self, scene: "Scene") -> None:
        scene.registry.set_back(Resource(role=self.role, number=self.number), self.epochs)


class RegistryRepliesLost(FaultBase, frozen=True, kw_only=True, gc=False, tag="registry_replies"):
    """Requests are applied, answers are not heard; ``rate`` of 65,536."""

    rate: int

    def begin(self, scene: "Scene") -> Callable[[], None]:
        scene.registry.reply_lost += self.rate

        def restore() -> None:
            scene.registry.reply_lost -= self.rate

        return restore


class RegistryLags(FaultBase, frozen=True, kw_only=True, gc=False, tag="registry_lags"):
    """Gateways are shown who owned a shard before the latest change."""

    def begin(self, scene: "Scene") -> Callable[[], None]:
        scene.registry.lagging = True

        def restore() -> None:
            scene.registry.lagging = False

        return restore


class Messages(FaultBase, frozen=True, kw_only=True, gc=False, tag="messages"):
    """Messages between processes are lost, doubled, overtaken on another connection, or slow; rates of 65,536."""

    source: str = "*"
    target: str = "*"
    drop: int = 0
    repeat: int = 0
    overtake: int = 0
    extra_ms: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        trouble = Trouble(
            self.source,
            self.target,
            drop=self.drop,
            repeat=self.repeat,
            overtake=self.overtake,
            extra_ms=self.extra_ms,
        )
        scene.network.troubles.append(trouble)

        def restore() -> None:
            scene.network.troubles.remove(trouble)

        return restore


class Partition(FaultBase, frozen=True, kw_only=True, gc=False, tag="partition"):
    """Nothing gets from ``source`` to ``target`` (processes, ``store``, ``log``, ``registry``, "*"); or both ways."""

    source: str
    target: str
    two_way: bool = True

    def begin(self, scene: "Scene") -> Callable[[], None]:
        cuts = scene.network.cuts
        pairs = [(self.source, self.target)]
        if self.two_way:
            pairs.append((self.target, self.source))
        for pair in pairs:
            cuts.append(pair)
        scene.count("partition.two_way" if self.two_way else "partition.one_way")

        def heal() -> None:
            for pair in pairs:
                cuts.remove(pair)
            scene.streams.healed()

        return heal


class Sockets(FaultBase, frozen=True, kw_only=True, gc=False, tag="sockets"):
    """Streams are reset at any byte, or their bytes come in pieces; rates of 65,536 a write."""

    reset: int = 0
    split: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        streams = scene.streams
        streams.reset_odds += self.reset
        streams.split_odds += self.split

        def restore() -> None:
            streams.reset_odds -= self.reset
            streams.split_odds -= self.split

        return restore
