"""Counters, gauges, histograms and health of one process (contract.md, invariants; seed 002, observability).

Metrics say how the system is, the log says what one message went through (grep its trace_id), and the five invariants
say whether to stop: a non-zero one turns /healthz and /readyz to 503 for good, /livez stays green. What each metric
means stands in metrics.py, once.
"""

import asyncio
import json
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from threading import Event
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from qim.core.contract.invariants import Invariant
from qim.services.histogram import Histogram
from qim.services.log_sink import LogSink
from qim.services.metrics import Kind
from qim.services.metrics_table import METRICS, label_of, meaning_of

__all__ = ("LogSink", "ProcessObserver")

VIOLATIONS_KEPT_MAX: Final = 1_000
SAMPLE_SECONDS_MAX: Final = 0.5
"""A scrape waits so long for the event loop; a loop that is stuck must not hide the counters."""
STAGE_SECONDS: Final = "stage_seconds"
_INVARIANTS: Final = frozenset(name.value for name in Invariant)

Sample = tuple[str, str, float]
"""Name of a gauge, or of a total that whoever tells it counts itself, its label, its value."""
Sampler = Callable[[], Iterable[Sample]]


class _Passed:
    """Messages that passed a stage, and how long they had taken."""

    __slots__ = ("count", "histogram")

    def __init__(self) -> None:
        self.count = 0
        self.histogram: Histogram | None = None


class ProcessObserver(Collector):
    """runtime.Observer and a Prometheus collector in one; adding to a counter is one dict write."""

    def __init__(
        self, sink: LogSink, on_death: Callable[[str, BaseException], None], *, stages: bool
    ) -> None:
        self._sink = sink
        self._on_death = on_death
        self._as_json = sink.as_json
        self._stages = stages
        self._counts: dict[tuple[str, str], int] = {(name.value, ""): 0 for name in Invariant}
        self._gauges: dict[tuple[str, str], float] = {("process_start_seconds", ""): time.time()}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._passed: dict[str, _Passed] = {}
        self._samplers: list[Sampler] = []
        self._sampled: list[Sample] = []
        self._sampling_failed = False
        self._loop: AbstractEventLoop | None = None
        self.violations: list[tuple[str, str]] = []
        self._heads: dict[tuple[str, str], str] = {}
        """The unvarying middle of a stage's line; as many as the code has stages."""
        self._stamped_ms = 0
        self._stamp = ""

    # ------------------------------------------------------------ what is told

    def sample(self, sampler: Sampler, loop: AbstractEventLoop | None = None) -> None:
        """Register gauges read at scrape time: (name, label, value).

        With ``loop`` all samplers run there from now on: they walk what its machines change.
        """
        self._samplers.append(sampler)
        self._loop = loop or self._loop

    def count(self, name: str, value: int, label: str) -> None:
        """Add to a counter."""
        key = (name, label)
        self._counts[key] = self._counts.get(key, 0) + value

    def gauge(self, name: str, value: float, label: str) -> None:
        """Set a gauge that nobody can be asked for."""
        self._gauges[name, label] = value

    def observe(self, name: str, seconds: float, label: str) -> None:
        """Add a duration to histogram ``name`` (it ends in _seconds)."""
        self.timer(name, label)(seconds)

    def timer(self, name: str, label: str) -> Callable[[float], None]:
        """The same for a hot path: looked up once, called with seconds."""
        return self._histogram(name, label).add

    def _histogram(self, name: str, label: str) -> Histogram:
        histogram = self._histograms.get((name, label))
        if histogram is None:
            assert name.endswith("_seconds"), name
            histogram = self._histograms[name, label] = Histogram()
        return histogram

    def stage(self, machine: str, trace_id: int, stage: str, detail: str, sent_at: int) -> None:
        """A message got somewhere: counted, timed from the record's own sent_at, and one line where lines are wanted."""
        # Eight a message: one look-up for both numbers, and no call that can be saved.
        passed = self._passed.get(stage)
        if passed is None:
            passed = self._passed[stage] = _Passed()
        passed.count += 1
        if sent_at:
            if passed.histogram is None:
                passed.histogram = self._histogram(STAGE_SECONDS, stage)
            passed.histogram.add(time.time() - sent_at / 1000)
        if not self._stages:
            return
        if not self._as_json:
            self._sink.raw(f"{machine}: {stage} trace_id={trace_id:016x} {detail}")
            return
        # Nine lines a message: only what varies is formatted, and the clock is read as text once a millisecond.
        now = time.time_ns() // 1_000_000
        head = self._heads.get((machine, stage))
        if head is None:
            head = self._heads[machine, stage] = _json_head(machine, stage)
        if now != self._stamped_ms:
            self._stamped_ms, self._stamp = now, _stamp(now)
        told = json.dumps(detail) if detail else '""'
        self._sink.raw(
            f'{{"time": "{self._stamp}", {head}, "trace_id": "{trace_id:016x}", "detail": {told}}}'
        )

    def line(self, level: str, event: str, fields: dict[str, object]) -> None:
        """Something an operator wants to read, of no machine."""
        self._sink.line(level, "up", event, fields)

    def violation(self, machine: str, check: str, detail: str) -> None:
        """Counted, kept as evidence, and unhealthy for good."""
        if len(self.violations) < VIOLATIONS_KEPT_MAX:
            self.violations.append((check, detail))
        known = check in _INVARIANTS
        self.count(check if known else "violation", 1, "" if known else check)
        self._sink.line("error", machine, "violation", {"check": check, "detail": detail})

    def warned(self, machine: str, what: str, detail: str) -> None:
        """One line: whoever reads the log should look."""
        self._sink.line("warning", machine, what, {"detail": detail})

    def died(self, machine: str, error: BaseException) -> None:
        """A machine's state can't be trusted any more: written before anybody hears of it."""
        self._sink.line("fatal", machine, "machine died", {"error": repr(error)})
        self._sink.flush()
        self._on_death(machine, error)

    @property
    def healthy(self) -> bool:
        """False once any invariant is non-zero or any violation was seen."""
        return not self.violations

    # ------------------------------------------------------------ what is asked

    def collect(self) -> Iterable[Metric]:
        """Prometheus text: qim_<name>_total, qim_<name>, qim_<name>_seconds_bucket; from any thread."""
        samples = [_in_base_units(*one) for one in self._samples()]
        yield from self._counters([one for one in samples if _is_total(one[0])])
        yield from self._gauge_families([one for one in samples if not _is_total(one[0])])
        yield from self._histogram_families()

    def _samples(self) -> list[Sample]:
        """Fresh ones; the last ones where the event loop doesn't come to it in time."""
        loop = self._loop
        fresh = True
        if loop is None or _running_here(loop):
            self._take_samples()
        else:
            done = Event()
            try:
                loop.call_soon_threadsafe(self._take_samples, done)
                fresh = done.wait(SAMPLE_SECONDS_MAX) and not self._sampling_failed
            except RuntimeError:  # the loop is closed: what was last is all there will be
                fresh = False
        samples = [*self._sampled]
        samples += [(name, label, value) for (name, label), value in dict(self._gauges).items()]
        samples.append(("samples_stale", "", 0.0 if fresh else 1.0))
        samples.append(("log_lines_dropped", "", self._sink.dropped))
        return samples

    def _take_samples(self, done: Event | None = None) -> None:
        # Until all of them have told: one that raises leaves the samples of the scrape before.
        self._sampling_failed = True
        try:
            self._sampled = [one for sampler in self._samplers for one in sampler()]
            self._sampling_failed = False
        finally:
            if done is not None:
                done.set()

    def _counters(self, totals: list[Sample]) -> Iterable[Metric]:
        families: dict[str, CounterMetricFamily] = {}
        counts: dict[tuple[str, str], float] = dict(self._counts)
        counts |= {(name, label): value for name, label, value in totals}
        for stage, passed in dict(self._passed).items():
            counts["stage", stage] = counts.get(("stage", stage), 0) + passed.count
        for (name, label), value in sorted(counts.items()):
            short = name.removesuffix("_total").removesuffix("_count")
            family = families.get(short)
            if family is None:
                family = families[short] = CounterMetricFamily(
                    f"qim_{short}", meaning_of(short), labels=label_of(short)
                )
            family.add_metric([label] if label_of(short) else [], value)
        return families.values()

    def _gauge_families(self, samples: list[Sample]) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        # By name and label: where two told the same, the last has it.
        told = {one[:2]: one[2] for one in samples}
        for (name, label), measured in sorted(told.items()):
            family = families.get(name)
            if family is None:
                family = families[name] = GaugeMetricFamily(
                    f"qim_{name}", meaning_of(name), labels=label_of(name)
                )
            family.add_metric([label] if label_of(name) else [], measured)
        return families.values()

    def _histogram_families(self) -> Iterable[Metric]:
        families: dict[str, HistogramMetricFamily] = {}
        for (name, label), histogram in sorted(
            dict(self._histograms).items(), key=lambda one: one[0]
        ):
            family = families.get(name)
            if family is None:
                family = families[name] = HistogramMetricFamily(
                    f"qim_{name}", meaning_of(name), labels=label_of(name)
                )
            family.add_metric(
                [label] if label_of(name) else [], histogram.buckets(), histogram.total_seconds
            )
        return families.values()


def _running_here(loop: AbstractEventLoop) -> bool:
    """This is the loop's own thread: waiting for it would be waiting for ourselves."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return not loop.is_running()


def _is_total(name: str) -> bool:
    known = METRICS.get(name)
    return known is not None and known.kind is Kind.COUNTER


def _in_base_units(name: str, label: str, value: float) -> Sample:
    """Machines count whole milliseconds, metrics are in seconds (contract.md, the five invariants)."""
    if name.endswith("_ms"):
        return f"{name.removesuffix('_ms')}_seconds", label, value / 1000
    return name, label, value


def _json_head(machine: str, stage: str) -> str:
    return json.dumps({"level": "info", "service": machine, "event": stage})[1:-1]


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
