"""The seeds of a run: a fresh base each time, told in the header so that a red run can be repeated."""

import time

import pytest

BASE = pytest.StashKey[int]()


def seed_base_of(config: pytest.Config) -> int:
    """--seed-base, else a fresh one, the same for the whole session."""
    if BASE not in config.stash:
        given: int | None = config.getoption("--seed-base")
        fresh = time.time_ns() // 1_000_000 % 10**8 * 1_000
        config.stash[BASE] = given if given is not None else fresh
    return config.stash[BASE]


def pytest_report_header(config: pytest.Config) -> str:
    return f"simulator: --seed-base {seed_base_of(config)}"


@pytest.fixture(scope="session")
def seed_base(request: pytest.FixtureRequest) -> int:
    return seed_base_of(request.config)
