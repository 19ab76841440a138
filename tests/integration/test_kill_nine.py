"""kill -9 of `qim up` at any moment under load, twenty times over: nothing acknowledged is lost, doubled or reordered.

The real processes, the real protocol, the SDK on both sides; the audit of the running server and of the stopped one.
"""

import asyncio
import json
import random
from pathlib import Path

from tests.integration.load import Load, audit
from tests.integration.served import Served

KILLS = 20


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")

    async def main() -> None:
        load = Load(served, tmp_path)
        dice = random.Random(20261129)
        async with load.running():
            for _ in range(KILLS):
                # The kill must hit a server at work: wait until it acked something, then at any moment after.
                await load.acks()
                await asyncio.sleep(dice.uniform(0.0, 0.4))
                await asyncio.to_thread(served.kill)
                await asyncio.to_thread(served.start)
        await load.check()

    served.start()
    try:
        asyncio.run(main())
        served.end()
        stopped = json.loads(audit(served.data))
        assert stopped["verdict"] == "CLEAN", stopped
    finally:
        served.close()
