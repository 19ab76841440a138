"""LeaseKeeper: which resources a process holds, under which epochs, and until when (pipeline.md §0)."""

from qim.core.lease.lease import LeaseState
from qim.core.lease.machine import LeaseKeeper
from qim.core.lease.vocabulary import LeaseConfig, LeaseEffect, LeaseEvent

__all__ = ["LeaseConfig", "LeaseEffect", "LeaseEvent", "LeaseKeeper", "LeaseState"]
