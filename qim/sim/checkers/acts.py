"""What a person mends: every act comes to its end, and what was lost was noticed before it was mended (pipeline.md §7).

A loss that its reader would have gone on over in silence is a failure, though a forced act mends it all the same.
"""

from typing import TYPE_CHECKING, Any

from qim.core.mending.bump import BumpPlan
from qim.core.mending.outbox import OutboxPlan
from qim.sim.history import History

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class Acts:
    """Judges what acts reported."""

    def attach(self, history: History) -> None:
        self.history = history
        history.on_act.append(self.on_act)

    def on_act(self, report: Any) -> None:
        """Its look, before it wrote: the position of a shard whose log lost what it had read is not in that log."""
        if isinstance(report, BumpPlan) and report.whole and self.history.bumped[report.shard]:
            text = f"shard {report.shard}: {report.log_start}..{report.log_end} was taken for the log that was read"
            self.history.found("loss_unnoticed", "operator", text)
        if isinstance(report, OutboxPlan) and report.partition in self.history.unmended:
            text = f"outbox {report.partition}: {report.log_start}..{report.log_end} was taken for the log that was read"
            self.history.found("loss_unnoticed", "operator", text)

    def finish(self, scene: "Scene") -> None:
        """Nobody is refused for ever."""
        if scene.operators.working():
            text = f"{scene.operators.working()} acts have not come to their end"
            self.history.found("act_unfinished", "operator", text)
