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


class Warned(Struct, frozen=True, kw_only=True, gc=False):
    """A line in the process's log: something waits for a person, and no number says where. ``detail``: ids, no content."""

    what: str
    detail: str


Observation = Count | Gauge | StageReached | Measured | Violation | Warned


def queue(name: str, depth: int, capacity: int) -> tuple[Gauge, Gauge]:
    """A bounded structure: how much is in it, and how much may be."""
    return (
        Gauge(name="queue_depth", value=depth, label=name),
        Gauge(name="queue_capacity", value=capacity, label=name),
    )


def halted(log: str, number: int, offset: int, version: int) -> Warned:
    """A consumer stopped before a record of a newer format (contract.md, Log values); once for each time it gets there."""
    detail = f"{log} {number} offset {offset}: format {version}; it waits for newer code"
    return Warned(what="halted before a newer format", detail=detail)
