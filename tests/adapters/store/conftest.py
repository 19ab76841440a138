"""Every store of the conformance suite as one parametrised fixture, each started once a session."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from qim.adapters.redis.scripts import load_scripts
from qim.sim.keyspace import ScriptRuntime
from tests.adapters.store.servers import (
    LOCALE,
    ServerStore,
    SimulatedStore,
    Store,
    has_locale,
    redis_binary,
    running,
    valkey_binary,
)

STORES = ("simulator", "valkey", "redis", "locale")


class Stores:
    """Starts each server at its first use and stops all at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, Store] = {}

    def get(self, name: str) -> Store:
        if name not in self._started:
            self._started[name] = self._start(name)
        return self._started[name]

    def _start(self, name: str) -> Store:
        if name == "simulator":
            return SimulatedStore(ScriptRuntime(load_scripts()))
        wanted = valkey_binary() if name == "valkey" else redis_binary()
        if name == "locale":
            if not has_locale():
                pytest.skip(f"locale {LOCALE} is not installed (apt-get install locales)")
            wanted = wanted or valkey_binary()
        if wanted is None:
            pytest.skip(f"no server for {name}: redis-server is not on PATH")
        locale = LOCALE if name == "locale" else "C"
        return ServerStore(name, self._stack.enter_context(running(wanted, locale=locale)))


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    with ExitStack() as stack:
        yield Stores(stack)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, stores: Stores) -> Store:
    """An empty store."""
    chosen = stores.get(request.param)
    chosen.flush()
    return chosen
