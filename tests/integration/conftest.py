"""One real `qim up` for all tests of a module; at its end its log and exit status are judged."""

from collections.abc import Iterator

import pytest

from tests.integration.served import Served


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
