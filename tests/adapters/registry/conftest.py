"""Every registry of the conformance suite as one parametrised fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.registry.registries import (
    AskedRegistry,
    Asker,
    SimulatedRegistry,
    SqliteAsked,
)

REGISTRIES = ("simulator", "sqlite")


def opened(name: str, folder: Path) -> AskedRegistry:
    """An empty registry."""
    return SimulatedRegistry() if name == "simulator" else SqliteAsked(folder / "registry.sqlite")


@pytest.fixture(params=REGISTRIES)
def asker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Asker]:
    registry = opened(request.param, tmp_path)
    yield Asker(registry)
    registry.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteAsked]:
    """The SQLite registry alone."""
    chosen = SqliteAsked(tmp_path / "registry.sqlite")
    yield chosen
    chosen.close()
