"""Scenarios of a gateway that speaks TLS, on both kinds of event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.conftest import NewLoop
from tests.adapters.tls.facing import Gateway

SECONDS_MAX = 120.0
"""Only ever reached where something is waited for that never comes."""
Scenario = Callable[[Gateway], Coroutine[Any, Any, None]]
PlayGateway = Callable[[Scenario], None]


@pytest.fixture
def play_gateway(new_loop: NewLoop, tmp_path: Path) -> PlayGateway:
    """Run a scenario with a listener that is there before it and gone behind it."""

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            gateway = Gateway(tmp_path)
            await gateway.listen()
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    await scenario(gateway)
            finally:
                gateway.server.stop_accepting()
                gateway.server.abort_all()
                await gateway.until(lambda: gateway.server.open_streams == 0)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())

    return run
