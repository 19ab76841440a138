"""How long sockets go unread: measured only while something is read, and a busy turn is seen."""

import asyncio
import time

from qim.adapters.tcp.read_gap import ReadGap
from tests.adapters.conftest import NewLoop


def test_a_busy_turn_is_one_gap(new_loop: NewLoop) -> None:
    seen: list[tuple[str, float, str]] = []

    async def scenario() -> None:
        gap = ReadGap(asyncio.get_running_loop(), lambda *one: seen.append(one), "client")
        await asyncio.sleep(0.01)
        assert not seen, "nobody read, nothing is measured"
        gap.read()
        gap.read()
        time.sleep(0.02)  # noqa: ASYNC251 — the event loop is meant to be busy
        await asyncio.sleep(0)
        assert [(name, label) for name, _, label in seen] == [("read_gap_seconds", "client")]
        assert seen[0][1] >= 0.02
        assert gap.take_max() == seen[0][1] and gap.take_max() == 0.0

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
