"""Observations are effects (architecture.md): the machine says what it saw, the driver counts, logs or checks it."""

from msgspec import Struct


class Count(Struct, frozen=True, kw_only=True, gc=False):
    """Add ``value`` to counter ``name`` (metric ``qim_<name>_total``); ``label`` is of low cardinality."""

    name: str
    value: int = 1
    label: str = ""


class Gauge(Struct, frozen=True, kw_only=True, gc=False):
    """Set gauge ``qim_<name>``: every bounded queue reports its length through one."""

    name: str
    value: int
    label: str = ""


class StageReached(Struct, frozen=True, kw_only=True, gc=False):
    """A message reached a stage of contract.md; ``trace_id`` (u64) greps it through all services."""

    trace_id: int
    stage: str
    detail: str = ""


class Violation(Struct, frozen=True, kw_only=True, gc=False):
    """One of the five invariants, or a named stop such as ``version_unknown``; readyz turns 503 and stays there."""

    check: str
    detail: str


Observation = Count | Gauge | StageReached | Violation
