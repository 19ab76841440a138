"""What a drawn fault may refer to: a world's processes and devices, its times, rates."""

from collections.abc import Callable
from typing import Final

from qim.sim.draw import Draw
from qim.sim.faults import Fault
from qim.sim.plan import DevicePlan, Topology

PERCENT: Final = 655
"""One of a hundred, in rates of 65,536."""


class Weather:
    """Where and when faults of one seed may strike."""

    def __init__(
        self, draw: Draw, topology: Topology, devices: tuple[DevicePlan, ...], span_ms: int
    ) -> None:
        self.draw = draw
        self.topology = topology
        self.span_ms = span_ms
        self.first_ms = draw.pick((15, 300, 300, 600), "first_fault")
        self.services = [
            f"{role}-{i + 1}" for role, count in topology.processes() for i in range(count)
        ]
        self.clients = [f"client-{d.user_id}-{d.device_id.decode()}" for d in devices]

    def when(self, kind: str, index: int) -> int:
        """A time inside the workload."""
        return self.first_ms + self.draw.number(0, self.span_ms, "fault_at", kind, index)

    def window(self, kind: str, index: int, most_ms: int) -> dict[str, int]:
        """at_ms and until_ms."""
        at = self.when(kind, index)
        return {
            "at_ms": at,
            "until_ms": at + self.draw.number(50, most_ms, "fault_for", kind, index),
        }

    def node(self, kind: str, index: int) -> str:
        return self.draw.pick(self.services, "fault_node", kind, index)

    def rate(self, kind: str, index: int, *, most_percent: int = 30) -> int:
        return PERCENT * self.draw.number(1, most_percent, "fault_rate", kind, index)


Maker = Callable[[Weather, int], Fault]
"""Draws the how-manyth fault of its kind."""
