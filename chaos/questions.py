"""What the simulator's checkers ask of the stores when a run has ended (qim/sim/checkers/liveness.py)."""

from typing import Any

from qim.core.ports.completion import StoreRole
from qim.core.ports.store_history import ReadArchivePosition
from qim.core.ports.store_mailbox import ReadShardState
from qim.core.ports.store_source import ReadSource
from qim.sim.plan import Topology

HIGHEST = 1 << 62


def questions(topology: Topology) -> dict[StoreRole, list[Any]]:
    """role -> requests; equal requests have equal answers within one judging."""
    partitions, shards = range(topology.outbox_partitions), range(topology.shards)
    return {
        StoreRole.MESSAGE: [
            *(ReadSource(op=0, partition=n, low=0, high=HIGHEST, limit=1) for n in partitions),
            *(ReadArchivePosition(op=0, partition=n) for n in partitions),
        ],
        StoreRole.MAILBOX: [ReadShardState(op=0, shard=n) for n in shards],
    }
