"""The run around the steps: what raises is incomplete, what is not reached is skipped, what is not set is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from acceptance.__main__ import EXITS, rate_of, run
from acceptance.bed import LENT, missing_parts
from acceptance.commands import Commands, junit_of
from acceptance.judgement import STEPS, Judged, Status, Verdict, verdict_of
from acceptance.steps import Plan, Steps, forget_settings

PLAN = Plan(
    rate=10.0,
    steps=STEPS,
    steady_seconds=180.0,
    heavy_seconds=60.0,
    processes_each=1,
    brokers=1,
    plain=True,
)


def made_up(folder: Path, **instead: object) -> Steps:
    """Steps that pass and do nothing, but for those of ``instead``."""
    steps = Steps(PLAN, folder, Commands(folder, lambda seconds: None))
    for name in STEPS:
        steps.by_name[name] = instead.get(name, Judged)  # type: ignore[assignment]
    return steps


def broken() -> Judged:
    raise OSError("no answer")


def test_all_steps_that_pass_are_accepted(tmp_path: Path) -> None:
    results = run(made_up(tmp_path), PLAN, keep_going=False)
    assert [one.name for one in results] == list(STEPS)
    assert verdict_of(results, shortened=False) is Verdict.ACCEPTED


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_raises_is_incomplete(tmp_path: Path, name: str) -> None:
    results = run(made_up(tmp_path, **{name: broken}), PLAN, keep_going=True)
    assert {one.name: one.status for one in results}[name] is Status.INCOMPLETE
    assert verdict_of(results, shortened=False) is Verdict.INCOMPLETE


def test_after_failed_tests_nothing_else_is_tried(tmp_path: Path) -> None:
    steps = made_up(tmp_path, check=lambda: Judged(failed=("it is not",)))
    results = {one.name: one.status for one in run(steps, PLAN, keep_going=False)}
    assert results["check"] is Status.FAILED
    assert {results[name] for name in STEPS[2:]} == {Status.SKIPPED}


def test_without_a_cluster_no_step_of_it_passes(tmp_path: Path) -> None:
    steps = Steps(PLAN, tmp_path, Commands(tmp_path, lambda seconds: None))
    for name in ("bed", "check", "test", "integration", "start"):
        steps.by_name[name] = Judged
    results = {one.name: one.status for one in run(steps, PLAN, keep_going=True)}
    later = STEPS[STEPS.index("smoke") :]
    assert {results[name] for name in later} == {Status.INCOMPLETE}


def test_only_accepted_ends_with_nought() -> None:
    assert [verdict for verdict, status in EXITS.items() if status == 0] == [Verdict.ACCEPTED]
    assert set(EXITS) == set(Verdict)


@pytest.mark.parametrize("text", [None, "", "0", "-5", "fast", "nan", "inf"])
def test_no_rate_no_run(text: str | None) -> None:
    with pytest.raises(ValueError, match="QIM_LOAD_RATE"):
        rate_of(text)


def test_the_command_refuses_without_a_rate() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "QIM_LOAD_RATE"}
    ended = subprocess.run(
        [sys.executable, "-m", "acceptance"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "QIM_LOAD_RATE is not set" in ended.stderr


@pytest.mark.parametrize("name", LENT)
def test_a_server_that_somebody_lends_is_refused(name: str, tmp_path: Path) -> None:
    """It would be neither alone nor its own to stop."""
    assert f"{name} names somebody's server: unset it" in missing_parts({name: "127.0.0.1:1"})
    steps = made_up(tmp_path, bed=lambda: Judged(incomplete=("lent",)))
    results = {one.name: one.status for one in run(steps, PLAN, keep_going=False)}
    assert {results[name] for name in STEPS[1:]} == {Status.SKIPPED}


def test_settings_of_the_caller_are_taken_away_but_for_lent_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those stay to be refused: a run that only forgot them would be told nothing is amiss."""
    for name in ("QIM_REDIS_ADDR", "QIM_CONFIG", *LENT):
        monkeypatch.setenv(name, "somebody's")
    assert {"QIM_REDIS_ADDR", "QIM_CONFIG"} <= set(forget_settings())
    assert {name for name in os.environ if name.startswith("QIM_")} == set(LENT)


JUNIT = """<?xml version="1.0"?><testsuites><testsuite tests="3" failures="1" errors="0" skipped="1">
<testcase name="test_a"/><testcase name="test_b"><failure message="no"/></testcase>
<testcase name="test_c"><skipped message="no openssl"/></testcase></testsuite></testsuites>"""


def test_the_runner_s_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert junit_of(report) is None
    report.write_text(JUNIT)
    told = junit_of(report)
    assert told == {"tests": 3, "failures": 1, "errors": 0, "skipped": ["test_c (no openssl)"]}
    report.write_text(JUNIT[:80])
    assert junit_of(report) is None, "a report that was cut off is none"


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    commands = Commands(tmp_path, lambda seconds: None)
    ended = commands.run("sleeper", ["sleep", "600"], seconds_max=0.3)
    assert ended.status == 124
    assert ended.report() is None
