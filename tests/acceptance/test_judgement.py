"""The gate's judgement, with results made up: every kind of incompleteness keeps a run from being ACCEPTED."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from acceptance.judgement import (
    HEAVY_SECONDS,
    SMOKE_CHECKS_MIN,
    STEADY_SECONDS,
    STEPS,
    Judged,
    Status,
    StepResult,
    Verdict,
    judge_audit,
    judge_command,
    judge_devices,
    judge_heavy,
    judge_load,
    judge_prewarm,
    judge_processes,
    judge_smoke,
    judge_steady,
    judge_stop,
    judge_tests,
    shortened_by,
    together,
    verdict_of,
)

Change = Callable[[Any], object]


def step(name: str, status: Status = Status.PASSED) -> StepResult:
    return StepResult(name=name, status=status, seconds=1.0)


WHOLE = [step(name) for name in STEPS]


def cases(names: str | tuple[str, ...], rows: list[Any]) -> pytest.MarkDecorator:
    """Numbered, for changes have no name."""
    return pytest.mark.parametrize(names, rows, ids=[str(n) for n in range(len(rows))])


def changed(good: Any, change: Change) -> Any:
    """A copy with something else in it."""
    told = copy.deepcopy(good)
    change(told)
    return told


# ---------------------------------------------------------------- the run


def test_a_whole_run_is_accepted() -> None:
    assert verdict_of(WHOLE, shortened=False) is Verdict.ACCEPTED


def test_a_shortened_run_is_never_accepted() -> None:
    assert verdict_of(WHOLE, shortened=True) is Verdict.PARTIAL
    assert verdict_of([step("bed"), step("smoke")], shortened=True) is Verdict.PARTIAL


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("shortened", [False, True])
def test_a_step_that_failed_rejects(name: str, shortened: bool) -> None:
    results = [step(n, Status.FAILED if n == name else Status.PASSED) for n in STEPS]
    assert verdict_of(results, shortened=shortened) is Verdict.REJECTED


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("shortened", [False, True])
def test_a_step_that_is_incomplete_leaves_the_run_so(name: str, shortened: bool) -> None:
    results = [step(n, Status.INCOMPLETE if n == name else Status.PASSED) for n in STEPS]
    assert verdict_of(results, shortened=shortened) is Verdict.INCOMPLETE


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_is_missing_or_skipped_is_not_passed(name: str) -> None:
    missing = [step(n) for n in STEPS if n != name]
    assert verdict_of(missing, shortened=False) is Verdict.INCOMPLETE
    skipped = [step(n, Status.SKIPPED if n == name else Status.PASSED) for n in STEPS]
    assert verdict_of(skipped, shortened=False) is Verdict.INCOMPLETE


def test_nothing_at_all_is_incomplete() -> None:
    for shortened in (False, True):
        assert verdict_of([], shortened=shortened) is Verdict.INCOMPLETE
        skipped = [step(name, Status.SKIPPED) for name in STEPS]
        assert verdict_of(skipped, shortened=shortened) is Verdict.INCOMPLETE


def test_what_is_shortened() -> None:
    assert not shortened_by(STEPS, STEADY_SECONDS, HEAVY_SECONDS)
    assert shortened_by(STEPS, STEADY_SECONDS - 1, HEAVY_SECONDS)
    assert shortened_by(STEPS, STEADY_SECONDS, HEAVY_SECONDS - 1)
    for name in STEPS:
        assert shortened_by([n for n in STEPS if n != name], STEADY_SECONDS, HEAVY_SECONDS)


def test_a_step_is_as_bad_as_the_worst_of_it() -> None:
    good, open_, bad = Judged(), Judged(incomplete=("x",)), Judged(failed=("y",))
    assert good.status is Status.PASSED
    assert together(good, open_).status is Status.INCOMPLETE
    assert together(open_, bad, good).status is Status.FAILED


# ---------------------------------------------------------------- commands and tests


def test_a_command_that_ends_otherwise_fails() -> None:
    assert judge_command(0, "make check").status is Status.PASSED
    for status in (1, 2, 124, -9):
        assert judge_command(status, "make check").status is Status.FAILED


TESTS: dict[str, Any] = {"tests": 10, "failures": 0, "errors": 0, "skipped": []}


@cases(
    ("status", "told", "wanted"),
    [
        (0, TESTS, Status.PASSED),
        (1, TESTS, Status.FAILED),
        (0, TESTS | {"failures": 1}, Status.FAILED),
        (0, TESTS | {"errors": 1}, Status.FAILED),
        (0, TESTS | {"skipped": ["test_x (no redis-server)"]}, Status.INCOMPLETE),
        (0, TESTS | {"tests": 0}, Status.INCOMPLETE),
        (0, None, Status.INCOMPLETE),
        (5, None, Status.FAILED),
    ],
)
def test_tests(status: int, told: dict[str, Any] | None, wanted: Status) -> None:
    assert judge_tests(status, "make test", told).status is wanted


# ---------------------------------------------------------------- smoke and prewarm

NAMES = [f"check-{number}" for number in range(SMOKE_CHECKS_MIN)]
SMOKE: dict[str, Any] = {
    "passed": len(NAMES),
    "checks": [{"name": name, "status": "passed", "detail": ""} for name in NAMES],
}


@cases(
    ("change", "status", "wanted"),
    [
        (lambda told: None, 0, Status.PASSED),
        (lambda told: None, 1, Status.FAILED),
        (lambda told: told["checks"][3].update(status="failed"), 1, Status.FAILED),
        (lambda told: told["checks"][3].update(status="skipped"), 0, Status.INCOMPLETE),
        (lambda told: told["checks"].pop(), 0, Status.INCOMPLETE),
        (lambda told: told["checks"].clear(), 0, Status.INCOMPLETE),
    ],
)
def test_smoke(change: Change, status: int, wanted: Status) -> None:
    assert judge_smoke(status, changed(SMOKE, change), NAMES).status is wanted


def test_smoke_without_a_report_fails() -> None:
    assert judge_smoke(3, None, NAMES).status is Status.FAILED


def test_fewer_checks_than_are_known_are_too_few() -> None:
    few = {"passed": 1, "checks": SMOKE["checks"][:1]}
    assert judge_smoke(0, few, NAMES[:1]).status is Status.INCOMPLETE


def test_prewarm() -> None:
    report = {"before": 10, "after": 2_000, "changed": 1_990}
    assert judge_prewarm(0, report, 2_000).status is Status.PASSED
    assert judge_prewarm(0, report, 2_001).status is Status.INCOMPLETE
    assert judge_prewarm(3, report, 2_000).status is Status.INCOMPLETE
    assert judge_prewarm(0, None, 2_000).status is Status.INCOMPLETE


# ---------------------------------------------------------------- load

RATE, SECONDS = 100.0, 180.0
LOAD: dict[str, Any] = {
    "holds": True,
    "complete": True,
    "incomplete_because": [],
    "seconds": 180.2,
    "offered_per_s": 100.0,
    "acked_per_s": 99.9,
    "delivered_per_s": 200.0,
    "verdict": {"acked": 18_000, "expected": 40_000, "lost": 0},
    "latency_ms": {
        "ack": {"count": 18_000, "p50": 10.0, "p99": 150.0},
        "end_to_end": {"count": 18_000, "p50": 20.0, "p99": 300.0},
    },
    "errors": {},
    "counts": {"storms": 2, "connections_lost": 2_300, "readers_held": 40},
}

ANY_LOAD = [
    (lambda told: told.update(holds=False), Status.FAILED),
    (lambda told: told.update(offered_per_s=97.0), Status.FAILED),
    (lambda told: told.update(offered_per_s=float("nan")), Status.FAILED),
    (lambda told: told.update(complete=False), Status.INCOMPLETE),
    (
        lambda told: told.update(complete=False, incomplete_because=["the generator was late"]),
        Status.INCOMPLETE,
    ),
    (lambda told: told.update(seconds=179.0), Status.INCOMPLETE),
]


def as_steady(report: Any) -> Status:
    return judge_steady(report, rate=RATE, seconds=SECONDS).status


def as_heavy(report: Any) -> Status:
    return judge_heavy(report, rate=RATE, seconds=SECONDS, storms=2).status


def test_a_load_that_held() -> None:
    assert judge_load(LOAD, rate=RATE, seconds=SECONDS).status is Status.PASSED
    assert as_steady(LOAD) is as_heavy(LOAD) is Status.PASSED
    assert judge_load(None, rate=RATE, seconds=SECONDS).status is Status.INCOMPLETE
    assert as_steady(None) is as_heavy(None) is Status.INCOMPLETE


@cases(("change", "wanted"), ANY_LOAD)
def test_loads(change: Change, wanted: Status) -> None:
    told = changed(LOAD, change)
    assert judge_load(told, rate=RATE, seconds=SECONDS).status is wanted
    assert as_steady(told) is as_heavy(told) is wanted


@cases(
    ("change", "wanted"),
    [
        (lambda told: told.update(acked_per_s=97.0), Status.FAILED),
        (lambda told: told.update(acked_per_s=float("nan")), Status.FAILED),
        (lambda told: told["latency_ms"]["ack"].update(p99=150.1), Status.FAILED),
        (lambda told: told["latency_ms"]["end_to_end"].update(p99=300.1), Status.FAILED),
        (lambda told: told["latency_ms"]["end_to_end"].update(count=0), Status.INCOMPLETE),
        (lambda told: told["latency_ms"].pop("ack"), Status.INCOMPLETE),
        (lambda told: told["latency_ms"]["ack"].update(p99=float("nan")), Status.INCOMPLETE),
    ],
)
def test_objectives(change: Change, wanted: Status) -> None:
    assert as_steady(changed(LOAD, change)) is wanted
    assert as_heavy(changed(LOAD, change)) is Status.PASSED, "hardship may catch up later"


@cases(
    "change",
    [
        lambda told: told["counts"].update(storms=1),
        lambda told: told["counts"].update(connections_lost=1_500),
        lambda told: told["counts"].pop("readers_held"),
        lambda told: told["verdict"].update(expected=36_000),
    ],
)
def test_hardship_that_did_not_happen(change: Change) -> None:
    assert as_heavy(changed(LOAD, change)) is Status.INCOMPLETE


DEVICES: dict[str, Any] = {
    "acked": 700,
    "delivered": 1_400,
    "lost": 0,
    "doubled": 0,
    "unsettled": 0,
    "violations": [],
}


@cases(
    ("change", "wanted"),
    [
        (lambda told: None, Status.PASSED),
        (lambda told: told.update(lost=1), Status.FAILED),
        (lambda told: told.update(doubled=1), Status.FAILED),
        (lambda told: told["violations"].append("cursor_advanced_by_push"), Status.FAILED),
        (lambda told: told.update(acked=0), Status.INCOMPLETE),
        (lambda told: told.update(delivered=0), Status.INCOMPLETE),
        (lambda told: told.update(unsettled=1), Status.INCOMPLETE),
    ],
)
def test_devices(change: Change, wanted: Status) -> None:
    assert judge_devices(changed(DEVICES, change)).status is wanted


def test_no_devices_prove_nothing() -> None:
    assert judge_devices(None).status is Status.INCOMPLETE


# ---------------------------------------------------------------- processes, audit, end

ONE: dict[str, Any] = {
    "alive": True,
    "restarted": False,
    "pages": {"/livez": True, "/healthz": True, "/readyz": True},
    "invariants": {f"invariant-{number}": 0.0 for number in range(5)},
    "violations": {},
    "stale": 0.0,
}
PROCESSES: dict[str, Any] = {"writer-1": ONE, "gateway-1": ONE}


@cases(
    ("change", "wanted"),
    [
        (lambda told: None, Status.PASSED),
        (lambda told: told["writer-1"].update(alive=False), Status.FAILED),
        (lambda told: told["writer-1"].update(restarted=True), Status.FAILED),
        (lambda told: told["writer-1"]["pages"].update({"/healthz": False}), Status.FAILED),
        (lambda told: told["writer-1"]["invariants"].update({"invariant-0": 1.0}), Status.FAILED),
        (lambda told: told["writer-1"]["violations"].update(stop=2.0), Status.FAILED),
        (lambda told: told.update({"writer-1": None}), Status.INCOMPLETE),
        (lambda told: told["writer-1"]["pages"].pop("/livez"), Status.INCOMPLETE),
        (lambda told: told["writer-1"]["invariants"].popitem(), Status.INCOMPLETE),
        (lambda told: told["writer-1"].update(stale=1.0), Status.INCOMPLETE),
        (lambda told: told.clear(), Status.INCOMPLETE),
    ],
)
def test_processes(change: Change, wanted: Status) -> None:
    assert judge_processes(changed(PROCESSES, change), 5).status is wanted


AUDIT: dict[str, Any] = {
    "verdict": "CLEAN",
    "covered": [
        {"partition": partition, "low": "0", "high": "500", "records": 500}
        for partition in range(4)
    ],
    "orphans": [],
    "orphans_total": 0,
    "in_flight": [],
    "incomplete": [],
    "records": 2_000,
    "dispatches": 3_000,
}


@cases(
    ("change", "wanted"),
    [
        (lambda told: None, Status.PASSED),
        (lambda told: told.update(verdict="ORPHANS"), Status.FAILED),
        (lambda told: told.update(orphans_total=1), Status.FAILED),
        (lambda told: told["orphans"].append({"kind": "missing"}), Status.FAILED),
        (lambda told: told.update(verdict="INCOMPLETE"), Status.INCOMPLETE),
        (lambda told: told.update(verdict="anything else"), Status.INCOMPLETE),
        (lambda told: told["incomplete"].append("a shard moved"), Status.INCOMPLETE),
        (lambda told: told["in_flight"].append("00ff"), Status.INCOMPLETE),
        (lambda told: told["covered"].pop(), Status.INCOMPLETE),
        (lambda told: told["covered"][2].update(records=0), Status.INCOMPLETE),
        (lambda told: told.update(dispatches=10), Status.INCOMPLETE),
    ],
)
def test_audit(change: Change, wanted: Status) -> None:
    assert judge_audit(changed(AUDIT, change), partitions=4, acked=1_900).status is wanted


def test_an_audit_that_left_a_partition_out_is_incomplete_however_much_it_covered() -> None:
    """Others may hold enough for all that was acked: what stood in this one was looked at by nobody."""
    told = changed(AUDIT, lambda told: told["covered"].pop(1))
    judged = judge_audit(told, partitions=4, acked=10)
    assert judged.incomplete == ("outbox partitions [1] were not covered",)


def test_no_audit_is_incomplete() -> None:
    assert judge_audit(None, partitions=4, acked=0).status is Status.INCOMPLETE


def test_the_end() -> None:
    assert judge_stop({"writer-1": 0}, [], 0).status is Status.PASSED
    assert judge_stop({"writer-1": -9}, [], 0).status is Status.FAILED
    assert judge_stop({"writer-1": None}, [], 0).status is Status.FAILED
    assert judge_stop({"writer-1": 0}, ["writer-1: a traceback"], 0).status is Status.FAILED
    assert judge_stop({"writer-1": 0}, [], 1).status is Status.FAILED
    assert judge_stop({}, [], 0).status is Status.INCOMPLETE
