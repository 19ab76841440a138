"""What the SDK hands out: every message once, in order, over lives, pages, listeners and those that are cancelled."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from qim.client import Client
from qim.client.local_store import LocalStore
from tests.client.scripted_server import ScriptedServer
from tests.client.sdk_scene import first, play


def test_messages_come_once_in_order_across_lives(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        entries = [server.deliver(number) for number in range(1, 6)]
        ids = [entry.message_id for entry in entries]
        async with device() as me:
            assert [message.message_id for message in await first(2, me)] == ids[:2]
            await me.sync()
            assert [message.message_id for message in await me.take_new()] == ids[2:]
            assert await me.take_new() == []
        server.deliver(6)
        async with device() as me:
            await me.sync()
            here = [message.conversation_seq async for message in me.messages(follow=False)]
            assert here == [6]
            server.deliver(7)
            await me.sync()
            assert [message.conversation_seq for message in await first(1, me)] == [7]
        async with device() as me:
            await me.sync()
            assert await me.take_new() == []

    play(scene, tmp_path)


def test_more_than_a_page_comes_without_a_new_arrival(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        for number in range(1, 1_203):
            server.deliver(number)
        async with device() as me:
            found = await first(1_202, me)
            assert [message.conversation_seq for message in found] == list(range(1, 1_203))

    play(scene, tmp_path)


def test_two_listeners_share_and_none_is_given_twice(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        for number in range(1, 700):
            server.deliver(number)
        async with device() as me:
            await me.sync()
            found: list[int] = []

            async def listen() -> None:
                async for message in me.messages(follow=False):
                    found.append(message.conversation_seq)
                    await asyncio.sleep(0)

            await asyncio.gather(listen(), listen())
            assert sorted(found) == list(range(1, 700))

    play(scene, tmp_path)


def test_a_cancelled_listener_neither_loses_nor_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def waits(store: LocalStore) -> int:
        assert gate.wait(30)
        return 0

    monkeypatch.setattr(LocalStore, "pending_count", waits)

    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        shown = asyncio.Event()
        server.deliver(1)

        async def listen(me: Client) -> None:
            async for _ in me.messages():
                busy.append(asyncio.ensure_future(me.pending_count()))
                await asyncio.sleep(0)
                shown.set()

        busy: list[asyncio.Future[int]] = []
        async with device() as me:
            await me.sync()
            listening = asyncio.ensure_future(listen(me))
            await shown.wait()
            await asyncio.sleep(0)  # now it waits for its mark, behind a store that is busy
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            gate.set()
            await asyncio.gather(*busy)
            server.deliver(2)
            await me.sync()
            assert [message.conversation_seq for message in await me.take_new()] == [2]
        async with device() as me:
            await me.sync()
            assert await me.take_new() == []

    play(scene, tmp_path)
