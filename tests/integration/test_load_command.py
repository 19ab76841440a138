"""`qim load` against a running server: what it proves, and what it refuses to prove."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.integration.served import Served


def load(served: Served, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "qim", "load", "--data", str(served.data), "--json", *options]
    ended = subprocess.run(command, capture_output=True, timeout=300, env=os.environ, check=False)
    assert ended.stdout, ended.stderr.decode()
    return ended.returncode, json.loads(ended.stdout)


def test_groups_cut_streams_and_slow_readers(served: Served) -> None:
    options = "--rate 60 --seconds 3 --warmup 1 --users 20 --groups 2 --group-size 10"
    options += " --group-share 0.5 --reconnects 2 --storms 1 --slow 1 --slow-seconds 1"
    status, report = load(served, *options.split())
    assert report["holds"], report["verdict"]
    assert report["verdict"]["acked"] == report["verdict"]["sent"] > 200
    # Whoever still dials when he is to be cut again has nothing to lose.
    assert report["counts"]["connections_lost"] >= 20, "as many as there are users"
    assert report["counts"]["storms"] == 1
    assert report["latency_ms"]["end_to_end"]["count"] > 500
    # A generator beside a busy test run may be late; nothing else may make the run incomplete.
    assert status == 0 or all("generator" in why for why in report["incomplete_because"]), report


def test_refused_sends_make_a_run_incomplete(served: Served) -> None:
    options = [
        "--rate",
        "20",
        "--seconds",
        "1",
        "--warmup",
        "0",
        "--users",
        "2",
        "--body",
        "200000",
    ]
    status, report = load(served, *options)
    assert status == 4
    assert report["holds"] and not report["complete"]
    assert report["verdict"]["refused"] == report["verdict"]["sent"] > 0
    assert report["incomplete_because"][0] == "nothing was acked"
