"""Who is told to stop stops, also when what it waited for comes in the same moment."""

import asyncio

import pytest

from qim.client.waiting import until_kept


def test_a_cancel_beside_the_answer_is_no_answer() -> None:
    """A chat at its end cancelled a reader whose row had just been kept: it read on, and the command never ended."""

    async def main() -> None:
        queued: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(until_kept(queued))
        await asyncio.sleep(0)
        queued.set_result(None)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
