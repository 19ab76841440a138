"""Counters, gauges, structured log lines and health of one process (contract.md, invariants; seed 002, observability).

Metrics say how the system is, the log says what one message went through (grep its trace_id), and the five invariants
say whether to stop: a non-zero one turns /healthz and /readyz to 503 for good, /livez stays green.
"""

import json
import os
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from queue import SimpleQueue
from threading import Thread
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from qim.core.contract.invariants import Invariant

LOG_BUFFER_BYTES_MAX: Final = 1 << 20
LOG_FLUSH_SECONDS: Final = 0.05
LOG_CLOSE_SECONDS: Final = 2.0
VIOLATIONS_KEPT_MAX: Final = 1_000
_INVARIANTS: Final = frozenset(name.value for name in Invariant)


class LogSink:
    """Lines gathered and handed to a writing thread every 50 ms: logging must not cost more than the work it tells of.

    The thread is there because a pipe whose reader lags would block the event loop. Bounded: what is gathered and not
    yet written never exceeds ``LOG_BUFFER_BYTES_MAX`` by more than a line; beyond it lines are dropped and counted.
    """

    def __init__(self, loop: AbstractEventLoop, descriptor: int, *, as_json: bool) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self.as_json = as_json
        self._lines: list[str] = []
        self._bytes = 0
        self._armed = False
        self._dropped = 0
        self._handed = 0
        self._done = 0
        """Bytes the thread has dealt with; only the thread changes it, as only the loop changes ``_handed``."""
        self._lost = 0
        self._chunks: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._thread: Thread | None = None

    @property
    def dropped(self) -> int:
        """Lines that nobody will read (metric)."""
        return self._dropped + self._lost

    def line(self, level: str, service: str, text: str, fields: dict[str, object]) -> None:
        """One event; values must already be redacted (contract/redact.py)."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self.as_json:
            record = {"time": stamp, "level": level, "service": service, "event": text, **fields}
            line = json.dumps(record, default=str)
        else:
            told = " ".join(f"{key}={value}" for key, value in fields.items())
            line = f"{stamp} {level:5} {service}: {text} {told}"
        self.raw(line)

    def raw(self, line: str) -> None:
        """A line already formatted (the hot path of stages); line breaks in it would forge other lines."""
        if self._bytes + self._handed - self._done > LOG_BUFFER_BYTES_MAX:
            self._dropped += 1
            return
        if "\n" in line or "\r" in line:
            line = line.replace("\r", "\\r").replace("\n", "\\n")
        self._lines.append(line)
        self._bytes += len(line) + 1
        if not self._armed:
            self._armed = True
            self._loop.call_later(LOG_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Hand over what has gathered; it is written soon."""
        self._armed = False
        lines, self._lines, self._bytes = self._lines, [], 0
        if not lines:
            return
        if self._thread is None:
            self._thread = Thread(target=self._write_all, name="qim-log-sink", daemon=True)
            self._thread.start()
        data = ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
        self._handed += len(data)
        self._chunks.put((len(lines), data))

    def close(self) -> None:
        """Write what has gathered, waiting at most ``LOG_CLOSE_SECONDS`` for a reader that lags."""
        self.flush()
        if self._thread is not None:
            self._chunks.put(None)
            self._thread.join(LOG_CLOSE_SECONDS)

    def _write_all(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            lines, data = chunk
            size = len(data)
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                self._lost += lines
            self._done += size


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
        self._gauges: dict[tuple[str, str], int] = {}
        self._samplers: list[Callable[[], Iterable[tuple[str, str, float]]]] = []
        self.violations: list[tuple[str, str]] = []
        self._heads: dict[tuple[str, str], str] = {}
        """The unvarying middle of a stage's line; as many as the code has stages."""
        self._stamped_ms = 0
        self._stamp = ""

    def sample(self, sampler: Callable[[], Iterable[tuple[str, str, float]]]) -> None:
        """Register gauges read at scrape time: (name, label, value)."""
        self._samplers.append(sampler)

    def count(self, name: str, value: int, label: str) -> None:
        key = (name, label)
        self._counts[key] = self._counts.get(key, 0) + value

    def gauge(self, name: str, value: int, label: str) -> None:
        self._gauges[name, label] = value

    def stage(self, machine: str, trace_id: int, stage: str, detail: str) -> None:
        self.count("stage", 1, stage)
        if not self._stages:
            return
        if not self._as_json:
            self._sink.raw(f"{machine}: {stage} trace_id={trace_id:016x} {detail}")
            return
        # Nine lines a message: only what varies is formatted, and the clock is read as text once a millisecond.
        head = self._heads.get((machine, stage))
        if head is None:
            head = self._heads[machine, stage] = _json_head(machine, stage)
        now = time.time_ns() // 1_000_000
        if now != self._stamped_ms:
            self._stamped_ms, self._stamp = now, _stamp(now)
        told = json.dumps(detail) if detail else '""'
        self._sink.raw(
            f'{{"time": "{self._stamp}", {head}, "trace_id": "{trace_id:016x}", "detail": {told}}}'
        )

    def violation(self, machine: str, check: str, detail: str) -> None:
        if len(self.violations) < VIOLATIONS_KEPT_MAX:
            self.violations.append((check, detail))
        known = check in _INVARIANTS
        self.count(check if known else "violation", 1, "" if known else check)
        self._sink.line("error", machine, "violation", {"check": check, "detail": detail})

    def died(self, machine: str, error: BaseException) -> None:
        self._sink.line("fatal", machine, "machine died", {"error": repr(error)})
        self._sink.flush()
        self._on_death(machine, error)

    @property
    def healthy(self) -> bool:
        """False once any invariant is non-zero or any violation was seen."""
        return not self.violations

    def collect(self) -> Iterable[Metric]:
        """Prometheus text: qim_<name>_total and qim_<name>."""
        counters: dict[str, CounterMetricFamily] = {}
        for (name, label), value in sorted(dict(self._counts).items()):
            short = name.removesuffix("_total").removesuffix("_count")
            family = counters.setdefault(
                short, CounterMetricFamily(f"qim_{short}", name, labels=["label"])
            )
            family.add_metric([label], value)
        yield from counters.values()
        gauges: dict[str, GaugeMetricFamily] = {}
        sampled = [one for sampler in self._samplers for one in sampler()]
        sampled += [(name, label, value) for (name, label), value in dict(self._gauges).items()]
        sampled.append(("log_lines_dropped", "", self._sink.dropped))
        sampled = [_in_base_units(*one) for one in sampled]
        for name, label, measured in sorted(sampled):
            gauge = gauges.setdefault(
                name, GaugeMetricFamily(f"qim_{name}", name, labels=["label"])
            )
            gauge.add_metric([label], measured)
        yield from gauges.values()


def _in_base_units(name: str, label: str, value: float) -> tuple[str, str, float]:
    """Machines count whole milliseconds, metrics are in seconds (contract.md, the five invariants)."""
    if name.endswith("_ms"):
        return f"{name.removesuffix('_ms')}_seconds", label, value / 1000
    return name, label, value


def _json_head(machine: str, stage: str) -> str:
    return json.dumps({"level": "info", "service": machine, "event": stage})[1:-1]


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
