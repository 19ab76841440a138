"""The archive over TLS with a name and password, on a real node; and what a start says where one of them is wrong."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qim.adapters.cassandra import CassandraArchive, CassandraSettings
from qim.adapters.cassandra.schema import create
from qim.adapters.cassandra.session import open_session
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.dev_chain import Authority
from qim.adapters.tls.outgoing import OutgoingTls
from qim.adapters.tls.pair import SERVER_AUTH
from tests.adapters.archive.archives import PATIENT, Asker, KeptCassandra
from tests.adapters.archive.records import CHAT, message
from tests.integration.testbed.cassandra import CassandraNode
from tests.integration.testbed.server_process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cassandra")]
NAME, PASSWORD = "qim_archive", "right"
"""Of a role that has no right but to its keyspace."""


class Trusted:
    """A node that lets nobody in without TLS, name and password."""

    def __init__(self, folder: Path) -> None:
        authority = Authority("archive", 1)
        until = datetime.now(UTC) + timedelta(hours=1)
        issued = authority.issue("node", SERVER_AUTH, names=("127.0.0.1",), valid_until=until)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(authority.certificate)
        self.node = CassandraNode(
            folder / "node",
            port=free_port(),
            storage_port=free_port(),
            secure=issued.key + issued.certificate,
        )
        self.settings = CassandraSettings(
            hosts=((self.node.host, self.node.port),),
            keyspace="qim",
            data_centre="datacenter1",
            replication=1,
            unsafe_dev=True,
            user=NAME,
            password=PASSWORD,
            tls_ca=str(self.ca),
            **PATIENT,
        )

    def superuser(self) -> CassandraSettings:
        """The role that every cluster begins with."""
        return replace(self.settings, user="cassandra", password="cassandra")

    def prepare(self) -> None:
        """As an operator does it: schema and a role that may use it, by the superuser."""
        cluster, session = open_session(self.superuser())
        try:
            create(session, self.settings)
            session.execute(f"CREATE ROLE {NAME} WITH LOGIN = true AND PASSWORD = '{PASSWORD}'")
            for right in ("SELECT ON KEYSPACE qim", "MODIFY ON KEYSPACE qim"):
                session.execute(f"GRANT {right} TO {NAME}")
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusted]:
    chosen = Trusted(tmp_path_factory.mktemp("trusted"))
    try:
        chosen.node.process.start()
        chosen.prepare()
        yield chosen
    finally:
        chosen.node.process.kill()


def test_everything_goes_over_tls_with_a_name_and_password(trusted: Trusted) -> None:
    asked = KeptCassandra(trusted.settings)
    try:
        asker = Asker(asked)
        assert asker.written(*[message(n) for n in range(1, 5)], through=5) == ()
        assert asker.seqs(CHAT) == [1, 2, 3, 4]
    finally:
        asked.close()


def test_a_role_needs_one_more_right_to_prove_what_a_node_confirms(trusted: Trusted) -> None:
    """Without it a start serves, and says so."""
    ((found, do),) = advice_of(trusted)
    assert "not provable" in found
    right = "GRANT SELECT ON KEYSPACE system_views TO"
    assert right in do
    cluster, session = open_session(trusted.superuser())
    session.execute(f"{right} {NAME}")
    cluster.shutdown()
    assert advice_of(trusted) == ()


def advice_of(trusted: Trusted) -> tuple[tuple[str, str], ...]:
    """Of a start."""
    asked = KeptCassandra(trusted.settings)
    asked.close()
    found: tuple[tuple[str, str], ...] = asked.archive.advice
    return found


def test_certificates_that_are_read_again_serve_the_driver_too(trusted: Trusted) -> None:
    """The driver wraps its sockets by the one context it was given."""

    async def main() -> None:
        tls = OutgoingTls("archive", trusted.settings.tls_files())
        archive = CassandraArchive(
            replace(trusted.settings, tls_ca=""), asyncio.get_running_loop(), tls=tls.context
        )
        await archive.start()
        assert tls.reload()
        await archive.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"password": "wrong"}, "Bad credentials"),
        ({"user": "", "password": ""}, "requires authentication"),
        ({"tls_ca": "another"}, "CERTIFICATE_VERIFY_FAILED"),
        # Nothing is told to who speaks plainly: it is what the time is for.
        ({"tls_ca": "", "connect_timeout_ms": 3_000}, "archive_unreachable"),
    ],
)
def test_what_is_not_trusted_is_refused(
    trusted: Trusted, tmp_path: Path, wrong: dict[str, Any], named: str
) -> None:
    if wrong.get("tls_ca"):
        other = tmp_path / "other.pem"
        other.write_bytes(Authority("another", 1).certificate)
        wrong = {**wrong, "tls_ca": str(other)}
    with pytest.raises(StartRefused) as refused:
        open_session(replace(trusted.settings, **wrong))
    assert refused.value.code == "archive_unreachable"
    assert named in str(refused.value)
