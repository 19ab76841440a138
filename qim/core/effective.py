"""Which outbox records mean anything: the outbox's fence (pipeline.md §1.7).

A record is effective iff no barrier of a higher epoch stands at a smaller offset. The filter is a function of the log
prefix; each consumer (OPEN, fanout, archiver, auditor) keeps its state as of its own checkpoint. A zombie's or a dead
process's late append lands behind the barrier and means nothing.
"""

from qim.core.contract.logvalue import Barrier, Outboxed


class EffectiveFilter:
    """Walk a partition in offset order; ``epoch`` is the greatest barrier epoch passed so far (0: none)."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def admits(self, entry: Barrier | Outboxed) -> bool:
        """True for an effective record; a barrier raises the filter and is itself nothing to deliver."""
        if type(entry) is Barrier:
            if entry.epoch > self.epoch:
                self.epoch = entry.epoch
            return False
        return entry.epoch >= self.epoch
