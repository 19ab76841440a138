"""A client_message_id that is given again: what is settled is answered from here, never sent under a fresh not_after.

The server's memory of it ends some hours after its not_after; a repeat with a later one would be a second message.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from qim.client import Client, ErrorCode, SendFailed, SendStatus
from qim.core.contract.frames import CreateGroup, SendMessage
from qim.core.contract.ids import group_conversation_id
from tests.client.scripted_server import CONVERSATION, PEER, USER, ScriptedServer
from tests.client.sdk_scene import play

Device = Callable[[], Client]
KEY = b"k" * 16


def heard(server: ScriptedServer, kind: type) -> int:
    return sum(isinstance(frame, kind) for frame in server.heard)


def test_a_settled_send_given_again_is_answered_and_not_sent(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Device) -> None:
        async with device() as me:
            sent = await me.send("one", to=PEER, client_message_id=KEY)
            assert sent.status is SendStatus.ACKED
        async with device() as me:
            await me.online()
            assert await me.send("one", to=PEER, client_message_id=KEY) == sent
            by_name = await me.send(b"one", conversation_id=CONVERSATION, client_message_id=KEY)
            assert by_name == sent, "the same conversation by its other name"
            assert heard(server, SendMessage) == 1

    play(scene, tmp_path)


def test_a_settled_key_for_something_else_is_a_conflict(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Device) -> None:
        async with device() as me:
            await me.send("one", to=PEER, client_message_id=KEY)
            for call in (
                lambda: me.send("two", to=PEER, client_message_id=KEY),
                lambda: me.send("one", to=PEER + 1, client_message_id=KEY),
                lambda: me.send("one", to=PEER, custom_type="x", client_message_id=KEY),
                lambda: me.create_group((PEER,), client_message_id=KEY),
            ):
                with pytest.raises(SendFailed) as refused:
                    await call()
                assert refused.value.code == ErrorCode.IDEMPOTENCY_CONFLICT
            assert heard(server, SendMessage) == 1
            assert not heard(server, CreateGroup)

    play(scene, tmp_path)


def test_a_failed_send_stays_failed_under_its_key(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Device) -> None:
        server.refuse[SendMessage] = ErrorCode.MODERATION_REJECTED
        async with device() as me:
            failed = await me.send("one", to=PEER, client_message_id=KEY)
            server.refuse.clear()
            again = await me.send("one", to=PEER, client_message_id=KEY)
            assert (again.status, again.code) == (failed.status, "MODERATION_REJECTED")
            assert heard(server, SendMessage) == 1

    play(scene, tmp_path)


def test_a_settled_change_given_again_is_answered_and_not_sent(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Device) -> None:
        async with device() as me:
            await me.create_group((PEER,), "team", client_message_id=KEY)
            again = await me.create_group([PEER], "team", client_message_id=KEY)
            assert again.conversation_id == group_conversation_id("default", USER, KEY)
            assert again.version == 0, "done; which version it made is not kept"
            with pytest.raises(SendFailed) as refused:
                await me.create_group((PEER, 3), "team", client_message_id=KEY)
            assert refused.value.code == ErrorCode.IDEMPOTENCY_CONFLICT
            assert heard(server, CreateGroup) == 1
            server.refuse[CreateGroup] = ErrorCode.TOO_MANY_MEMBERS
            other = b"o" * 16
            for _ in range(2):
                with pytest.raises(SendFailed) as refused:
                    await me.create_group((PEER,), client_message_id=other)
                assert refused.value.code == ErrorCode.TOO_MANY_MEMBERS
            assert heard(server, CreateGroup) == 2

    play(scene, tmp_path)


def test_a_pending_send_given_again_is_told_so(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Device) -> None:
        server.silent.add(SendMessage)
        async with device() as me:
            await me.send("one", to=PEER, client_message_id=KEY, timeout=None)
            with pytest.raises(SendFailed) as refused:
                await me.send("one", to=PEER, client_message_id=KEY)
            assert refused.value.code == ErrorCode.IDEMPOTENCY_CONFLICT
            settling = asyncio.ensure_future(me.settled(KEY))
            await me.online()
            server.silent.clear()
            server.cut()
            settled = await settling
            assert settled is not None
            assert settled.status is SendStatus.ACKED

    play(scene, tmp_path)
