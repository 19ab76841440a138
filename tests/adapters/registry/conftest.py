"""Every registry of the conformance suite as one parametrised fixture; etcd is started once a run, when first asked for."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from qim.adapters.etcd import starting
from tests.adapters.registry.etcd_asked import EtcdAsked
from tests.adapters.registry.etcd_process import SECONDS_MAX
from tests.adapters.registry.etcd_scene import remove_everything
from tests.adapters.registry.registries import (
    AskedRegistry,
    Asker,
    SimulatedRegistry,
    SqliteAsked,
)
from tests.integration.testbed.etcd import EtcdServer, given_address

REGISTRIES = (
    "simulator",
    "sqlite",
    pytest.param("etcd", marks=(pytest.mark.servers, pytest.mark.xdist_group("etcd"))),
)


class Registries:
    """Opens empty ones; the etcd behind it and the loop of its clients live as long as the test run."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._folder = folder
        self._server: EtcdServer | None = None

    def opened(self, name: str, folder: Path) -> AskedRegistry:
        """An empty registry."""
        match name:
            case "simulator":
                return SimulatedRegistry()
            case "sqlite":
                return SqliteAsked(folder / "registry.sqlite")
            case _:
                return EtcdAsked(self.etcd_address(), self.loop)

    def etcd_address(self) -> str:
        """Of the server that is shared: nobody stops it."""
        given = given_address()
        if given is not None:
            return given
        if self._server is None:
            self._server = EtcdServer(self._folder)
            self._server.start()
        return self._server.address

    def close(self) -> None:
        given = given_address()
        if given is not None:
            self.loop.run_until_complete(remove_everything(given))
        if self._server is not None:
            self._server.stop()
        self.loop.close()


@pytest.fixture(scope="module", autouse=True)
def patient_starts() -> Iterator[None]:
    """A start waits as long for a slow etcd as any test does; the tests of its refusals make it short."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(starting, "START_MS", int(SECONDS_MAX * 1_000))
        monkeypatch.setattr(starting, "CLOCK_SECONDS", SECONDS_MAX)
        yield


@pytest.fixture(scope="session")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registries]:
    opened = Registries(tmp_path_factory.mktemp("etcd"))
    yield opened
    opened.close()


@pytest.fixture(params=REGISTRIES)
def asker(
    request: pytest.FixtureRequest, tmp_path: Path, registries: Registries
) -> Iterator[Asker]:
    registry = registries.opened(request.param, tmp_path)
    yield Asker(registry)
    registry.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteAsked]:
    """The SQLite registry alone."""
    chosen = SqliteAsked(tmp_path / "registry.sqlite")
    yield chosen
    chosen.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server that the test may kill and pause."""
    server = EtcdServer(tmp_path / "own")
    server.start()
    yield server
    server.stop()


def play(registries: Registries, story: Coroutine[Any, Any, None]) -> None:
    """A story about etcd, on the loop of its clients, and not for ever."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await story

    registries.loop.run_until_complete(bounded())
