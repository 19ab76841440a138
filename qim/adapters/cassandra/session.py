"""Connecting to the cluster: one driver session, and why it could not be had."""

import ssl
from typing import Any, Final

from cassandra import ConsistencyLevel, DependencyException
from cassandra import DriverException as DriverException
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.io.asyncioreactor import AsyncioConnection
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    RetryPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from qim.adapters.cassandra.settings import CONSISTENCIES, CassandraSettings, require_strong
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.outgoing import read_outgoing

PROTOCOL_VERSION: Final = 4
"""What Cassandra and ScyllaDB both speak; the driver would begin with versions that neither does."""
READING: Final = "reading"
"""The profile of reads; the default one is for writes."""


def consistency(word: str) -> int:
    """The driver's number of a level."""
    level: int = getattr(ConsistencyLevel, word)
    return level


def connection_class() -> Any:
    """libev where the driver's wheel has it (half the CPU a row: bench/archive_cassandra.py), else asyncio's.

    Named here, for the driver's own choice falls through to a module that Python 3.12 no longer has.
    """
    try:
        from cassandra.io.libevreactor import LibevConnection
    except (ImportError, DependencyException):
        return AsyncioConnection
    return LibevConnection


def open_session(settings: CassandraSettings, tls: ssl.SSLContext | None = None) -> tuple[Any, Any]:
    """(cluster, session), connected; blocks, so never on an event loop. ``tls``: instead of one made here. Raises StartRefused.

    The driver asks another node for a read that one didn't answer, and retries no write: what became of it is told to the
    caller, who knows that its rows may be written again.
    """
    require_strong(settings)
    policy = TokenAwarePolicy(DCAwareRoundRobinPolicy(local_dc=settings.data_centre))
    write, read = settings.consistency, CONSISTENCIES[settings.consistency]
    profiles = {
        name: ExecutionProfile(
            load_balancing_policy=policy,
            retry_policy=retries,
            consistency_level=consistency(word),
            serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
            request_timeout=settings.request_timeout_ms / 1_000,
            row_factory=tuple_factory,
        )
        for name, word, retries in (
            (EXEC_PROFILE_DEFAULT, write, FallthroughRetryPolicy()),
            (READING, read, RetryPolicy()),
        )
    }
    cluster = Cluster(
        [host for host, _ in settings.hosts],
        port=settings.hosts[0][1],
        connection_class=connection_class(),
        protocol_version=PROTOCOL_VERSION,
        execution_profiles=profiles,
        auth_provider=(
            PlainTextAuthProvider(settings.user, settings.password) if settings.user else None
        ),
        ssl_context=tls or _tls(settings),
        connect_timeout=settings.connect_timeout_ms / 1_000,
        control_connection_timeout=settings.connect_timeout_ms / 1_000,
        schema_metadata_enabled=False,
        token_metadata_enabled=True,
    )
    try:
        # All nodes of the data centre, not the first that answers: who is asked later and isn't connected yet seems down.
        session = cluster.connect(wait_for_all_pools=True)
    except NoHostAvailable as error:
        cluster.shutdown()
        raise unreachable(settings, error) from None
    except Exception:
        cluster.shutdown()
        raise
    session.default_fetch_size = None  # every read is bounded by its LIMIT or is wanted whole
    return cluster, session


def _tls(settings: CassandraSettings) -> ssl.SSLContext | None:
    if not settings.tls_ca:
        return None
    return read_outgoing(settings.tls_files())[0].context


def unreachable(settings: CassandraSettings, error: Exception) -> StartRefused:
    """Nobody served, or not in time; a driver's own exceptions at start all come to this."""
    where = ",".join(f"{host}:{port}" for host, port in settings.hosts)
    # A list of hosts instead of causes: they answered, and none is in this data centre.
    told = getattr(error, "errors", None)
    causes = told if isinstance(told, dict) else {}
    why = "; ".join(f"{host}: {cause}" for host, cause in causes.items())
    return StartRefused(
        "archive_unreachable",
        f"the archive at {where}",
        got=f"not reachable in data centre {settings.data_centre} ({why or error})",
        expected="a Cassandra or ScyllaDB node that serves CQL in this data centre",
        command=f"cqlsh {settings.hosts[0][0]} {settings.hosts[0][1]} -e "
        "'SELECT data_center FROM system.local' and set QIM_SCYLLA_HOSTS, QIM_SCYLLA_DC to what answers",
    )
