"""What `python -m chaos` refuses before it starts anything, and that every simulated kind is accounted for."""

import json
import tempfile
from pathlib import Path

import pytest

from chaos import __main__ as command
from chaos.__main__ import main
from chaos.injector import ClusterInjector
from chaos.plan import with_faults, workload
from chaos.storm import MAKERS, NOT_FOR_REAL, coverage
from qim.core.ports.log import Topic
from qim.sim.faults import (
    FAULTS,
    Crash,
    Garbage,
    LeaderChange,
    Partition,
    RetentionPasses,
    ScaleOut,
    StoreStall,
    UserActs,
    WallStep,
    tag_of,
)
from qim.sim.plan import decode_plan, encode_plan
from tests.chaos.test_run_on_up import SMALL
from tests.integration.testbed.maven_jars import JarsMissing


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (JarsMissing("no java on PATH"), 4, "not carried out, nothing is judged: no java on PATH"),
        (RuntimeError("a fault of ours"), 4, "RuntimeError: a fault of ours"),
        (KeyboardInterrupt(), 130, "interrupted, nothing is judged"),
    ],
)
def test_a_run_that_is_not_carried_out_has_no_verdict(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    told: str,
) -> None:
    """1 says that a promise was broken; a traceback is for our own faults alone."""

    def none(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(command, "ChaosCluster", none)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["run", "--minutes", "0.1", "--json"]) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert ("Traceback" in said.err) is isinstance(error, RuntimeError)
    (folder,) = tmp_path.iterdir()
    assert f"are in {folder}" in said.err
    assert [path.name for path in folder.iterdir()] == ["plan.json"]


def saved(folder: Path, *faults: object) -> str:
    """A plan in a file."""
    plan = with_faults(workload(1, minutes=0.1, sends_per_second=1, topology=SMALL), faults)  # type: ignore[arg-type]
    path = folder / "plan.json"
    path.write_bytes(encode_plan(plan))
    return str(path)


def test_a_plan_with_a_fault_that_cannot_be_had_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, RetentionPasses(at_ms=1, topic=Topic.OUTBOX, partition=0))
    assert main(["run", "--plan", path]) == 2
    told = capsys.readouterr().err
    assert "retention: must be detected, and ends the run" in told


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            Crash(at_ms=1, node="writer-9"),
            "crash at 1 ms: no process 'writer-9'; there are archiver-1, ",
        ),
        (WallStep(at_ms=1, node="archiver-9", by_ms=5), "no process 'archiver-9'"),
        (
            Garbage(at_ms=1, gateway="writer-1", kind=0),
            "no gateway 'writer-1'; there are gateway-1, ",
        ),
        (UserActs(at_ms=1, node="client-1-x", times=1), "no device 'client-1-x'"),
        (ScaleOut(at_ms=1, role="clerk"), "no role 'clerk'"),
        (StoreStall(at_ms=1, until_ms=2, store=2), "no store '2'; there are 0, 1"),
        (
            Partition(at_ms=1, until_ms=2, source="*", target="store", two_way=True),
            "no process '*'",
        ),
        (
            Partition(at_ms=1, until_ms=2, source="writer-1", target="log", two_way=True),
            "no thing to be parted from 'log'",
        ),
    ],
)
def test_a_plan_that_names_nobody_here_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: object, told: str
) -> None:
    assert main(["run", "--plan", saved(tmp_path, fault)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("chaos: UNKNOWN_NODE: ")
    assert told in said
    assert "Traceback" not in said


def test_one_broker_changes_no_leader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, LeaderChange(at_ms=1, until_ms=2, topic=Topic.OUTBOX, partition=0))
    assert main(["plan", "--plan", path, "--brokers", "1"]) == 2
    assert "--brokers 3" in capsys.readouterr().err
    assert main(["plan", "--plan", path]) == 0


def test_a_process_that_an_earlier_fault_adds_may_be_named(tmp_path: Path) -> None:
    """In the order of time, not of the file."""
    late = Crash(at_ms=10, node="writer-3")
    assert main(["plan", "--plan", saved(tmp_path, late, ScaleOut(at_ms=9, role="writer"))]) == 0
    assert main(["plan", "--plan", saved(tmp_path, late, ScaleOut(at_ms=11, role="writer"))]) == 2


def test_what_a_storm_draws_names_only_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A printed plan can be given back: every kind, many draws."""
    for seed in range(5):
        assert main(["plan", "--seed", str(seed), "--minutes", "10", "--rate", "0.1"]) == 0
        path = tmp_path / "printed.json"
        path.write_text(capsys.readouterr().out)
        assert main(["plan", "--plan", str(path)]) == 0
        capsys.readouterr()


@pytest.mark.parametrize("text", [None, "{", '{"seed": "x"}'])
def test_a_file_that_is_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    assert main(["plan", "--plan", str(path)]) == 2
    assert f"{path} is no plan" in capsys.readouterr().err


def test_a_plan_is_printed_as_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, WallStep(at_ms=1, node="writer-1", by_ms=5))
    assert main(["plan", "--plan", path]) == 0
    printed = capsys.readouterr().out
    assert decode_plan(printed.encode()) == decode_plan(Path(path).read_bytes())


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--rate", "-1"]])
def test_numbers_that_make_no_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    assert "above 0" in capsys.readouterr().err


def test_a_leader_is_only_changed_among_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--only", "leader_change", "--brokers", "1"]) == 2
    assert "--brokers 3" in capsys.readouterr().err


def test_a_kind_that_nobody_knows_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--only", "crahs"])
    assert ended.value.code == 2
    assert "crash" in capsys.readouterr().err


def test_only_the_kinds_asked_for_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--only", "crash", "wall_step", "--minutes", "2"]) == 0
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert {one["type"] for one in faults} == {"crash", "wall_step"}


def test_every_simulated_kind_is_done_for_real_or_said_why_not() -> None:
    tags = {tag_of(kind) for kind in FAULTS}
    assert tags == set(MAKERS) | set(NOT_FOR_REAL)
    assert not set(MAKERS) & set(NOT_FOR_REAL)
    injector = ClusterInjector(None, say=print)  # type: ignore[arg-type]
    assert {tag_of(kind) for kind in injector.kinds} == set(MAKERS)
    told = coverage({"crash": 3})
    assert told["crash"] == "3 times"
    assert told["pause"] == "not in this run"
    assert told["retention"] == NOT_FOR_REAL["retention"]
