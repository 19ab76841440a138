"""Observations are effects (architecture.md): the machine says what it saw, the driver counts, logs or checks it."""

from msgspec import Struct


class Count(Struct, frozen=True, kw_only=True, gc=False):
    """Add ``value`` to counter ``name`` (metric ``qim_<name>_total``); ``label`` is of low cardinality."""

    name: str
    value: int = 1
    label: str = ""


class Gauge(Struct, frozen=True, kw_only=True, gc=False):
    """Gauge ``qim_<name>`` has this value. A machine is asked for its gauges when somebody looks (``gauges``)."""

    name: str
    value: int
    label: str = ""


class StageReached(Struct, frozen=True, kw_only=True, gc=False):
    """A message reached a stage of contract.md; ``trace_id`` (u64) greps it through all services.

    ``sent_at``: the record's own wall ms, from which the driver takes how long it took this far; 0: not known here.
    """

    trace_id: int
    stage: str
    detail: str = ""
    sent_at: int = 0


class Measured(Struct, frozen=True, kw_only=True, gc=False):
    """Something took ``ms`` milliseconds: histogram ``qim_<name>_seconds``; ``label`` is of low cardinality."""

    name: str
    ms: int
    label: str = ""


class Violation(Struct, frozen=True, kw_only=True, gc=False):
    """One of the five invariants, or a named stop such as ``version_unknown``; readyz turns 503 and stays there."""

    check: str
    detail: str


Observation = Count | Gauge | StageReached | Measured | Violation


def queue(name: str, depth: int, capacity: int) -> tuple[Gauge, Gauge]:
    """A bounded structure: how much is in it, and how much may be."""
    return (
        Gauge(name="queue_depth", value=depth, label=name),
        Gauge(name="queue_capacity", value=capacity, label=name),
    )
