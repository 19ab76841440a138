"""`qim smoke` against a cluster: all of its checks, the operator's ones of every process, none skipped."""

import json
import os
import subprocess
import sys

import pytest

from tests.integration.cluster.cluster import SECRET, Cluster

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


def test_every_check_holds_on_a_cluster(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "qim", "smoke", "--json", "--server", cluster.addresses[0]]
    for process in cluster.processes.values():
        command += ["--metrics", process.ready["metrics"]]
    environment = os.environ | {"QIM_AUTH_SECRET": SECRET}
    ended = subprocess.run(command, capture_output=True, timeout=300, env=environment, check=False)
    report = json.loads(ended.stdout)
    broken = [check for check in report["checks"] if check["status"] != "passed"]
    assert ended.returncode == 0 and not broken, broken
    assert report["passed"] >= 40
