"""What happens to the hot store."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qim.sim.faults.kind import FaultBase, open_window

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class StoreRates(FaultBase, frozen=True, kw_only=True, gc=False, tag="store_rates"):
    """Replies lost after apply, requests applied after the caller gave up, unreachable, refused on memory, slow."""

    store: int = 0
    reply_lost: int = 0
    late: int = 0
    unreachable: int = 0
    refused: int = 0
    extra_ms: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        return open_window(scene.store(self.store), self)


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
