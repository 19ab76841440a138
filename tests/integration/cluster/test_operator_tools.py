"""The operator's tools on real servers: a doctor that finds what is broken, orders that leave a serving cluster alone."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster.cluster import Cluster
from tests.integration.raw_client import RawClient

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


def told(cluster: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a command that is told of the cluster by its environment."""
    command = [sys.executable, "-m", "qim", *words, "--cluster", "--json"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QIM_")}
    ended = subprocess.run(
        command,
        capture_output=True,
        timeout=300,
        env=environment | cluster.settings(),
        check=False,
    )
    assert ended.stdout, ended.stderr.decode()
    return ended.returncode, json.loads(ended.stdout)


def examined(cluster: Cluster, *more: str) -> tuple[int, list[dict[str, str]]]:
    """The doctor's findings."""
    words: list[str] = []
    for process in cluster.processes.values():
        words += ["--process", f"{process.role}={process.ready['metrics']}"]
    status, report = told(cluster, "doctor", *words, *more)
    return status, report["findings"]


def test_the_doctor_and_the_orders_on_a_cluster_that_serves_and_one_that_lost_its_writer(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path / "cluster") as cluster:

        async def talk() -> None:
            async with (
                await RawClient.log_in(cluster.target, 31) as sender,
                await RawClient.log_in(cluster.target, 32) as peer,
            ):
                ack = await sender.send(b"hello", peer_user_id=32)
                await peer.pull_until(ack.message_id)

        asyncio.run(talk())
        status, found = examined(cluster, "--deep")
        failed = [one for one in found if one["state"] == "fail"]
        # The configuration says where a gateway listens as a rule; this one has a free port.
        assert {one["subject"].split(" at ")[0] for one in failed} <= {
            "gateway",
            "configuration of gateway",
        }, failed
        subjects = {one["subject"] for one in found if one["state"] == "ok"}
        assert {"shared parameters", "leases of writer", "leases of mailbox", "lag"} <= subjects
        assert {"outbox 0 against its facts", "mailbox shard 0 against its log"} <= subjects
        for words in (("deadletter", "list"), ("repair", "dispatch"), ("repair", "outbox")):
            status, report = told(cluster, *words)
            assert (status, report.get("refused")) == (0, None), report
        status, report = told(cluster, "shard", "bump", "--shard", "0", "--apply")
        assert status == 1
        assert "is held by mailbox" in report["refused"]
        (writer,) = cluster.roles("writer")
        writer.kill()
        status, found = examined(cluster)
        assert status == 1
        silent = [one for one in found if one["subject"].startswith("writer at ")]
        assert [one["page"] for one in silent] == ["shards-not-serving"]
        assert "--process writer=HOST:PORT" in silent[0]["do"]
