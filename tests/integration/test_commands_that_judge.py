"""`qim smoke` and `qim audit` against a real `qim up`, running, stopped and killed."""

import json
from pathlib import Path

import pytest

from tests.integration.command_line import audited, ended, qim
from tests.integration.served import Served
from tests.integration.up_process import UpProcess, run_qim

pytestmark = pytest.mark.xdist_group("commands")


def test_smoke_holds(data: str) -> None:
    report = qim("smoke", "--data", data, "--json")
    assert report["ok"] is True
    assert report["failed"] == report["skipped"] == 0
    assert report["passed"] == len(report["checks"]) >= 15


def test_smoke_sees_a_server_that_fails(data: str) -> None:
    broken = ended("smoke", "--data", data, "--metrics", "127.0.0.1:1", "--only", "health-is-green")
    assert broken.returncode == 1
    assert "FAIL  health-is-green" in broken.stdout
    gone = ended("smoke", "--data", data, "--server", "127.0.0.1:1")
    assert gone.returncode == 3


def test_smoke_with_one_token(served: Served, data: str, user: int) -> None:
    token = run_qim("token", "--data", data, "--user", str(user)).strip()
    report = qim("smoke", "--server", served.tcp, "--token", token, "--json")
    assert report["ok"] is True
    assert report["skipped"] > 0
    assert report["passed"] >= 10


def test_audit(data: str, user: int) -> None:
    qim("send", "--data", data, "--user", user, "--to", user + 1, "judged")
    assert audited(data)["verdict"] == "CLEAN"
    report = qim("audit", "--data", data, "--json")
    assert report["verdict"] == "CLEAN"
    assert report["orphans"] == []
    assert report["covered"]
    assert "CLEAN" in run_qim("audit", "--data", data)
    assert ended("audit", "--data", Path(data) / "none").returncode == 2


def test_audit_of_a_stopped_server(tmp_path: Path) -> None:
    process = UpProcess(tmp_path / "data")
    process.start()
    try:
        qim("send", "--data", process.data, "--user", 1, "--to", 2, "then it stops")
        process.kill()
        killed = ended("audit", "--data", process.data, "--json")
        verdict = json.loads(killed.stdout)["verdict"]
        assert (verdict, killed.returncode) in (("CLEAN", 0), ("INCOMPLETE", 4))
        process.start()
        assert audited(process.data)["verdict"] == "CLEAN"
        assert process.stop() == 0
        stopped = qim("audit", "--data", process.data, "--json")
        assert stopped["verdict"] == "CLEAN"
        assert stopped["records"] == 1
        assert ended("pull", "--data", process.data, "--user", 2).returncode == 3
        other = ended("up", "--data", process.data, "--shards", 8, "--metrics", "127.0.0.1:0")
        assert other.returncode == 2, "the data was made with other numbers"
        assert "shard_count" in other.stderr
        assert "Traceback" not in other.stderr
    finally:
        process.close()
