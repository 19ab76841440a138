"""Both kinds of event loop: uvloop's is what services run on, asyncio's is what a client has."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    """For asyncio.Runner(loop_factory=…); a test that asks for it runs once on each."""
    made: NewLoop = request.param
    return made
