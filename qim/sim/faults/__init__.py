"""Everything that can go wrong in a world, a class each; a plan holds instances (simulator.md, "Faults").

``begin`` makes it happen, what it gives back ends it at ``until_ms`` (kinds that only begin give nothing). ``expected()``
says what the world must make of it: ``tolerated`` (ends clean) or the name of the check that must fire, silence being the
failure.
"""

from typing import Final, get_args

from qim.sim.faults.archive import ArchiveRates, OutboxTrimmed
from qim.sim.faults.clients import CursorDamaged, Garbage, Twin, UserActs
from qim.sim.faults.kind import TOLERATED, FaultBase
from qim.sim.faults.log import (
    LeaderChange,
    LogRates,
    LogStall,
    RetentionPasses,
    TailLost,
    TopicRecreated,
)
from qim.sim.faults.network import (
    LeaseExpires,
    Messages,
    Partition,
    RegistryLags,
    RegistryRepliesLost,
    RegistrySetBack,
    Sockets,
)
from qim.sim.faults.operator import DispatchLost, OutboxLost
from qim.sim.faults.process import (
    ClockFreeze,
    Crash,
    Lost,
    Pause,
    Restart,
    ScaleOut,
    SlowNode,
    Usurper,
    WallStep,
)
from qim.sim.faults.store import (
    ScriptsForgotten,
    StoreEmptied,
    StoreRates,
    StoreRestart,
    StoreStall,
)

Fault = (
    Crash
    | Pause
    | SlowNode
    | Restart
    | ScaleOut
    | Lost
    | Usurper
    | WallStep
    | ClockFreeze
    | LeaseExpires
    | RegistryRepliesLost
    | RegistryLags
    | RegistrySetBack
    | Messages
    | Partition
    | Sockets
    | StoreRates
    | StoreStall
    | StoreRestart
    | StoreEmptied
    | ScriptsForgotten
    | ArchiveRates
    | OutboxTrimmed
    | LogRates
    | LeaderChange
    | LogStall
    | TopicRecreated
    | RetentionPasses
    | TailLost
    | CursorDamaged
    | Twin
    | Garbage
    | UserActs
    | DispatchLost
    | OutboxLost
)
FAULTS: Final[tuple[type[FaultBase], ...]] = get_args(Fault)
"""The registry of kinds, for the census and for generators."""


def tag_of(kind: type[FaultBase]) -> str:
    """The name of a kind in plans and in the census."""
    tag: str = kind.__struct_config__.tag  # type: ignore[assignment]
    return tag


__all__ = [
    "FAULTS",
    "TOLERATED",
    "ArchiveRates",
    "ClockFreeze",
    "Crash",
    "CursorDamaged",
    "DispatchLost",
    "Fault",
    "FaultBase",
    "Garbage",
    "LeaderChange",
    "LeaseExpires",
    "LogRates",
    "LogStall",
    "Lost",
    "Messages",
    "OutboxLost",
    "OutboxTrimmed",
    "Partition",
    "Pause",
    "RegistryLags",
    "RegistryRepliesLost",
    "RegistrySetBack",
    "Restart",
    "RetentionPasses",
    "ScaleOut",
    "ScriptsForgotten",
    "SlowNode",
    "Sockets",
    "StoreEmptied",
    "StoreRates",
    "StoreRestart",
    "StoreStall",
    "TailLost",
    "TopicRecreated",
    "Twin",
    "UserActs",
    "Usurper",
    "WallStep",
    "tag_of",
]
