"""A frame as a later version might write it: this one's header, and a payload nobody here can read (decision 0031)."""

from collections.abc import Iterable
from typing import Final

from qim.core.contract.entities import FORMAT_VERSION
from qim.core.contract.logvalue import HEADER_BYTES, KIND_RECORD
from qim.core.ports.observe import Gauge, Warned

LATER_VERSION: Final = FORMAT_VERSION + 1
NEWER: Final = (
    bytes((LATER_VERSION, KIND_RECORD)).ljust(HEADER_BYTES, b"\0") + b"\xc1whatever comes"
)


def told(log: str, number: int, offset: int) -> Warned:
    """What a consumer says that stopped before it."""
    detail = f"{log} {number} offset {offset}: format {LATER_VERSION}; it waits for newer code"
    return Warned(what="halted before a newer format", detail=detail)


def halted(gauges: Iterable[Gauge]) -> dict[str, int]:
    """How many feeds stand still, by shard or partition."""
    return {one.label: one.value for one in gauges if one.name.endswith("_halted")}
