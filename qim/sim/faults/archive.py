"""What happens to the archive."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qim.sim.faults.kind import FaultBase

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class ArchiveRates(FaultBase, frozen=True, kw_only=True, gc=False, tag="archive_rates"):
    """Batches applied in part, after the caller gave up or without an answer; stale reads, unreachable, slow."""

    reply_lost: int = 0
    late: int = 0
    partial: int = 0
    unreachable: int = 0
    stale: int = 0
    extra_ms: int = 0

    def begin(self, scene: "Scene") -> Callable[[], None]:
        archive = scene.archive
        rates = archive.rates

        def change(sign: int) -> None:
            rates.reply_lost += sign * self.reply_lost
            rates.late += sign * self.late
            rates.partial += sign * self.partial
            rates.unreachable += sign * self.unreachable
            rates.stale += sign * self.stale
            rates.extra_ms += sign * self.extra_ms
            archive.rated_windows += sign
            archive.rated = archive.rated_windows > 0

        change(1)
        return lambda: change(-1)
