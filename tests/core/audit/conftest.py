"""A toy in which nothing is wrong yet."""

import pytest

from tests.core.audit.toy import A, B, Toy, users_in


@pytest.fixture
def toy() -> Toy:
    """Four whole messages, every other one of the group."""
    made = Toy()
    made.group(1, (A, B, *users_in(2, 3)))
    for number in range(4):
        made.send(version=number % 2)
    return made
