"""A real Apache Cassandra 5 on loopback: jars by Maven, a configuration of its own, small heap, no JMX port.

QIM_TEST_CASSANDRA=host:port names a cluster somebody already has; then nothing is started. Several nodes of one cluster
stand on 127.0.0.1, 127.0.0.2, …: native and storage port are the same number on each.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from typing import Any, Final

from cassandra import ConsistencyLevel, DriverException
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import SimpleStatement

from qim.adapters.cassandra.session import PROTOCOL_VERSION, connection_class
from tests.integration.testbed.maven_jars import jars_of
from tests.integration.testbed.server_process import (
    LOOK_SECONDS,
    ServerFailed,
    ServerProcess,
    accepts,
    free_port,
)

HEAP: Final = "512m"
START_SECONDS_MAX: Final = 240.0
"""A cold JVM on a busy machine of two cores."""
EXPORTS: Final = (
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
)
OPENS: Final = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)
QUICK: Final = (
    "-Dcassandra.ring_delay_ms=1000",
    "-Dcassandra.skip_wait_for_gossip_to_settle=0",
    "-Dcassandra.superuser_setup_delay_ms=0",
    "-Dcassandra.available_processors=2",
)
"""One cluster, known to be alone: nothing to wait for."""
CONFIGURATION: Final = """\
cluster_name: qim-test
num_tokens: 1
initial_token: {token}
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "{seed}:{storage_port}"
listen_address: {host}
rpc_address: {host}
storage_port: {storage_port}
ssl_storage_port: {ssl_port}
native_transport_port: {port}
start_native_transport: true
data_file_directories: [{directory}/data]
commitlog_directory: {directory}/commitlog
saved_caches_directory: {directory}/saved_caches
hints_directory: {directory}/hints
cdc_raw_directory: {directory}/cdc_raw
commitlog_sync: {sync}
commitlog_segment_size: 8MiB
disk_failure_policy: die
commit_failure_policy: die
auto_snapshot: false
memtable_heap_space: 64MiB
memtable_offheap_space: 64MiB
file_cache_size: 32MiB
networking_cache_size: 16MiB
key_cache_size: 4MiB
counter_cache_size: 1MiB
concurrent_reads: 8
concurrent_writes: 8
auto_bootstrap: false
write_request_timeout: {patience}s
read_request_timeout: {patience}s
range_request_timeout: {patience}s
cas_contention_timeout: {patience}s
truncate_request_timeout: 120s
"""
ALONE_SECONDS: Final = 60
AMONG_SECONDS: Final = 10
"""What a node waits for a disk or another node before it says that time is up: a busy machine is no failure of it. Among others
no longer, for half of that is the first guess of when to ask another replica instead of one that is gone."""
SYNCS: Final = {"batch": "batch", "periodic": "periodic\ncommitlog_sync_period: 10000ms"}
"""What a node does before it confirms: batch waits for its disk, periodic (Cassandra's default) for nothing."""
SECURE: Final = """\
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
role_manager: CassandraRoleManager
permissions_validity: 0ms
roles_validity: 0ms
client_encryption_options:
  enabled: true
  optional: false
  require_client_auth: false
  ssl_context_factory:
    class_name: org.apache.cassandra.security.PEMBasedSslContextFactory
    parameters:
      private_key: |
{pem}
"""
ROLE_MADE: Final = b"Created default superuser role"
"""cassandra, cassandra; nobody can log in before."""
LOGGING: Final = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"""


KNOWN: Final = "SELECT native_address, native_port, schema_version FROM system.peers_v2"
WHOLE: Final = (
    "CREATE KEYSPACE whole WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': {count}}}",
    "CREATE TABLE whole.ring (id int PRIMARY KEY)",
)
"""What every node has to have a part in."""
READ_WHOLE: Final = "SELECT id FROM whole.ring WHERE id = 1"
OWN_SCHEMA: Final = "SELECT schema_version FROM system.local"


class CassandraNode:
    """One node; ``of`` nodes share the ring evenly. ``start``, ``stop``, ``kill``, ``pause`` and ``resume`` by pid."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int,
        storage_port: int,
        number: int = 0,
        of: int = 1,
        sync: str = "batch",
        secure: bytes | None = None,
    ) -> None:
        """``secure``: PEM of key and chain; clients then need TLS, and the name and password ``cassandra``."""
        self.host = f"127.0.0.{number + 1}"
        self.port = port
        self.address = f"{self.host}:{port}"
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        token = -(1 << 63) + (1 << 64) * number // of
        (directory / "cassandra.yaml").write_text(
            CONFIGURATION.format(
                token=token + 1,
                seed="127.0.0.1",
                host=self.host,
                port=port,
                storage_port=storage_port,
                ssl_port=free_port(),
                directory=directory,
                sync=SYNCS[sync],
                patience=ALONE_SECONDS if of == 1 else AMONG_SECONDS,
            )
            + ("" if secure is None else SECURE.format(pem=indent(secure.decode(), " " * 8)))
        )
        (directory / "logback.xml").write_text(LOGGING)
        self.process = ServerProcess(
            f"cassandra-{number}",
            self._command(jars_of("cassandra")),
            directory,
            ready=lambda: serves_cql(self.host, port) if secure is None else self._lets_in(),
            seconds_max=START_SECONDS_MAX,
        )

    def _lets_in(self) -> bool:
        return accepts(self.port) and ROLE_MADE in self.process.log_path.read_bytes()

    def _command(self, jars: Path) -> list[str]:
        directory = self._directory
        (agent,) = jars.glob("jamm-*.jar")
        command = ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}", "-Xss512k", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"]
        command += ["-Djdk.attach.allowAttachSelf=true", "-Djava.net.preferIPv4Stack=true"]
        command += [part for name in EXPORTS for part in ("--add-exports", f"{name}=ALL-UNNAMED")]
        command += [part for name in OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")]
        command += [f"-javaagent:{agent}", f"-Djna.tmpdir={directory}", *QUICK]
        command += [f"-Dcassandra.config=file://{directory}/cassandra.yaml"]
        command += [f"-Dcassandra.storagedir={directory}", "-Dcassandra-foreground=yes"]
        command += [f"-Dlogback.configurationFile={directory}/logback.xml"]
        return [*command, "-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"]


@contextmanager
def cassandra_ring(
    directory: Path, count: int, *, syncs: Sequence[str] = ()
) -> Iterator[list[CassandraNode]]:
    """``count`` nodes that share one ring on 127.0.0.1, 127.0.0.2, …; the first is everybody's seed. ``syncs``: one each."""
    ports = {"port": free_port(), "storage_port": free_port()}
    nodes = [
        CassandraNode(directory / f"node-{number}", number=number, of=count, sync=sync, **ports)
        for number, sync in enumerate(syncs or ["batch"] * count)
    ]
    try:
        for node in nodes:
            node.process.start()
        for node in nodes:
            until_it_knows(node, nodes)
        until_all_reach_all(nodes)
        yield nodes
    finally:
        for node in nodes:
            node.process.kill()


@contextmanager
def contact_point(directory: Path) -> Iterator[str]:
    """``host:port`` that serves CQL: the given cluster, or one node started here and stopped at the end."""
    given = os.environ.get("QIM_TEST_CASSANDRA")
    if given:
        yield given
        return
    node = CassandraNode(directory, port=free_port(), storage_port=free_port())
    try:
        node.process.start()
        yield node.address
    finally:
        node.process.kill()


def until_it_knows(node: CassandraNode, ring: Sequence[CassandraNode]) -> None:
    """Gossip brings a node the others, one by one: each of them serves CQL before all know of each other. Raises ServerFailed."""
    others = {one.host for one in ring} - {node.host}
    deadline = time.monotonic() + START_SECONDS_MAX
    with _asked(node) as session:
        while (known := _peers(session)) != others:
            if time.monotonic() > deadline:
                raise ServerFailed(f"{node.host} knows {sorted(known)} of {sorted(others)}")
            time.sleep(LOOK_SECONDS)


def until_all_reach_all(ring: Sequence[CassandraNode]) -> None:
    """Whom a node knows it may still take for down, and refuse a quorum: each reads what all must answer. Raises ServerFailed."""
    with _asked(ring[0]) as session:
        for text in WHOLE:
            session.execute(text.format(count=len(ring)))
    until_it_knows(ring[0], ring)
    for node in ring:
        with _asked(node) as session:
            _until_all_answer(node, session)


def _until_all_answer(node: CassandraNode, session: Any) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    asked = SimpleStatement(READ_WHOLE, consistency_level=ConsistencyLevel.ALL)
    while True:
        try:
            session.execute(asked)
        except (DriverException, NoHostAvailable) as error:
            if time.monotonic() > deadline:
                raise ServerFailed(f"{node.host} does not reach all: {error}") from error
            time.sleep(LOOK_SECONDS)
        else:
            return


@contextmanager
def _asked(node: CassandraNode) -> Iterator[Any]:
    """A session that has to do with this node alone, and waits for it."""
    alone = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([node.host]),
        request_timeout=START_SECONDS_MAX,
    )
    cluster = Cluster(
        [node.host],
        port=node.port,
        protocol_version=PROTOCOL_VERSION,
        connection_class=connection_class(),
        execution_profiles={EXEC_PROFILE_DEFAULT: alone},
        connect_timeout=START_SECONDS_MAX,
        control_connection_timeout=START_SECONDS_MAX,
    )
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def _peers(session: Any) -> set[str]:
    """Of whom it knows all that a client is told: where they serve, and that they have its schema."""
    rows = session.execute(KNOWN)
    own = {row.schema_version for row in session.execute(OWN_SCHEMA)}
    return {
        row.native_address
        for row in rows
        if row.native_port is not None and {row.schema_version} == own
    }


def serves_cql(host: str, port: int) -> bool:
    """It answers an OPTIONS frame of protocol version 4 with SUPPORTED."""
    try:
        with socket.create_connection((host, port), timeout=1.0) as probe:
            probe.sendall(b"\x04\x00\x00\x00\x05\x00\x00\x00\x00")
            return probe.recv(5)[4:5] == b"\x06"
    except OSError:
        return False
