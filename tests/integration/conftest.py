"""One real `qim up` for all tests of a module; at its end its log and exit status are judged."""

import itertools
from collections.abc import Iterator

import pytest

from tests.integration.served import Served

_users = itertools.count(1_000_001, 10)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running server that must drain with status 0 and must have logged neither a failure nor a secret."""
    server = Served(tmp_path_factory.mktemp("served") / "data")
    try:
        server.start()
        yield server
        server.end()
    finally:
        server.close()


@pytest.fixture
def user() -> int:
    """Ten users from here on that no other test uses."""
    return next(_users)


@pytest.fixture
def data(served: Served) -> str:
    """The directory of the server, as an option of a command."""
    return str(served.data)
