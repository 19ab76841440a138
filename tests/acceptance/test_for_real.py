"""The gate carried out on real servers, shortened: all of it ends with it, and what somebody else runs is left alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.testbed.redis import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("deployment")]

STEPS = ("bed", "start", "smoke", "invariants", "audit", "stop")
SECONDS_MAX = 500.0
NAMESAKE = ("-c", "import sys; sys.stdin.read()", "-m", "qim", "serve", "writer")


class Stranger:
    """A store that the caller's own settings name, and a process that a search by name would take for ours."""

    def __init__(self, directory: Path) -> None:
        self.store = RedisServer(directory / "stranger")
        self.store.start()
        self.namesake = subprocess.Popen([sys.executable, *NAMESAKE], stdin=subprocess.PIPE)

    def environment(self, folder: Path) -> dict[str, str]:
        """Of somebody who works with that store, and whose disks are in ``folder``."""
        own = {"QIM_REDIS_ADDR": self.store.address, "QIM_MAILBOX_REDIS_ADDR": self.store.address}
        return {**os.environ, **own, "QIM_LOAD_RATE": "5", "TMPDIR": str(folder)}

    def met(self) -> int:
        """How many have connected to it so far, whoever asks now among them."""
        with self.store.client() as client:
            assert client.dbsize() == 0
            return int(client.info("stats")["total_connections_received"])

    def close(self) -> None:
        """Ours to end."""
        self.store.kill()
        self.namesake.kill()
        self.namesake.communicate()


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    made = Stranger(tmp_path)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the run makes its own."""
    made = tmp_path / "runs"
    made.mkdir()
    return made


@pytest.fixture
def run(stranger: Stranger, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Under way."""
    command = [sys.executable, "-m", "acceptance", "--json", "--keep", "--steps", *STEPS]
    environment = stranger.environment(folder)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as begun:
        try:
            yield begun
        finally:
            begun.terminate()  # for what failed in its middle; one that has ended is not reached


def of_the_run(folder: Path) -> list[str]:
    """Commands of processes that live and name a place in its folder, or have it as their own."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes()
            place = str((process / "cwd").readlink())
        except OSError:  # it has ended, or is nobody of ours
            continue
        if str(folder).encode() in words or place.startswith(str(folder)):
            found.append(words.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


def test_a_shortened_run_ends_all_that_it_started_and_nothing_else(
    stranger: Stranger, folder: Path, run: subprocess.Popen[str]
) -> None:
    met = stranger.met()
    out, said = run.communicate(timeout=SECONDS_MAX)
    told: dict[str, Any] = json.loads(out)
    steps = {one["name"]: (one["status"], one["why"]) for one in told["steps"]}
    assert {name: steps[name] for name in STEPS} == dict.fromkeys(STEPS, ("passed", [])), said
    assert (run.returncode, told["verdict"]) == (4, "PARTIAL"), "shortened: never accepted"
    left_alone(stranger, folder, met)
    assert "QIM_REDIS_ADDR" in said, "whose settings are not passed on is told"


def test_a_run_that_is_told_to_stop_ends_all_that_it_started(
    stranger: Stranger, folder: Path, run: subprocess.Popen[str]
) -> None:
    met = stranger.met()
    assert run.stderr is not None
    assert next((line for line in run.stderr if "smoke …" in line), ""), "it never came so far"
    assert len(of_the_run(folder)) > len(STEPS), "servers and processes run"
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=SECONDS_MAX)
    assert (run.returncode, out) == (130, "")
    left_alone(stranger, folder, met)


def left_alone(stranger: Stranger, folder: Path, met: int) -> None:
    assert of_the_run(folder) == []
    assert stranger.namesake.poll() is None
    assert stranger.store.process.alive
    assert stranger.met() == met + 1, "somebody came who was not asked to"
