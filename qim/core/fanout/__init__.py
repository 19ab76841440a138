"""FanoutCoordinator: from outbox records to one GroupDispatch a target shard (pipeline.md §2)."""

from qim.core.fanout.machine import FanoutCoordinator
from qim.core.fanout.vocabulary import FanoutConfig, FanoutEffect, FanoutEvent

__all__ = ["FanoutConfig", "FanoutCoordinator", "FanoutEffect", "FanoutEvent"]
