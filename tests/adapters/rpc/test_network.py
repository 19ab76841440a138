"""Messages between two processes: there and back, in order, bounded; peers that stop, lag, come back or never were."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from qim.adapters.rpc import ProcessRole
from tests.adapters.rpc.stage import Process, answer, ask

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
WRITER, GATEWAY = ProcessRole.WRITER, ProcessRole.GATEWAY
Scenario = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Run a scenario on both kinds of event loop."""

    def run(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario())

    return run


def test_a_question_and_its_answer_in_order(play: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        async with Process(WRITER) as writer, Process(GATEWAY) as gateway:
            writer.answering = lambda event: answer(event.message.rid, event.message.rid * 100)  # type: ignore[union-attr]
            for rid in range(1, 501):
                gateway.say(writer.address, ask(rid))
            await gateway.until_heard(500)
            assert [event.message for event in writer.heard] == [ask(n) for n in range(1, 501)]
            assert {event.source for event in writer.heard} == {gateway.address}
            assert {event.wall for event in writer.heard} == {1234}
            assert [event.message.rid for event in gateway.heard] == list(range(1, 501))  # type: ignore[union-attr]
            assert {event.source for event in gateway.heard} == {writer.address}
            assert gateway.gauge("rpc_queue_messages") == 0
            assert not gateway.told.lines and not writer.told.lines

    play(scenario)
