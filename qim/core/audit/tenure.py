"""Whether this auditor may move CoverageCursors: one lease for all of them, a fence in each partition's store (§§0, 8).

    NONE --LeaseHeld--> HELD --LeaseGone--> NONE
                        HELD --Fenced, another incarnation, an advance without answer--> AWAITED --LeaseHeld--> HELD
                                                                                         AWAITED --LeaseGone--> NONE

Whoever holds nothing audits all the same: looking is harmless, and only what deletes evidence must be one process's.
"""

from qim.core.machine import Choose
from qim.core.opener import Opener
from qim.core.ports.local import FreshEpochWanted
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_audit import OpenCoverage

COVERAGE = Resource(role=Role.AUDITOR, number=0)
"""The one resource: a run walks every partition, so that shares of them would only make each shorter."""


class Tenure:
    """``epoch``: of the lease held, 0 for none or while a fresh one is awaited."""

    def __init__(self, choose: Choose) -> None:
        self._opener = Opener(choose, Role.AUDITOR)
        self.epoch = 0

    def opening(self, partition: int, op: int) -> OpenCoverage:
        """The request that raises the fence of a partition, or finds it raised by us."""
        assert self.epoch > 0
        return OpenCoverage(
            op=op,
            partition=partition,
            epoch=self.epoch,
            fresh_key=self._opener.fresh_key(partition, self.epoch, op),
            opener=self._opener.name,
        )

    def renewal(self, above: int) -> FreshEpochWanted:
        """What this epoch has asked may still be applied, or a higher one stands: no more under it."""
        assert self.epoch > 0
        self.epoch = 0
        return FreshEpochWanted(resource=COVERAGE, above=above)
