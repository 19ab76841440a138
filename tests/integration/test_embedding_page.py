"""docs/embedding.md: its programs run as they stand there, and its connection ends with its token as it says."""

import asyncio
import os
import re
import runpy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from qim.client import Client, ClientState, ErrorCode, NotConnected, SendStatus
from tests.integration.people import PATIENCE_SECONDS
from tests.integration.raw_client import token
from tests.integration.served import Served

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"


@pytest.fixture
def page(tmp_path: Path) -> dict[str, Any]:
    """The names that the page's programs define."""
    programs = tmp_path / "programs.py"
    programs.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    return runpy.run_path(str(programs))


def test_the_programs_do_what_the_page_says(
    served: Served, tmp_path: Path, page: dict[str, Any]
) -> None:
    secret = (served.data / "secret").read_bytes()

    @asynccontextmanager
    async def device(user: int) -> AsyncIterator[Client]:
        signed = page["token_of"](user, secret)
        async with page["device"](user, signed, served.tcp, tmp_path, "laptop") as client:
            await client.online(PATIENCE_SECONDS)
            yield client

    async def run() -> None:
        sent = await page["two_talk"](served.tcp, secret, tmp_path)
        assert sent.status is SendStatus.ACKED
        async with asyncio.timeout(PATIENCE_SECONDS), device(1) as ann, device(2) as ben:
            key = os.urandom(16)
            once = await page["sent_once"](ann, 2, "once", key)
            assert await page["sent_once"](ann, 2, "once", key) == once
            group = await page["a_team"](ann, ben, os.urandom(16))
            assert (await ann.members(group)).added == (1, 3, 4)
            bodies = await page["look_and_read"](ben, sent.coordinates.conversation_id)
            assert bodies.count(b"hello") == 1
            assert bodies[-1] == b"once"
            row = await ben.conversation(sent.coordinates.conversation_id)
            assert row is not None
            assert (row.unread, row.unread_exact) == (0, True)

    asyncio.run(run())


async def came_online(client: Client) -> bool:
    """False: refused, as its token had ended by then."""
    try:
        await client.online(PATIENCE_SECONDS)
    except NotConnected as error:
        if not error.refused:
            raise
        return False
    return True


def test_a_connection_ends_with_its_token_and_comes_back_with_a_new_one(
    served: Served, tmp_path: Path, page: dict[str, Any]
) -> None:
    """BR-074."""
    secret = (served.data / "secret").read_bytes()
    user = 3_900_001

    def good_for(ms: int) -> str:
        return token(secret, user, expires_at=time.time_ns() // 1_000_000 + ms)

    async def run() -> None:
        given: list[str] = []

        async def new_token() -> str:
            given.append(good_for(3_600_000))
            return given[-1]

        lives_ms = 3_000
        me = page["device"](user, good_for(lives_ms), served.tcp, tmp_path)
        async with asyncio.timeout(4 * PATIENCE_SECONDS), me:
            while not await came_online(me):
                lives_ms *= 2  # this machine took longer than the token lived
                await me.renew_token(good_for(lives_ms))
            while me.state.state != ClientState.STOPPED:
                await me.next_state()
            assert (me.state.refused, me.state.reason) == (True, ErrorCode.TOKEN_EXPIRED)
            pending = await me.send("kept", to=user + 1)
            assert pending.status is SendStatus.PENDING
            staying = asyncio.ensure_future(page["stay_online"](me, new_token))
            settled = await me.settled(pending.client_message_id, timeout=PATIENCE_SECONDS)
            if settled is None or settled.status is SendStatus.PENDING:
                await me.online(PATIENCE_SECONDS)
                settled = await me.settled(pending.client_message_id, timeout=PATIENCE_SECONDS)
            assert settled is not None
            assert settled.status is SendStatus.ACKED
        with pytest.raises(NotConnected):
            await staying
        assert len(given) == 1, "one refresh, not a chain of them"

    asyncio.run(run())
