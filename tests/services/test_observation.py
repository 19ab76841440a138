"""Counters, log lines and health of a process: bounded, parsable, and red for good once an invariant is not zero."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from qim.core.contract.invariants import Invariant
from qim.services import observation
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
    monkeypatch.setattr(observation, "LOG_BUFFER_BYTES_MAX", 20_000)
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
    monkeypatch.setattr(observation, "LOG_CLOSE_SECONDS", 0.01)
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
    observed.count("rejected_total", 5, "")
    observed.gauge("fanout_window_records", 7, "")
    observed.gauge("fanout_window_records", 4, "")
    observed.gauge("clock_ahead_ms", 1_500, "")
    observed.sample(lambda: [("inbox_events_waiting", "writer", 3)])
    lines = scraped(observed)
    assert 'qim_clock_ahead_seconds{label=""} 1.5' in lines
    assert 'qim_audit_runs_total{label="CLEAN"} 3.0' in lines
    assert 'qim_rejected_total{label=""} 5.0' in lines
    assert 'qim_fanout_window_records{label=""} 4.0' in lines
    assert 'qim_inbox_events_waiting{label="writer"} 3.0' in lines
    assert 'qim_log_lines_dropped{label=""} 0.0' in lines
    for invariant in Invariant:
        short = invariant.value.removesuffix("_total").removesuffix("_count")
        assert f'qim_{short}_total{{label=""}} 0.0' in lines


@pytest.mark.parametrize("check", [*Invariant, "version_unknown"])
def test_a_violation_makes_the_process_unhealthy_for_good(logged: Logged, check: str) -> None:
    observed = observer(logged)
    assert observed.healthy
    observed.violation("auditor", str(check), "why")
    assert not observed.healthy
    assert observed.violations == [(str(check), "why")]
    short = str(check).removesuffix("_total").removesuffix("_count")
    named = f'qim_{short}_total{{label=""}} 1.0'
    unnamed = f'qim_violation_total{{label="{check}"}} 1.0'
    assert (named if check in set(Invariant) else unnamed) in scraped(observed)
    (line,) = logged.lines()
    record = json.loads(line)
    assert (record["level"], record["service"], record["check"]) == ("error", "auditor", str(check))


def test_violations_are_bounded_and_still_counted(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "VIOLATIONS_KEPT_MAX", 3)
    observed = observer(logged)
    for number in range(10):
        observed.violation("m", "version_unknown", f"{number}")
    assert [detail for _, detail in observed.violations] == ["0", "1", "2"]
    assert 'qim_violation_total{label="version_unknown"} 10.0' in scraped(observed)


def test_a_stage_can_be_found_by_its_trace_id(logged: Logged) -> None:
    observed = observer(logged)
    observed.stage("writer", 0xAB, "OUTBOXED", "offset 3")
    assert 'qim_stage_total{label="OUTBOXED"} 1.0' in scraped(observed)
    (line,) = logged.lines()
    record = json.loads(line)
    assert (record["trace_id"], record["event"]) == ("00000000000000ab", "OUTBOXED")
    assert record["detail"] == "offset 3"


def test_a_stage_in_text_has_its_trace_id_too(text_logged: Logged) -> None:
    observer(text_logged).stage("writer", 0xAB, "OUTBOXED", "offset 3")
    (line,) = text_logged.lines()
    assert "OUTBOXED" in line
    assert "trace_id=00000000000000ab" in line


def test_stages_may_be_counted_without_being_logged(logged: Logged) -> None:
    observed = observer(logged, stages=False)
    observed.stage("writer", 1, "OUTBOXED", "")
    assert 'qim_stage_total{label="OUTBOXED"} 1.0' in scraped(observed)
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
