"""Scenarios of two networks on both kinds of event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from qim.adapters.rpc import ProcessRole
from tests.adapters.conftest import NewLoop
from tests.adapters.rpc.stage import Process

WRITER, GATEWAY, SESSION = ProcessRole.WRITER, ProcessRole.GATEWAY, ProcessRole.SESSION
SECONDS_MAX = 120.0
Scenario = Callable[[], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture
def play(new_loop: NewLoop) -> Play:
    """Run a scenario on both kinds of event loop."""

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(bounded(scenario))

    return run


async def bounded(scenario: Scenario) -> None:
    """A wait for what never comes ends the test and not the whole run."""
    async with asyncio.timeout(SECONDS_MAX):
        await scenario()


def rids(process: Process) -> list[int]:
    """What it heard, in order."""
    return [event.message.rid for event in process.heard]  # type: ignore[union-attr]
