"""From a seed to a plan for real processes: the simulator's own workload, drawn out over minutes.

A plan is the simulator's (qim/sim/plan.py): the same JSON, the same names of operations and faults, times in ms. What a
real run can't do (a choice between two effects of one step) is not drawn here, and refused where a plan asks for it.
"""

from typing import Final

from msgspec.structs import replace

from qim.sim.faults import Fault
from qim.sim.generate import generate as generate_world
from qim.sim.plan import Beginnings, Latency, Operation, Plan, Topology

MINUTE_MS: Final = 60_000
WARM_UP_MS: Final = 2_000
HEAL_SHARE: Final = 0.75
"""Faults end by this share of the time; the rest is for settling under load."""


def workload(seed: int, *, minutes: float, sends_per_second: float, topology: Topology) -> Plan:
    """A plan without faults; ``topology`` is what the deployment has."""
    span_ms = int(minutes * MINUTE_MS)
    count = max(1, int(span_ms / 1000 * sends_per_second))
    world = generate_world(seed, "calm", messages=count)
    last = max((operation.at_ms for operation in world.operations), default=1)
    stretch = (span_ms - WARM_UP_MS) / max(1, last)
    operations = tuple(_later(operation, stretch) for operation in world.operations)
    return Plan(
        seed=seed,
        profile="chaos",
        topology=topology,
        devices=world.devices,
        operations=operations,
        beginnings=Beginnings(wall_ms=0),
        latency=Latency(),
        heal_ms=int(span_ms * HEAL_SHARE),
        end_ms=span_ms + 3 * MINUTE_MS,
    )


def with_faults(plan: Plan, faults: tuple[Fault, ...]) -> Plan:
    """The plan under these."""
    return replace(plan, faults=faults)


def _later(operation: Operation, stretch: float) -> Operation:
    return replace(operation, at_ms=WARM_UP_MS + int(operation.at_ms * stretch))
