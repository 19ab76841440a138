"""Counters, log lines and health of a process: bounded, parsable, and red for good once an invariant is not zero."""

import asyncio
import json
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from qim.core.contract.invariants import Invariant
from qim.services import log_sink, observation
from qim.services.histogram import Histogram
from qim.services.observation import LogSink, ProcessObserver
from tests.services.hand_loop import HandLoop


class Logged:
    """A sink into a file, on a loop turned by hand."""

    def __init__(self, path: Path, *, as_json: bool = True) -> None:
        self.path = path
        self.loop = HandLoop()
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        loop: Any = self.loop
        self.sink = LogSink(loop, self.descriptor, as_json=as_json)

    def lines(self) -> list[str]:
        """What is written once everything is."""
        self.sink.close()
        return self.path.read_text().splitlines()


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Logged]:
    made = Logged(tmp_path / "log")
    yield made
    made.sink.close()
    os.close(made.descriptor)


@pytest.fixture
def text_logged(tmp_path: Path) -> Iterator[Logged]:
    made = Logged(tmp_path / "log", as_json=False)
    yield made
    made.sink.close()
    os.close(made.descriptor)


# ------------------------------------------------------------ lines


def test_lines_are_gathered_and_written_together(logged: Logged) -> None:
    for number in range(3):
        logged.sink.line("info", "writer", "opened", {"shard": number})
    assert logged.path.read_text() == "", "nothing is written while the loop works"
    assert len(logged.loop.armed()) == 1, "one timer for all of them"
    logged.loop.pass_ms(50)
    records = [json.loads(line) for line in logged.lines()]
    assert [one["shard"] for one in records] == [0, 1, 2]
    for record in records:
        assert (record["level"], record["service"], record["event"]) == ("info", "writer", "opened")
        assert record["time"].endswith("+00:00")


def test_a_timer_that_finds_nothing_writes_nothing(logged: Logged) -> None:
    logged.sink.raw("one")
    logged.sink.flush()
    logged.loop.pass_ms(100)
    logged.sink.raw("two")
    logged.loop.pass_ms(100)
    assert logged.lines() == ["one", "two"]


def test_text_lines_are_for_people(text_logged: Logged) -> None:
    text_logged.sink.line("error", "up", "store ended", {"status": 1, "path": Path("/x")})
    (line,) = text_logged.lines()
    assert line.endswith("error up: store ended status=1 path=/x")


def test_nobody_can_forge_a_line(text_logged: Logged) -> None:
    """A text from outside may hold line breaks, lone surrogates and bytes of any kind."""
    text_logged.sink.line("info", "gateway", "peer", {"name": "a\nfatal up: forged\r\x00\udcff"})
    (line,) = text_logged.lines()
    assert "forged" in line


def test_what_cannot_be_written_is_counted(logged: Logged, tmp_path: Path) -> None:
    read_only = os.open(logged.path, os.O_RDONLY)
    loop: Any = logged.loop
    sink = LogSink(loop, read_only, as_json=True)
    for _ in range(3):
        sink.raw("x")
    sink.close()
    assert sink.dropped == 3
    os.close(read_only)


def test_a_reader_that_lags_costs_lines_and_never_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_sink, "LOG_BUFFER_BYTES_MAX", 20_000)
    reading, writing = os.pipe()
    loop = HandLoop()
    any_loop: Any = loop
    sink = LogSink(any_loop, writing, as_json=True)
    line = "x" * 99
    for _ in range(2_000):
        sink.raw(line)
        loop.pass_ms(60)  # each flush would block here if the loop wrote by itself
    assert 0 < sink.dropped < 2_000
    dropped = sink.dropped
    gathered: list[bytes] = []
    reader = threading.Thread(
        target=lambda: gathered.extend(iter(lambda: os.read(reading, 4096), b""))
    )
    reader.start()
    sink.close()
    os.close(writing)
    reader.join()
    os.close(reading)
    lines = b"".join(gathered).decode().splitlines()
    assert lines == [line] * (2_000 - dropped), "those that were taken are whole and in order"


def test_closing_waits_only_so_long_for_a_reader_that_never_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_sink, "LOG_CLOSE_SECONDS", 0.01)
    reading, writing = os.pipe()
    loop: Any = HandLoop()
    sink = LogSink(loop, writing, as_json=True)
    sink.raw("x" * 200_000)
    sink.close()
    # the writing thread is let go by a reader, so that the descriptors may be closed
    left = 200_001
    while left:
        left -= len(os.read(reading, left))
    os.close(reading)
    os.close(writing)


# ------------------------------------------------------------ the observer


def observer(logged: Logged, *, stages: bool = True) -> ProcessObserver:
    deaths: list[tuple[str, BaseException]] = []
    made = ProcessObserver(logged.sink, lambda *death: deaths.append(death), stages=stages)
    made.deaths = deaths  # type: ignore[attr-defined]
    return made


def scraped(observed: ProcessObserver) -> list[str]:
    registry = CollectorRegistry()
    registry.register(observed)
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_counters_are_named_total_and_invariants_stand_at_zero(logged: Logged) -> None:
    observed = observer(logged)
    observed.count("audit_runs", 2, "CLEAN")
    observed.count("audit_runs", 1, "CLEAN")
    observed.count("rejected_total", 5, "why")
    observed.gauge("fanout_outlet_records", 7, "")
    observed.gauge("fanout_outlet_records", 4, "")
    observed.gauge("clock_ahead_ms", 1_500, "")
    observed.sample(lambda: [("inbox_events_waiting", "writer", 3)])
    lines = scraped(observed)
    assert "qim_clock_ahead_seconds 1.5" in lines
    assert 'qim_audit_runs_total{verdict="CLEAN"} 3.0' in lines
    assert 'qim_rejected_total{label="why"} 5.0' in lines
    assert "qim_fanout_outlet_records 4.0" in lines
    assert 'qim_inbox_events_waiting{machine="writer"} 3.0' in lines
    assert "qim_log_lines_dropped_total 0.0" in lines
    for invariant in Invariant:
        short = invariant.value.removesuffix("_total").removesuffix("_count")
        assert f"qim_{short}_total 0.0" in lines


def test_what_an_adapter_counts_by_itself_is_a_counter_too(logged: Logged) -> None:
    """It is told like a gauge, and everybody's totals are named alike (contract.md: `qim_…_total`)."""
    observed = observer(logged)
    told = [
        ("kafka_polls", "", 7),
        ("registry_answers", "Renew.Renewed", 3),
        ("kafka_lag", "outbox/1", 2),
    ]
    observed.sample(lambda: told)
    registry = CollectorRegistry()
    registry.register(observed)
    text = generate_latest(registry).decode()
    for line in (
        "# TYPE qim_kafka_polls_total counter",
        "qim_kafka_polls_total 7.0",
        'qim_registry_answers_total{kind="Renew.Renewed"} 3.0',
        "# TYPE qim_kafka_lag gauge",
        'qim_kafka_lag{partition="outbox/1"} 2.0',
    ):
        assert line in text.splitlines(), line
    assert "qim_kafka_polls " not in text


@pytest.mark.parametrize("check", [*Invariant, "version_unknown"])
def test_a_violation_makes_the_process_unhealthy_for_good(logged: Logged, check: str) -> None:
    observed = observer(logged)
    assert observed.healthy
    observed.violation("auditor", str(check), "why")
    assert not observed.healthy
    assert observed.violations == [(str(check), "why")]
    short = str(check).removesuffix("_total").removesuffix("_count")
    named = f"qim_{short}_total 1.0"
    unnamed = f'qim_violation_total{{check="{check}"}} 1.0'
    assert (named if check in set(Invariant) else unnamed) in scraped(observed)
    (line,) = logged.lines()
    record = json.loads(line)
    assert (record["level"], record["service"], record["check"]) == ("error", "auditor", str(check))


def test_a_warning_is_a_line_and_no_violation(logged: Logged) -> None:
    observed = observer(logged)
    observed.warned("fanout", "halted before a newer format", "outbox 1 offset 7: format 2")
    (line,) = logged.lines()
    record = json.loads(line)
    assert (record["level"], record["service"]) == ("warning", "fanout")
    assert (record["event"], record["detail"]) == (
        "halted before a newer format",
        "outbox 1 offset 7: format 2",
    )
    assert observed.healthy


def test_violations_are_bounded_and_still_counted(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "VIOLATIONS_KEPT_MAX", 3)
    observed = observer(logged)
    for number in range(10):
        observed.violation("m", "version_unknown", f"{number}")
    assert [detail for _, detail in observed.violations] == ["0", "1", "2"]
    assert 'qim_violation_total{check="version_unknown"} 10.0' in scraped(observed)


def test_a_stage_can_be_found_by_its_trace_id(logged: Logged) -> None:
    observed = observer(logged)
    observed.stage("writer", 0xAB, "OUTBOXED", "offset 3", 0)
    assert 'qim_stage_total{stage="OUTBOXED"} 1.0' in scraped(observed)
    (line,) = logged.lines()
    record = json.loads(line)
    assert (record["trace_id"], record["event"]) == ("00000000000000ab", "OUTBOXED")
    assert record["detail"] == "offset 3"


def test_a_stage_in_text_has_its_trace_id_too(text_logged: Logged) -> None:
    observer(text_logged).stage("writer", 0xAB, "OUTBOXED", "offset 3", 0)
    (line,) = text_logged.lines()
    assert "OUTBOXED" in line
    assert "trace_id=00000000000000ab" in line


def test_stages_may_be_counted_without_being_logged(logged: Logged) -> None:
    observed = observer(logged, stages=False)
    observed.stage("writer", 1, "OUTBOXED", "", 0)
    assert 'qim_stage_total{stage="OUTBOXED"} 1.0' in scraped(observed)
    assert logged.lines() == []


def test_a_death_is_written_before_anybody_hears_of_it(logged: Logged) -> None:
    observed = observer(logged)
    error = ValueError("a bug")
    observed.died("mailbox", error)
    assert observed.deaths == [("mailbox", error)]  # type: ignore[attr-defined]
    (line,) = logged.lines()
    record = json.loads(line)
    assert (record["level"], record["service"]) == ("fatal", "mailbox")
    assert "a bug" in record["error"]


# ------------------------------------------------------------ durations


def test_buckets_hold_what_is_at_or_below_them() -> None:
    histogram = Histogram()
    for seconds in (0.001, 0.0011, 0.002, 70.0, 1_000.0, -5.0):
        histogram.add(seconds)
    buckets = dict(histogram.buckets())
    assert (buckets["1e-05"], buckets["0.001"], buckets["0.002"]) == (1, 2, 4)
    assert (buckets["50.0"], buckets["100.0"], buckets["+Inf"]) == (4, 5, 6)
    assert histogram.count() == 6
    assert histogram.total_seconds == pytest.approx(1070.0041)


@given(st.lists(st.floats(0.0, 500.0), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_never_below_the_true_one(values: list[float], part: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    true = sorted(values)[max(0, math.ceil(part * len(values)) - 1)]
    assert histogram.quantile(part) >= true
    assert Histogram().quantile(part) == 0.0


def test_a_stage_is_timed_from_the_records_own_time(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = observer(logged, stages=False)
    monkeypatch.setattr(observation, "time", SimpleNamespace(time=lambda: 5_000.040))
    observed.stage("writer", 1, "COMMITTED", "", 5_000_000)
    observed.stage("writer", 1, "COMMITTED", "", 5_000_090)  # another node's clock is ahead
    observed.stage("client", 1, "APPLIED", "", 0)  # not known there
    lines = scraped(observed)
    (total,) = [
        line for line in lines if line.startswith('qim_stage_seconds_sum{stage="COMMITTED"}')
    ]
    assert float(total.split()[1]) == pytest.approx(0.04)
    assert 'qim_stage_seconds_count{stage="COMMITTED"} 2.0' in lines
    assert 'qim_stage_seconds_bucket{le="0.02",stage="COMMITTED"} 1.0' in lines
    assert 'qim_stage_seconds_bucket{le="0.05",stage="COMMITTED"} 2.0' in lines
    assert not [line for line in lines if "APPLIED" in line and "seconds" in line]


# ------------------------------------------------------------ gauges are asked for


def test_gauges_are_read_on_the_loop_and_an_old_scrape_stands_in_for_a_loop_that_is_stuck(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "SAMPLE_SECONDS_MAX", 0.2)
    observed = observer(logged)
    seen: list[int] = []
    depth = 3.0

    def sampler() -> list[tuple[str, str, float]]:
        seen.append(threading.get_ident())
        return [("queue_depth", "writer.commits", depth)]

    async def main() -> tuple[list[str], list[str]]:
        nonlocal depth
        loop = asyncio.get_running_loop()
        observed.sample(sampler, loop)
        fresh = await asyncio.to_thread(scraped, observed)
        depth = 4.0
        asked = threading.Thread(target=lambda: told.extend(scraped(observed)))
        told: list[str] = []
        asked.start()
        asked.join()  # the loop is stuck here
        return fresh, told

    fresh, stuck = asyncio.run(main())
    assert set(seen) == {threading.get_ident()}
    assert 'qim_queue_depth{queue="writer.commits"} 3.0' in fresh
    assert "qim_samples_stale 0.0" in fresh
    assert 'qim_queue_depth{queue="writer.commits"} 3.0' in stuck
    assert "qim_samples_stale 1.0" in stuck
    closed = scraped(observed)
    assert 'qim_queue_depth{queue="writer.commits"} 4.0' in closed, (
        "nobody runs the loop: it is ours"
    )


def test_a_sampler_that_raises_leaves_the_last_scrape_and_says_so(logged: Logged) -> None:
    observed = observer(logged)
    faults: list[Exception] = []

    def sampler() -> list[tuple[str, str, float]]:
        if faults:
            raise faults[0]
        return [("queue_depth", "writer.commits", 3.0)]

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        observed.sample(sampler, loop)
        assert "qim_samples_stale 0.0" in await asyncio.to_thread(scraped, observed)
        faults.append(ValueError("a bug"))
        return await asyncio.to_thread(scraped, observed)

    told: list[object] = []
    after = asyncio.run(main())
    assert told == faults
    assert 'qim_queue_depth{queue="writer.commits"} 3.0' in after
    assert "qim_samples_stale 1.0" in after


def test_two_samplers_may_tell_the_same(logged: Logged) -> None:
    observed = observer(logged)
    for value in (1.0, 2.0):
        observed.sample(lambda value=value: [("leases_held", "writer", value)])  # type: ignore[misc]
    held = [line for line in scraped(observed) if line.startswith("qim_leases_held")]
    assert held == ['qim_leases_held{role="writer"} 2.0']
