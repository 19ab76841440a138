"""Every log of the conformance suite as one parametrised fixture."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.adapters.log.kafka_asked import KafkaAsked
from tests.adapters.log.logs import AskedLog, Asker, SimulatedLog, SqliteAsked
from tests.adapters.log.stage import Stage
from tests.integration.testbed.kafka import brokers

ON_KAFKA = (pytest.mark.servers, pytest.mark.xdist_group("kafka"))
LOGS = ("simulator", "sqlite", pytest.param("kafka", marks=ON_KAFKA))

OpenLog = Callable[[str, Path], AskedLog]


@pytest.fixture(scope="session")
def kafka_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker for all tests of a run."""
    with brokers(tmp_path_factory.mktemp("kafka")) as addresses:
        yield addresses


@pytest.fixture
def open_log(request: pytest.FixtureRequest) -> OpenLog:
    """``open_log(name, folder)``: an empty log."""

    def opened(name: str, folder: Path) -> AskedLog:
        if name == "simulator":
            return SimulatedLog()
        if name == "sqlite":
            return SqliteAsked(folder / "log.sqlite")
        return KafkaAsked(request.getfixturevalue("kafka_brokers"))

    return opened


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path, open_log: OpenLog) -> Iterator[AskedLog]:
    chosen = open_log(request.param, tmp_path)
    yield chosen
    chosen.close()


@pytest.fixture
def asker(log: AskedLog) -> Asker:
    return Asker(log)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteAsked]:
    """The SQLite log alone."""
    chosen = SqliteAsked(tmp_path / "log.sqlite")
    yield chosen
    chosen.close()


@pytest.fixture
def kafka(kafka_brokers: str) -> Iterator[KafkaAsked]:
    """The Kafka log alone."""
    chosen = KafkaAsked(kafka_brokers)
    yield chosen
    chosen.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    """The Kafka log's reading half before played brokers."""
    chosen = Stage()
    yield chosen
    chosen.close()
