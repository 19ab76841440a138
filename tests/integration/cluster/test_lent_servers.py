"""QIM_TEST_KAFKA, _ETCD and _CASSANDRA lend a cluster of the tests somebody's servers: used, given back as they were."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.cluster import ONE_EACH, Cluster
from tests.integration.cluster.operating import audited, heard, say
from tests.integration.testbed.cassandra import CassandraNode
from tests.integration.testbed.etcd import EtcdServer
from tests.integration.testbed.kafka import KafkaBroker
from tests.integration.testbed.lent import keys_under, keyspaces, topics_under
from tests.integration.testbed.server_process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("deployment")]


class Somebody:
    """Has servers, with something of their own in each."""

    def __init__(self, directory: Path) -> None:
        self.kafka = KafkaBroker(directory / "kafka")
        self.etcd = EtcdServer(directory / "etcd")
        ports = {"port": free_port(), "storage_port": free_port()}
        self.cassandra = CassandraNode(directory / "cassandra", **ports)
        self.servers = (self.kafka, self.etcd, self.cassandra)

    def holdings(self) -> tuple[list[str], int, list[str]]:
        """Topics, how many keys, keyspaces."""
        topics = asyncio.run(topics_under(self.kafka.address, ""))
        keys = keys_under(self.etcd.address, "/").get("count", "0")
        return topics, int(keys), keyspaces(self.cassandra.address)


@pytest.fixture
def somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Somebody]:
    """They run, and the environment names them."""
    made = Somebody(tmp_path)
    try:
        for server in made.servers:
            (server if not isinstance(server, CassandraNode) else server.process).start()
        monkeypatch.setenv("QIM_TEST_KAFKA", made.kafka.address)
        monkeypatch.setenv("QIM_TEST_ETCD", made.etcd.address)
        monkeypatch.setenv("QIM_TEST_CASSANDRA", made.cassandra.address)
        yield made
    finally:
        for server in made.servers:
            server.process.kill()


def test_a_deployment_on_lent_servers_leaves_them_as_they_were(
    somebody: Somebody, tmp_path: Path
) -> None:
    before = somebody.holdings()
    counts = {**ONE_EACH, "archiver": 1}
    with Cluster(tmp_path / "cluster", counts=counts, tiered=True) as cluster:
        assert (cluster.kafka, cluster.etcd, cluster.cassandra) == ([], None, None)
        last = asyncio.run(say(cluster, b"one", b"two"))
        assert asyncio.run(heard(cluster, last, b"d1")) == [b"one", b"two"]
        assert audited(cluster)["verdict"] == "CLEAN"
        topics, keys, spaces = somebody.holdings()
        assert len(topics) == len(before[0]) + 3 and keys > before[1]
        assert len(spaces) == len(before[2]) + 1
    assert somebody.holdings() == before
    assert all(server.process.alive for server in somebody.servers), "it was theirs to stop"
