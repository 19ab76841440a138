"""Everything that can go wrong in a world, a class each; a plan holds instances (simulator.md, "Faults").

``begin`` makes it happen, ``end`` takes it back at ``until_ms`` (kinds that only begin have none). ``expected`` says what
the world must make of it: ``tolerated`` (ends clean) or the name of the check that must fire, silence being the failure.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from msgspec import Struct

from qim.core.ports.local import DrainRequested
from qim.core.ports.log import Topic
from qim.core.ports.registry import Resource, Role
from qim.sim.network import Trouble

if TYPE_CHECKING:
    from qim.sim.scene import Scene

TOLERATED: Final = "tolerated"


class FaultBase(Struct, frozen=True, kw_only=True, gc=False):
    """What every fault has: when it begins, and when what it does to rates and wires ends (0: it only begins)."""

    at_ms: int
    until_ms: int = 0
    expected: ClassVar[str] = TOLERATED

    def begin(self, scene: "Scene") -> Callable[[], None] | None:
        """Make it happen; give back what undoes it at ``until_ms``."""
        raise NotImplementedError


# ------------------------------------------------------------ processes


class Crash(FaultBase, frozen=True, kw_only=True, gc=False, tag="crash"):
    """kill -9 between two effects of the next step (``salt`` says which), then a new process after ``down_ms``."""

    node: str
    salt: int = 0
    down_ms: int = 500

    def begin(self, scene: "Scene") -> None:
        scene.kill(self.node, self.salt, self.down_ms)


class Pause(FaultBase, frozen=True, kw_only=True, gc=False, tag="pause"):
    """SIGSTOP between two effects of the next step; at ``until_ms`` a zombie finds what came and sends what it held."""

    node: str
    salt: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        generation = scene.stop(self.node, self.salt)

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


class ScaleOut(FaultBase, frozen=True, kw_only=True, gc=False, tag="scale_out"):
    """One more process of a role, for good."""

    role: str

    def begin(self, scene: "Scene") -> None:
        scene.add(self.role)


# ------------------------------------------------------------ clocks


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


# ------------------------------------------------------------ registry


class LeaseExpires(FaultBase, frozen=True, kw_only=True, gc=False, tag="lease_expires"):
    """A lease runs out under its live owner."""

    role: Role
    number: int

    def begin(self, scene: "Scene") -> None:
        scene.registry.expire(Resource(role=self.role, number=self.number))


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


# ------------------------------------------------------------ network


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
            cuts.add(*pair)
        scene.count("partition.two_way" if self.two_way else "partition.one_way")

        def heal() -> None:
            for pair in pairs:
                cuts.remove(*pair)
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


# ------------------------------------------------------------ hot store


class StoreRates(FaultBase, frozen=True, kw_only=True, gc=False, tag="store_rates"):
    """Replies lost after apply, requests applied after the caller gave up, unreachable, refused on memory, slow."""

    store: int = 0
    reply_lost: int = 0
    late: int = 0
    unreachable: int = 0
    refused: int = 0
    extra_ms: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        store = scene.store(self.store)
        rates = store.rates

        def change(sign: int) -> None:
            rates.reply_lost += sign * self.reply_lost
            rates.late += sign * self.late
            rates.unreachable += sign * self.unreachable
            rates.refused += sign * self.refused
            rates.extra_ms += sign * self.extra_ms
            store.rated_windows += sign
            store.rated = store.rated_windows > 0

        change(1)
        return lambda: change(-1)


class StoreStall(FaultBase, frozen=True, kw_only=True, gc=False, tag="store_stall"):
    """The server answers nothing until ``until_ms``, then everything that waited."""

    store: int = 0

    def begin(self, scene: "Scene") -> None:
        store = scene.store(self.store)
        store.stalled_until = max(store.stalled_until, self.until_ms)
        scene.count("store.stall")


class StoreRestart(FaultBase, frozen=True, kw_only=True, gc=False, tag="store_restart"):
    """The server restarts; the newest ``lost_calls`` writing calls of its AOF are gone."""

    store: int = 0
    lost_calls: int = 0
    down_ms: int = 50

    def begin(self, scene: "Scene") -> None:
        scene.store(self.store).restart(down_ms=self.down_ms, lost_calls=self.lost_calls)


class StoreEmptied(FaultBase, frozen=True, kw_only=True, gc=False, tag="store_emptied"):
    """The server restarts without its data; or, with ``flush``, FLUSHALL under living connections.

    Who has nothing to ask of a flushed store learns of it when its connection is next made anew (``until_ms``).
    """

    store: int = 0
    flush: bool = False
    down_ms: int = 50

    def begin(self, scene: "Scene") -> Callable[[], None] | None:
        store = scene.store(self.store)
        if self.flush:
            store.flush_all()
            return store.reconnect
        store.restart(down_ms=self.down_ms, lost_calls=None)
        return None


class ScriptsForgotten(FaultBase, frozen=True, kw_only=True, gc=False, tag="scripts_forgotten"):
    """SCRIPT FLUSH: every script is answered NOSCRIPT once."""

    store: int = 0

    def begin(self, scene: "Scene") -> None:
        scene.store(self.store).forget_scripts()


# ------------------------------------------------------------ logs


class LogRates(FaultBase, frozen=True, kw_only=True, gc=False, tag="log_rates"):
    """Appends Unknown (appended, not, or LATER), dispatch batches doubled, short and failing fetches, slow."""

    reply_lost: int = 0
    not_appended: int = 0
    late: int = 0
    refused: int = 0
    doubled: int = 0
    short: int = 0
    fetch_failed: int = 0
    extra_ms: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        log, rates = scene.log, scene.log.rates

        def change(sign: int) -> None:
            rates.reply_lost += sign * self.reply_lost
            rates.not_appended += sign * self.not_appended
            rates.late += sign * self.late
            rates.refused += sign * self.refused
            rates.doubled += sign * self.doubled
            rates.short += sign * self.short
            rates.fetch_failed += sign * self.fetch_failed
            rates.extra_ms += sign * self.extra_ms
            log.rated_windows += sign
            log.rated = log.rated_windows > 0

        change(1)
        return lambda: change(-1)


class LeaderChange(FaultBase, frozen=True, kw_only=True, gc=False, tag="leader_change"):
    """A partition has no leader until ``until_ms``: appends and reads fail."""

    topic: Topic
    partition: int

    def begin(self, scene: "Scene") -> None:
        partition = scene.log.partitions[self.topic, self.partition]
        partition.leaderless_until = max(partition.leaderless_until, self.until_ms)
        scene.count("log.leader_change")


class LogStall(FaultBase, frozen=True, kw_only=True, gc=False, tag="log_stall"):
    """A partition answers nothing until ``until_ms``; appends then land, long after their callers gave up."""

    topic: Topic
    partition: int

    def begin(self, scene: "Scene") -> None:
        partition = scene.log.partitions[self.topic, self.partition]
        partition.stalled_until = max(partition.stalled_until, self.until_ms)
        scene.count("log.stall")


class TopicRecreated(FaultBase, frozen=True, kw_only=True, gc=False, tag="topic_recreated"):
    """A partition of the dispatch topic is another topic's now: detected at the position, nothing reset by itself."""

    topic: Topic
    partition: int
    expected: ClassVar[str] = "position_mismatch"

    def begin(self, scene: "Scene") -> None:
        scene.log.recreate(scene.log.partitions[self.topic, self.partition], 2)


class RetentionPasses(FaultBase, frozen=True, kw_only=True, gc=False, tag="retention"):
    """Retention takes everything a stopped consumer has not read: detected, stopped, nothing skipped in silence."""

    topic: Topic
    partition: int
    expected: ClassVar[str] = "position_mismatch"

    def begin(self, scene: "Scene") -> None:
        partition = scene.log.partitions[self.topic, self.partition]
        scene.log.retain(partition, partition.end)


Fault = (
    Crash
    | Pause
    | SlowNode
    | Restart
    | ScaleOut
    | WallStep
    | ClockFreeze
    | LeaseExpires
    | RegistryRepliesLost
    | RegistryLags
    | Messages
    | Partition
    | Sockets
    | StoreRates
    | StoreStall
    | StoreRestart
    | StoreEmptied
    | ScriptsForgotten
    | LogRates
    | LeaderChange
    | LogStall
    | TopicRecreated
    | RetentionPasses
)
FAULTS: Final[tuple[type[FaultBase], ...]] = get_args(Fault)
"""The registry of kinds, for the census and for generators."""


def tag_of(kind: type[FaultBase]) -> str:
    """The name of a kind in plans and in the census."""
    tag: str = kind.__struct_config__.tag  # type: ignore[assignment]
    return tag
