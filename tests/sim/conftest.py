"""The seeds of a run: a fresh base each time, told in the header so that a red run can be repeated."""

import pytest

from tests.conftest import seed_base_of


@pytest.fixture(scope="session")
def seed_base(request: pytest.FixtureRequest) -> int:
    return seed_base_of(request.config)
