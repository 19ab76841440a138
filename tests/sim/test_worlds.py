"""Fresh worlds of every profile, saved regressions, and the digest that must not move.

    pytest tests/sim --seeds 500 --seed-base 1000

A failure prints the one line that reproduces it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from qim.sim.generate import generate
from qim.sim.plan import PROFILES, decode_plan, encode_plan
from qim.sim.report import Report, repro
from qim.sim.run import run
from qim.sim.scene import Kit

SEEDS_DEFAULT = {
    "calm": 40,
    "swarm": 120,
    "zombie": 60,
    "store": 60,
    "log": 60,
    "archive": 60,
    "client": 60,
    "crowd": 60,
}
"""Worlds of ``mended`` are not fresh ones (test_mended.py): of a log that was lost twice a bump guesses what its mailbox had
(decision 0032, Price), and where it guesses wrong the audit tells. Nor are those of ``repaired`` (test_repaired.py)."""
REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


def told(report: Report) -> str:
    """What a failing test says: the violations, and the line that reproduces them."""
    lines = [repro(report.seed, report.profile)]
    for finding in report.violations[:5]:
        named = f" [message {finding.message_id.hex()}]" if finding.message_id else ""
        lines.append(f"  {finding.at} ms {finding.check} ({finding.role}): {finding.detail}{named}")
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("profile", SEEDS_DEFAULT)
def test_fresh_worlds_end_clean(
    profile: str, kit: Kit, seed_base: int, request: pytest.FixtureRequest
) -> None:
    count: int = request.config.getoption("--seeds") or SEEDS_DEFAULT[profile]
    for seed in range(seed_base, seed_base + count):
        report = run(generate(seed, profile), kit)
        assert report.clean, told(report)


@pytest.mark.parametrize("file", REGRESSIONS, ids=lambda file: file.stem)
def test_saved_worlds_end_clean(file: Path, kit: Kit) -> None:
    report = run(decode_plan(file.read_bytes()), kit)
    assert report.clean, told(report)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_plan_survives_json(profile: str) -> None:
    for seed in range(20):
        plan = generate(seed, profile)
        assert decode_plan(encode_plan(plan)) == plan


def test_same_seed_same_digest_in_one_process(kit: Kit) -> None:
    """Worlds of one process share compiled scripts and nothing else."""
    plan = generate(7, "swarm")
    first = run(plan, kit)
    run(generate(8, "swarm"), kit)
    again = run(plan, kit)
    fresh = run(plan, Kit())
    assert first.digest == again.digest == fresh.digest
    assert first.checkpoints == fresh.checkpoints
    assert first.census == fresh.census


def test_watching_changes_nothing(kit: Kit) -> None:
    plan = generate(9, "swarm")
    seen: list[int] = []
    watched = run(plan, kit, observe=lambda host, now, events, effects: seen.append(len(events)))
    assert watched.digest == run(plan, kit).digest
    assert sum(seen) == watched.events


@pytest.mark.slow
def test_same_digest_in_fresh_processes_with_other_hash_seeds_and_jobs() -> None:
    digests = []
    for hash_seed, jobs in (("0", "1"), ("1", "2"), ("4242", "3")):
        command = [
            *(sys.executable, "-c", "from qim.cli.main import main; raise SystemExit(main())"),
            *("sim", "run", "--seeds", "24", "--start", "300", "--profile", "swarm"),
            *("-j", jobs, "--json"),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin:/bin"},
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        digests.append(json.loads(done.stdout)["digest"])
    assert len(set(digests)) == 1


def test_another_seed_is_another_world(kit: Kit) -> None:
    assert run(generate(1, "calm"), kit).digest != run(generate(2, "calm"), kit).digest


def test_a_fault_taken_out_leaves_the_rest_where_it_was() -> None:
    """Draws are keyed by what they decide, so that shrinking is local."""
    short, long = generate(11, "swarm", messages=5), generate(11, "swarm", messages=9)
    assert short.topology == long.topology
    assert short.devices == long.devices
    assert short.faults == long.faults
    sends = [op for op in long.operations if op in short.operations]
    assert len(sends) == len(short.operations)
