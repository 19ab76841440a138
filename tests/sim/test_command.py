"""`qim sim run | replay | audit`: options, JSON and exit statuses as docs/simulator.md has them."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qim.cli.main import main
from qim.cli.sim.run import CHUNK_SEEDS, campaign
from qim.core.ports.log import Topic
from qim.sim.campaign import Campaign, Outcome
from qim.sim.faults import TopicRecreated
from qim.sim.generate import generate
from qim.sim.plan import encode_plan


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of failing seeds are saved beside the caller."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A world in which something must be violated."""
    fault = TopicRecreated(at_ms=2_500, topic=Topic.OUTBOX, partition=0)
    plan = replace(generate(2, "calm", messages=20), faults=(fault,), heal_ms=4_000, end_ms=20_000)
    file = tmp_path / "broken.json"
    file.write_bytes(encode_plan(plan))
    return file


def asked(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    status = main(["sim", *argv])
    out = capsys.readouterr().out
    return status, json.loads(out) if "--json" in argv else out


def test_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("run", "--seeds", "3", "--start", "5", "--profile", "calm", "--json")
    status, told = asked(capsys, *argv)
    assert status == 0
    assert set(told) >= {"seeds", "violations", "events", "cpu_s", "sim_s", "digest", "census"}
    assert told["seeds"] == 3
    assert told["violations"] == []
    assert told["events"] > 500
    assert asked(capsys, *argv)[1]["digest"] == told["digest"]


def test_run_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = asked(capsys, "run", "--seeds", "2", "--start", "0", "--profile", "calm")
    assert status == 0
    assert "2 worlds of profile calm from seed 0: 2 clean, 0 not" in text
    assert "events and" in text


def test_a_campaign_keeps_no_world_behind_its_chunk() -> None:
    """At each chunk what was not collected yet of the last worlds was put among what is never collected: 1 MB a world."""
    kept: list[int] = []
    try:
        for outcomes in campaign("calm", range(3 * CHUNK_SEEDS), jobs=1):
            assert len(outcomes) == CHUNK_SEEDS
            kept.append(gc.get_freeze_count())
    finally:
        gc.unfreeze()
    assert len(kept) == 3
    assert len(dict.fromkeys(kept)) == 1, kept


def test_replay_tells_the_same_world(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = asked(capsys, "replay", "3", "--profile", "calm", "--json")
    assert status == 0
    assert told["ledger"]["committed"] > 0
    assert {"at_ms", "node", "machine", "kind", "what", "text"} == set(told["lines"][0])
    times = [line["at_ms"] for line in told["lines"]]
    assert times == sorted(times)


def test_replay_until_and_of_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("replay", "3", "--profile", "calm", "--until", "500", "--node", "writer-1", "--json")
    lines = asked(capsys, *argv)[1]["lines"]
    assert lines
    assert {line["node"] for line in lines} == {"writer-1"}
    assert max(line["at_ms"] for line in lines) <= 500


def test_replay_follows_a_message_through_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    lines = asked(capsys, "replay", "3", "--profile", "calm", "--json")[1]["lines"]
    applied = next(line["text"] for line in lines if line["what"] == "MessageApplied")
    message_id = applied.partition("message_id=")[2][:32]
    argv = ("replay", "3", "--profile", "calm", "--follow", message_id, "--json")
    followed = {line["what"] for line in asked(capsys, *argv)[1]["lines"]}
    assert {"Append", "MarkCommitted", "AppendEntries", "MessageApplied"} <= followed
    assert "OpenShard" not in followed


def test_a_violation_is_status_1_and_stands_in_the_story(
    capsys: pytest.CaptureFixture[str], broken: Path
) -> None:
    status, text = asked(capsys, "replay", str(broken))
    assert status == 1
    assert "✗ position_mismatch" in text
    assert "⚡ topic_recreated" in text
    assert "violated: position_mismatch (fanout)" in text


def test_audit_of_a_whole_and_of_a_broken_world(
    capsys: pytest.CaptureFixture[str], broken: Path
) -> None:
    status, told = asked(capsys, "audit", "3", "--profile", "calm", "--json")
    assert (status, told["report"]["verdict"]) == (0, "CLEAN")
    report, ledger = told["report"], told["ledger"]
    assert told["faults"] == []
    assert (report["records"], report["dispatches"]) == (ledger["committed"], ledger["dispatches"])
    assert ledger["committed"] > 0
    status, told = asked(capsys, "audit", str(broken), "--json")
    assert status == 1
    assert told["report"]["orphans"]
    assert told["faults"] == ["2500 ms: topic_recreated topic=outbox"]
    status, text = asked(capsys, "audit", str(broken))
    assert status == 1
    assert "ORPHANS" in text
    assert "faults of this world" in text


@pytest.mark.parametrize(
    "argv",
    [
        ("run", "--seeds", "0"),
        ("run", "--start", "-1"),
        ("run", "-j", "0"),
        ("replay", "no-such-file"),
        ("replay", "3", "--follow", "not hex"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> None:
    assert main(["sim", *argv]) == 2
    assert capsys.readouterr().err


def test_a_file_that_is_no_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"seed": 1}')
    assert main(["sim", "audit", str(file)]) == 2
    assert "no plan" in capsys.readouterr().err


def test_failures_are_grouped_by_what_they_are_never_by_text() -> None:
    def outcome(seed: int, *violations: tuple[str, str, str]) -> Outcome:
        return Outcome(
            seed=seed,
            digest=f"{seed:032x}",
            violations=violations,
            census={"a": seed},
            events=10,
            sim_ms=1_500,
            cpu_s=0.25,
        )

    campaign = Campaign(
        profile="swarm",
        outcomes=(
            outcome(1, ("claims", "mailbox", "user 1")),
            outcome(2),
            outcome(3, ("claims", "mailbox", "user 7"), ("fences", "writer", "epoch 3")),
        ),
    )
    assert not campaign.clean
    assert [row[:3] for row in campaign.groups()] == [
        ("claims", "mailbox", [1, 3]),
        ("fences", "writer", [3]),
    ]
    told = campaign.as_json()
    assert told["census"] == {"a": 6}
    assert (told["events"], told["sim_s"], told["cpu_s"]) == (30, 4, 0.75)
    assert told["violations"][0]["repro"] == "qim sim replay 1 --profile swarm"
    swapped = Campaign(profile="swarm", outcomes=tuple(reversed(campaign.outcomes)))
    assert swapped.digest() == campaign.digest()
