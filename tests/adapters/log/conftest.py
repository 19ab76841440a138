"""Every log of the conformance suite as one parametrised fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.log.logs import AskedLog, Asker, SimulatedLog, SqliteAsked

LOGS = ("simulator", "sqlite")


def opened(name: str, folder: Path) -> AskedLog:
    """An empty log."""
    return SimulatedLog() if name == "simulator" else SqliteAsked(folder / "log.sqlite")


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AskedLog]:
    chosen = opened(request.param, tmp_path)
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
