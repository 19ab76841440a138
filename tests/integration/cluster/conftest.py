"""Clusters for all tests of a module that leave them as they found them."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster.cluster import SECRET, Cluster
from tests.integration.served import CANARY

SHARED_ROLES = ("writer", "fanout", "mailbox", "session", "gateway")
_first_users = itertools.count(1_000, 10)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One process of each role; at the end every one of them must drain, and none may have broken a rule."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        drained(running)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two processes of each role that can be shared, and an auditor; judged at the end as ``cluster`` is."""
    counts = dict.fromkeys(SHARED_ROLES, 2) | {"auditor": 1}
    with Cluster(tmp_path_factory.mktemp("pairs"), counts=counts) as running:
        yield running
        drained(running)


@pytest.fixture
def first_user() -> int:
    """Nobody has written to this one and the nine behind."""
    return next(_first_users)


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """Where devices keep what they know."""
    return tmp_path


def drained(cluster: Cluster) -> None:
    """Every process ends with status 0 at SIGTERM; no machine died, no rule was broken, in any run."""
    for process in cluster.processes.values():
        if process.alive:
            assert process.stop() == 0, f"{process.name}: {process.log()[-4000:]}"
    for process in cluster.processes.values():
        log = process.log()
        assert "Traceback" not in log, f"{process.name}: {log[-4000:]}"
        assert CANARY.decode() not in log, f"{process.name} logged a body"
        assert SECRET not in log, f"{process.name} logged the secret"
        assert "qim1." not in log, f"{process.name} logged a token"
        for record in process.log_records():
            assert record["event"] not in ("machine died", "violation"), (process.name, record)
            assert record.get("library") != "asyncio", (process.name, record)
