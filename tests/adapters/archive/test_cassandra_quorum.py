"""Three nodes, three replicas, as in production: one may be gone, two may not, and nothing confirmed is lost."""

import asyncio
from pathlib import Path

import pytest

from qim.adapters.cassandra import CassandraArchive, CassandraSettings
from qim.adapters.cassandra.schema import create
from qim.adapters.cassandra.session import open_session
from qim.core.ports.completion import Failed, Unknown
from tests.adapters.archive.archives import PATIENT, Asker, KeptCassandra, PatientAsker
from tests.adapters.archive.records import CHAT, message
from tests.integration.testbed.cassandra import CassandraNode, cassandra_ring

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("cassandra")]


def test_one_of_three_may_be_gone(tmp_path: Path) -> None:
    with cassandra_ring(tmp_path, 3) as ring:
        found_by_one_contact_point(ring[0])
        survives(ring)


def found_by_one_contact_point(first: CassandraNode) -> None:
    """The archive starts as in production, without any allowance."""
    settings = CassandraSettings(
        hosts=((first.host, first.port),), keyspace="qim", data_centre="datacenter1", **PATIENT
    )
    cluster, session = open_session(settings)
    create(session, settings)
    cluster.shutdown()

    async def main() -> None:
        archive = CassandraArchive(settings, asyncio.get_running_loop())
        await archive.start()
        await archive.close()

    asyncio.run(main())


def survives(ring: list[CassandraNode]) -> None:
    settings = CassandraSettings(
        hosts=tuple([(node.host, node.port) for node in ring]),
        keyspace="qim",
        data_centre="datacenter1",
        **PATIENT,
    )
    asked = KeptCassandra(settings)
    asker = PatientAsker(asked)
    try:
        confirm(asker, 1, 50)
        ring[2].process.kill()
        assert asker.seqs(CHAT) == list(range(1, 50)), "another node is asked"
        confirm(asker, 50, 100)
        assert asker.seqs(CHAT) == list(range(1, 100))
        ring[1].process.kill()
        reply = Asker(asked).write(message(100), through=101)
        assert isinstance(reply, Failed | Unknown), reply
        ring[1].process.start()
        confirm(asker, 100, 120)
        assert asker.seqs(CHAT) == list(range(1, 120))
        assert asker.conversations().position == 120
    finally:
        asked.close()


def confirm(asker: Asker, first: int, end: int) -> None:
    """Rows of these numbers, the end excluded and the position; that some were written twice reuses no place."""
    assert asker.written(*[message(n) for n in range(first, end)], through=end) == ()
