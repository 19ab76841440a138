"""Every archive of the conformance suite as one parametrised fixture."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.adapters.cassandra import CassandraSettings
from qim.adapters.cassandra.schema import create
from qim.adapters.cassandra.session import open_session
from qim.adapters.cassandra.settings import hosts_of
from tests.adapters.archive.archives import (
    PATIENT,
    AskedArchive,
    Asker,
    CassandraAsked,
    SimulatedArchive,
    SqliteAsked,
)
from tests.integration.testbed.cassandra import contact_point

ON_CASSANDRA = (pytest.mark.servers, pytest.mark.xdist_group("cassandra"))
ARCHIVES = ("simulator", "sqlite", pytest.param("cassandra", marks=ON_CASSANDRA))


@pytest.fixture(scope="session")
def cassandra_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One node for all tests of a run."""
    with contact_point(tmp_path_factory.mktemp("cassandra")) as address:
        yield address


@pytest.fixture(scope="session")
def cassandra_settings(cassandra_address: str) -> Iterator[CassandraSettings]:
    """A keyspace of this run with the archive's schema, on the one node; gone at the end."""
    settings = CassandraSettings(
        hosts=hosts_of(cassandra_address),
        keyspace=f"qim_test_{os.getpid()}",
        data_centre=os.environ.get("QIM_TEST_CASSANDRA_DC", "datacenter1"),
        replication=1,
        unsafe_dev=True,
        **PATIENT,
    )
    cluster, session = open_session(settings)
    try:
        create(session, settings)
        yield settings
        session.execute(f"DROP KEYSPACE {settings.keyspace}", timeout=60.0)
    finally:
        cluster.shutdown()


@pytest.fixture(params=ARCHIVES)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AskedArchive]:
    """An empty archive."""
    chosen: AskedArchive
    if request.param == "simulator":
        chosen = SimulatedArchive()
    elif request.param == "sqlite":
        chosen = SqliteAsked(tmp_path / "archive.sqlite")
    else:
        chosen = CassandraAsked(request.getfixturevalue("cassandra_settings"))
    yield chosen
    chosen.close()


@pytest.fixture
def asker(archive: AskedArchive) -> Asker:
    return Asker(archive)


@pytest.fixture
def simulated() -> SimulatedArchive:
    """The simulator's archive alone."""
    return SimulatedArchive()
