"""Every store of the conformance suite as one parametrised fixture, each started once a session.

`make test` runs the simulator's keyspace and the wheel's Valkey, `make integration` redis-server over TCP, or the server that
QIM_TEST_REDIS names. Both run under another locale once more: it decides how Lua's own comparison orders strings.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from qim.adapters.redis.scripts import load_scripts
from qim.sim.keyspace import ScriptRuntime
from tests.adapters.store.servers import (
    LOCALE,
    ServerStore,
    SimulatedStore,
    Store,
    has_locale,
    running,
)
from tests.integration.testbed.redis import RedisServer, empty_redis, valkey_binary

ON_SERVERS = (pytest.mark.servers, pytest.mark.xdist_group("redis"))
STORES = (
    "simulator",
    "valkey",
    "valkey-locale",
    pytest.param("redis", marks=ON_SERVERS),
    pytest.param("redis-locale", marks=ON_SERVERS),
)
SERVERS = STORES[1:]
"""Real ones: what only a server can do is asked of these alone, by indirect parameters."""


class Stores:
    """Starts each server at its first use and stops all at the end."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._directory = directory
        self._started: dict[str, Store] = {}

    def get(self, name: str) -> Store:
        if name.endswith("locale") and not has_locale():
            pytest.skip(f"locale {LOCALE} is not installed (apt-get install locales)")
        if name not in self._started:
            self._started[name] = self._start(name)
        return self._started[name]

    def _start(self, name: str) -> Store:
        enter = self._stack.enter_context
        match name:
            case "simulator":
                return SimulatedStore(ScriptRuntime(load_scripts()))
            case "valkey":
                return ServerStore(name, enter(running(valkey_binary())))
            case "valkey-locale":
                return ServerStore(name, enter(running(valkey_binary(), locale=LOCALE)))
            case "redis":
                lent = enter(empty_redis(self._directory / name))
                return ServerStore(name, enter(lent.client()))
        own = RedisServer(self._directory / name, locale=LOCALE)
        own.start()
        self._stack.callback(own.stop)
        return ServerStore(name, enter(own.client()))


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with ExitStack() as stack:
        yield Stores(stack, tmp_path_factory.mktemp("stores"))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, stores: Stores) -> Store:
    """An empty store."""
    chosen = stores.get(request.param)
    chosen.flush()
    return chosen
