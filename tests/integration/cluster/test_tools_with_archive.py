"""The operator's tools where history moves into an archive: how far an outbox reached is the archive's to say, too."""

import asyncio
from pathlib import Path

import pytest

from qim.core.ports.log import Topic
from tests.integration.cluster.cluster import ONE_EACH, Cluster, make_topics
from tests.integration.cluster.operating import audited, delete_topic, examined, heard, ordered, say

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


def test_an_outbox_is_looked_at_and_repaired_beside_an_archive(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", counts={**ONE_EACH, "archiver": 1}, tiered=True) as cluster:
        last = asyncio.run(say(cluster, b"one", b"two"))
        assert asyncio.run(heard(cluster, last, b"d1")) == [b"one", b"two"]
        assert audited(cluster)["verdict"] == "CLEAN"
        _, found = examined(cluster, "--deep")
        whole = {one["subject"] for one in found if one["state"] == "ok"}
        assert {"outbox 0 against its facts", "mailbox shard 0 against its log"} <= whole
        status, report = ordered(cluster, "repair", "outbox")
        assert (status, report.get("refused"), len(report["found"])) == (0, None, 4), report
        stopped = cluster.roles("writer", "fanout", "archiver")
        for process in stopped:
            assert process.stop() == 0
        asyncio.run(delete_topic(cluster, Topic.OUTBOX))
        asyncio.run(make_topics(cluster.kafka_settings()))
        status, report = ordered(cluster, "repair", "outbox", "--apply")
        assert (status, report.get("refused")) == (0, None), report
        assert any(one["padding"] for one in report["found"])
        cluster.start_processes(stopped)
        last = asyncio.run(say(cluster, b"and on"))
        assert asyncio.run(heard(cluster, last, b"d2")) == [b"one", b"two", b"and on"]
        assert audited(cluster)["verdict"] == "CLEAN"
