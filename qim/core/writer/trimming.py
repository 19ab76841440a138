"""Trimming hot history: now and then, a bounded number of rows, only what the archive has (pipeline.md §5).

serving --> TrimHot, after trim_pause_ms while there is more, else after trim_every_ms --> serving

What may go (older than the hot window, below the archive watermark) is decided in the script; here is only the pace. A
look that failed or is in doubt is simply followed by the next: the script is idempotent and moves one way.
"""

from typing import Final

from qim.core.ports.store_history import HotTrimmed, TrimHot
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.shard import SERVING, Shard
from qim.core.writer.vocabulary import Answer


class Trimming:
    """Which shards wait for their next look; at most one look a shard in flight."""

    def __init__(self, orders: Orders) -> None:
        self._orders: Final = orders
        self._waiting: dict[int, Shard] = {}
        self._next: int | None = None

    def serve(self, shard: Shard) -> None:
        """The shard came through OPEN. Without an archive nothing is ever trimmed."""
        if self._orders.config.tiered:
            self._wait(shard, self._orders.config.trim_pause_ms)

    def _wait(self, shard: Shard, delay_ms: int) -> None:
        at = self._orders.now + delay_ms
        shard.hot_trim_at = at
        self._waiting[shard.number] = shard
        self._next = at if self._next is None else min(self._next, at)

    def look(self) -> None:
        """Order what is due; shards that left service meanwhile are forgotten."""
        orders = self._orders
        if self._next is None or orders.now < self._next:
            return
        for shard in list(self._waiting.values()):
            if shard.hot_trim_at is None or shard.stage is not SERVING:
                del self._waiting[shard.number]
            elif shard.hot_trim_at <= orders.now:
                del self._waiting[shard.number]
                self._order(shard)
        times = [shard.hot_trim_at for shard in self._waiting.values()]
        self._next = min([time for time in times if time is not None], default=None)

    def _order(self, shard: Shard) -> None:
        orders = self._orders
        shard.hot_trim_at = None
        request = TrimHot(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            before_wall=max(0, orders.clock.wall(orders.now) - orders.config.hot_window_ms),
            limit=orders.config.trim_rows_max,
        )
        orders.ask(Call.TRIM, shard, request)

    def on_trimmed(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """So many went; soon again if there are more."""
        assert isinstance(answer, HotTrimmed)
        config = self._orders.config
        self._orders.count("hot_rows_trimmed", answer.removed)
        self._wait(shard, config.trim_pause_ms if answer.more else config.trim_every_ms)

    def lost(self, shard: Shard) -> None:
        """Failed or in doubt."""
        self._wait(shard, self._orders.config.trim_every_ms)

    def deadline(self) -> int | None:
        """When ``look`` has something to do."""
        return self._next
