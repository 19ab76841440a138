"""Scenarios of two networks on both kinds of event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from qim.adapters.rpc import ProcessRole
from tests.adapters.rpc.stage import Process

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
WRITER, GATEWAY, SESSION = ProcessRole.WRITER, ProcessRole.GATEWAY, ProcessRole.SESSION
Scenario = Callable[[], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Play:
    """Run a scenario on both kinds of event loop."""

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario())

    return run


def rids(process: Process) -> list[int]:
    """What it heard, in order."""
    return [event.message.rid for event in process.heard]  # type: ignore[union-attr]
