"""Real Apache Kafka 4 on loopback: KRaft, one broker or three that are each other's controllers, jars by Maven.

QIM_TEST_KAFKA=host:port,… names a cluster somebody already has; then nothing is started (and nothing can be killed).
"""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.integration.testbed.maven_jars import jars_of
from tests.integration.testbed.server_process import (
    ServerFailed,
    ServerProcess,
    free_port,
)

HEAP: Final = "256m"
START_SECONDS_MAX: Final = 180.0
"""A cold JVM on a busy machine of two cores."""
FORMAT_SECONDS_MAX: Final = 120
LOOK_SECONDS_MAX: Final = 5.0
CLUSTER_ID: Final = "cWltLXRlc3RiZWQtMDAwMQ"
JAVA: Final = (
    f"-Xmx{HEAP}",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
)
CONFIGURATION: Final = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/data
num.network.threads=2
num.io.threads=4
num.partitions=1
num.recovery.threads.per.data.dir=1
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.num.partitions=1
offsets.topic.replication.factor={copies}
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
auto.create.topics.enable=false
unclean.leader.election.enable=false
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
log.retention.check.interval.ms=5000
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.threads=1
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=1000
replica.lag.time.max.ms=8000
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
controlled.shutdown.enable=true
"""
SECURE: Final = """\
listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
"""
"""Over the lines above: the last one of a name counts."""
LOGGING: Final = """\
status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss.SSS} %-5p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
"""


class KafkaBroker:
    """One broker that is a controller too. ``settings`` go over those of the test bed, by their Kafka names.

    ``secure``: settings of a second listener, SASL over TLS, at ``secure_address``. ``scram``: what the storage is formatted
    with, each as `SCRAM-SHA-256=[name=…,password=…]`: the brokers keep such users in their metadata.
    """

    def __init__(
        self,
        directory: Path,
        *,
        number: int = 1,
        port: int | None = None,
        controllers: Sequence[int] = (),
        settings: Mapping[str, str] | None = None,
        secure: Mapping[str, str] | None = None,
        scram: Sequence[str] = (),
    ) -> None:
        self._scram = tuple(scram)
        self.number = number
        self.awaited = {number}
        """Whom it must have heard of at its next start; afterwards it may come back alone."""
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        ports = list(controllers) or [free_port()]
        self._directory = directory
        self._jars = jars_of("kafka")
        directory.mkdir(parents=True, exist_ok=True)
        own = CONFIGURATION.format(
            number=number,
            voters=",".join(f"{n}@127.0.0.1:{one}" for n, one in enumerate(ports, 1)),
            port=self.port,
            controller_port=ports[number - 1],
            directory=directory,
            copies=len(ports),
            in_sync=max(1, len(ports) - 1),
        )
        self.secure_address = ""
        if secure is not None:
            secure_port = free_port()
            self.secure_address = f"127.0.0.1:{secure_port}"
            own += SECURE.format(
                port=self.port, controller_port=ports[number - 1], secure_port=secure_port
            )
        for more in (settings, secure):
            own += "".join(f"{key}={value}\n" for key, value in (more or {}).items())
        (directory / "server.properties").write_text(own)
        (directory / "log4j2.properties").write_text(LOGGING)
        self.process = ServerProcess(
            f"kafka-{number}",
            self._java("kafka.Kafka", str(directory / "server.properties")),
            directory,
            ready=self._serves,
            seconds_max=START_SECONDS_MAX,
        )

    def _serves(self) -> bool:
        if not self.awaited <= serving(self.port):
            return False
        self.awaited = {self.number}
        return True

    def _java(self, main: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self._directory}/log4j2.properties"
        return ["java", *JAVA, logging, "-cp", f"{self._jars}/*", main, *arguments]

    def format(self) -> None:
        """The storage of an empty directory. Raises ServerFailed."""
        if (self._directory / "data" / "meta.properties").exists():
            return
        command = self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID)
        command += ["-c", str(self._directory / "server.properties")]
        command += [part for user in self._scram for part in ("--add-scram", user)]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=FORMAT_SECONDS_MAX, check=False
        )
        if ended.returncode != 0:
            raise ServerFailed(f"storage not formatted: {ended.stdout}{ended.stderr}")

    def start(self) -> None:
        """Format once, start, wait until it serves."""
        self.format()
        self.process.start()

    def stop(self) -> None:
        """SIGTERM: leadership is handed over first."""
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()


class KafkaCluster:
    """Brokers 1, 2, 3, each controller too; everything is kept three times, two must have it."""

    def __init__(
        self, directory: Path, *, count: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        controllers = [free_port() for _ in range(count)]
        self.brokers = [
            KafkaBroker(
                directory / f"broker-{number}",
                number=number,
                controllers=controllers,
                settings=settings,
            )
            for number in range(1, count + 1)
        ]
        for broker in self.brokers:
            # A topic gets no more copies than its maker knows brokers.
            broker.awaited = {one.number for one in self.brokers}
        self.addresses = ",".join(broker.address for broker in self.brokers)

    def broker(self, number: int) -> KafkaBroker:
        """By its node id, 1 to 3."""
        return self.brokers[number - 1]

    def start(self) -> None:
        """All of them; a quorum is needed before the first serves."""
        for broker in self.brokers:
            broker.format()
        for broker in self.brokers:
            broker.process.launch()
        for broker in self.brokers:
            broker.process.wait_ready()

    def until_whole(self) -> None:
        """Until each has heard that all serve (again). Raises ServerFailed."""
        for broker in self.brokers:
            broker.awaited = {one.number for one in self.brokers}
            broker.process.wait_ready()

    def kill(self) -> None:
        """SIGKILL to all that run."""
        for broker in self.brokers:
            broker.process.kill()


@contextmanager
def brokers(directory: Path) -> Iterator[str]:
    """``host:port,…`` of a Kafka: the given one, or one broker started here and stopped at the end."""
    given = os.environ.get("QIM_TEST_KAFKA")
    if given:
        yield given
        return
    broker = KafkaBroker(directory)
    try:
        broker.start()
        yield broker.address
    finally:
        broker.kill()


def serving(port: int) -> set[int]:
    """Which brokers are registered, caught up and unfenced, as this one knows; none where it doesn't answer.

    One that answers and isn't among them itself makes no topics yet, and leads nothing.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=LOOK_SECONDS_MAX) as probe:
            # length, api key 3, version 1, correlation id, client id of length 0, no topics
            probe.sendall(struct.pack(">ihhihi", 14, 3, 1, 1, 0, 0))
            (size,) = struct.unpack(">i", _read(probe, 4))
            answer = _read(probe, size)
    except (OSError, EOFError):
        return set()
    found, place = set(), 8
    for _ in range(struct.unpack_from(">i", answer, 4)[0]):
        number, host = struct.unpack_from(">ih", answer, place)
        place += 6 + host + 4
        (rack,) = struct.unpack_from(">h", answer, place)
        place += 2 + max(0, rack)
        found.add(number)
    return found


def _read(probe: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = probe.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
