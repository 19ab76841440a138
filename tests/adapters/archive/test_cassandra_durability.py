"""What a node confirms is on its disk, or a start says so: refused where one crash would lose rows, advice elsewhere."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest, OperationTimedOut, Unauthorized
from cassandra.cluster import NoHostAvailable

from qim.adapters.cassandra import CassandraArchive, CassandraSettings
from qim.adapters.cassandra.durability import NODES_NAMED_MAX, NodeSync, advice, find, judge, refuse
from qim.adapters.cassandra.schema import create
from qim.adapters.cassandra.session import connection_class, open_session
from qim.adapters.start_refused import StartRefused
from tests.adapters.archive.archives import AGAIN_SECONDS, PATIENT
from tests.integration.testbed.cassandra import CassandraNode, cassandra_ring
from tests.integration.testbed.server_process import free_port

SETTINGS = CassandraSettings(hosts=(("10.0.0.1", 9042),), keyspace="qim", data_centre="dc1")

LATE_SECONDS = 1.0


class Node:
    """A host as the driver knows it, and what it answers."""

    def __init__(self, name: str, answer: object, *, data_centre: str = "dc1") -> None:
        self.endpoint = name
        self.datacenter = data_centre
        self.answer = answer

    def result(self) -> "Node":
        """As a future of the driver."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self

    def one(self) -> object:
        """The row."""
        return self.answer


class Session:
    """Of a driver that answers for each node apart."""

    def __init__(self, *nodes: Node) -> None:
        self.cluster = self.metadata = self
        self.nodes = nodes

    def all_hosts(self) -> list[Node]:
        """All that is known of the cluster."""
        return list(self.nodes)

    def execute_async(self, _: Any, *, execution_profile: object, host: Node) -> Node:
        """Goes to this node alone."""
        if isinstance(host.answer, NoHostAvailable):
            raise host.answer
        return host


@pytest.mark.parametrize(
    ("answer", "sync"),
    [
        (("batch",), "batch"),
        (("GROUP",), "group"),
        (("periodic",), "periodic"),
        (None, None),
        ((None,), None),
        (InvalidRequest("keyspace system_views does not exist"), None),
        (Unauthorized("no SELECT on system_views.settings"), None),
        (OperationTimedOut(), None),
        (NoHostAvailable("down", {}), None),
    ],
)
def test_what_a_node_tells(answer: object, sync: str | None) -> None:
    elsewhere = Node("10.9.9.9:9042", ("periodic",), data_centre="dc2")
    session = Session(Node("b", answer), Node("a", ("batch",)), elsewhere)
    assert find(session, "dc1") == (NodeSync(node="a", sync="batch"), NodeSync(node="b", sync=sync))


def test_one_replica_that_forgets_is_refused() -> None:
    session = Session(Node("a:9042", ("batch",)), Node("b:9042", ("periodic",)))
    with pytest.raises(StartRefused) as caught:
        judge(session, SETTINGS, 1)
    refusal = caught.value
    assert refusal.code == "archive_commitlog_periodic"
    assert (refusal.what, "periodic with 1 replica of" in refusal.got) == (
        "commitlog_sync of b:9042",
        True,
    )
    assert "batch or group" in refusal.expected
    assert "commitlog_sync: batch" in refusal.command


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_more_replicas_that_forget_are_advice(replicas: int) -> None:
    ((found, do),) = judge(
        Session(Node("a", ("periodic",)), Node("b", ("group",))), SETTINGS, replicas
    )
    assert found.startswith("commitlog_sync of a is periodic: ")
    assert "commitlog_sync: batch" in do


@pytest.mark.parametrize("replicas", [1, 3])
def test_silence_proves_nothing_and_refuses_nothing(replicas: int) -> None:
    """As on ScyllaDB, which has no such table."""
    ((found, do),) = judge(Session(Node("a", InvalidRequest("no table"))), SETTINGS, replicas)
    assert found.startswith("commitlog_sync of a is not provable")
    assert "scylla.yaml" in do


@pytest.mark.parametrize("replicas", [1, 3])
def test_nodes_that_wait_for_their_disks_need_no_advice(replicas: int) -> None:
    session = Session(Node("a", ("batch",)), Node("b", ("group",)))
    assert judge(session, SETTINGS, replicas) == ()


def test_many_nodes_are_counted_instead_of_named() -> None:
    found = [NodeSync(node=f"n{number}", sync="periodic") for number in range(NODES_NAMED_MAX + 3)]
    ((told, _),) = advice(found, 3)
    assert f"n{NODES_NAMED_MAX - 1} and 3 more is periodic" in told
    refuse(found, 3, SETTINGS)


# ------------------------------------------------------------ on real nodes


def started(settings: CassandraSettings) -> tuple[tuple[str, str], ...]:
    """An archive's advice. Raises StartRefused."""

    async def main() -> tuple[tuple[str, str], ...]:
        archive = CassandraArchive(settings, asyncio.get_running_loop())
        try:
            await archive.start()
        finally:
            await archive.close()
        return archive.advice

    return asyncio.run(main())


def started_at_last(settings: CassandraSettings) -> tuple[tuple[str, str], ...]:
    """As a supervisor does it: a read may time out while the nodes still wait for one that is gone."""
    deadline = time.monotonic() + AGAIN_SECONDS
    while True:
        try:
            return started(settings)
        except StartRefused as refused:
            if refused.code != "archive_unreachable" or time.monotonic() > deadline:
                raise


def settled(node: CassandraNode, **more: Any) -> CassandraSettings:
    """With keyspace and tables there."""
    settings = CassandraSettings(
        hosts=((node.host, node.port),),
        keyspace="qim",
        data_centre="datacenter1",
        **PATIENT,
        **more,
    )
    cluster, session = open_session(settings)
    try:
        create(session, settings)
    finally:
        cluster.shutdown()
    return settings


def late_to(host: str) -> Any:
    """The driver's connection, to this node alone long after those to others."""

    class Late(connection_class()):  # type: ignore[misc]
        @classmethod
        def factory(cls, endpoint: Any, *rest: Any, **named: Any) -> Any:
            if endpoint.address == host:
                time.sleep(LATE_SECONDS)
            return super().factory(endpoint, *rest, **named)

    return Late


@pytest.mark.parametrize("sync", ["periodic", "batch"])
@pytest.mark.servers
@pytest.mark.xdist_group("cassandra")
def test_a_start_on_one_real_node(tmp_path: Path, sync: str) -> None:
    """Refused as Cassandra comes out of its box; that a developer waived the replicas does not waive the disk."""
    node = CassandraNode(tmp_path, port=free_port(), storage_port=free_port(), sync=sync)
    try:
        node.process.start()
        settings = settled(node, replication=1, unsafe_dev=True)
        if sync == "batch":
            assert started(settings) == ()
            return
        with pytest.raises(StartRefused) as caught:
            started(settings)
        assert caught.value.code == "archive_commitlog_periodic"
        assert node.address in caught.value.what
    finally:
        node.process.kill()


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.xdist_group("cassandra")
def test_a_start_on_three_real_nodes_asks_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second alone is periodic, the third is down at last: each is told by name, and neither is a reason to refuse.

    The second is the last to be connected: who isn't yet must not be taken for one that doesn't tell.
    """
    with cassandra_ring(tmp_path, 3, syncs=("batch", "periodic", "batch")) as ring:
        settings = settled(ring[0])
        late = late_to(ring[1].host)
        with monkeypatch.context() as patched:
            patched.setattr("qim.adapters.cassandra.session.connection_class", lambda: late)
            ((found, _),) = started(settings)
        assert found.startswith(f"commitlog_sync of {ring[1].address} is periodic")
        ring[2].process.kill()
        told = [found for found, _ in started_at_last(settings)]
        assert [ring[1].address in told[0], ring[2].address in told[1]] == [True, True]
        assert "not provable" in told[1]
