"""Every archive of the conformance suite as one parametrised fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.archive.archives import AskedArchive, Asker, SimulatedArchive, SqliteAsked

ARCHIVES = ("simulator", "sqlite")


def opened(name: str, folder: Path) -> AskedArchive:
    """An empty archive."""
    return SimulatedArchive() if name == "simulator" else SqliteAsked(folder / "archive.sqlite")


@pytest.fixture(params=ARCHIVES)
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AskedArchive]:
    chosen = opened(request.param, tmp_path)
    yield chosen
    chosen.close()


@pytest.fixture
def asker(archive: AskedArchive) -> Asker:
    return Asker(archive)


@pytest.fixture
def simulated() -> SimulatedArchive:
    """The simulator's archive alone."""
    return SimulatedArchive()
