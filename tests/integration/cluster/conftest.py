"""One cluster for all tests of a module that leave it as they found it."""

from collections.abc import Iterator

import pytest

from tests.integration.cluster.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One process of each role; at the end every one of them must drain, and none may have broken a rule."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        for process in running.processes.values():
            if process.alive:
                assert process.stop() == 0, f"{process.name}: {process.log()[-4000:]}"
        for process in running.processes.values():
            for record in process.log_records():
                assert record["event"] not in ("machine died", "violation"), (process.name, record)
