"""What the SDK says of sends, silence, kicks, restarts and its own end."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from qim.client import Client, LocalStoreBusy, NotConnected, SendFailed, SendStatus
from qim.core.client import Client as ClientMachine
from qim.core.client.vocabulary import ClientState
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Auth,
    CreateGroup,
    KickReason,
    PullHistory,
    PullMailbox,
    SendMessage,
)
from tests.client.scripted_server import CONVERSATION, PEER, ScriptedServer
from tests.client.sdk_scene import client, first, play


def test_a_send_is_acked(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        async with device() as me:
            sent = await me.send("hello", to=PEER)
            assert sent.status is SendStatus.ACKED
            assert sent.coordinates is not None
            ack = server.sent[sent.client_message_id]
            assert sent.coordinates.message_id == ack.message_id
            assert await me.outcome(sent.client_message_id) == sent
            assert await me.settled(sent.client_message_id) == sent
            assert await me.outcome(b"?" * 16) is None

    play(scene, tmp_path)


def test_silence_is_pending_and_the_next_life_settles_it(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        server.silent.add(SendMessage)
        async with device() as me:
            await me.online()
            sent = await me.send("hello", to=PEER, timeout=0.05)
            assert sent.status is SendStatus.PENDING
            assert await me.pending_count() == 1
            assert await me.settled(sent.client_message_id, timeout=0.01) == sent
        server.silent.clear()
        async with device() as me:
            settled = await me.settled(sent.client_message_id)
            assert settled is not None
            assert settled.status is SendStatus.ACKED
            assert await me.pending_count() == 0
        keys = {f.client_message_id for f in server.heard if isinstance(f, SendMessage)}
        assert keys == {sent.client_message_id}, "the same key in every transmission"

    play(scene, tmp_path)


def test_without_waiting_it_is_durable_here(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        server.silent.add(Auth)
        async with device() as me:
            sent = await me.send("hello", to=PEER, timeout=None)
            assert sent.status is SendStatus.PENDING
        async with device() as me:
            assert await me.pending_count() == 1

    play(scene, tmp_path)


def test_a_refused_send_is_failed_and_stays_so(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        server.refuse[SendMessage] = ErrorCode.NOT_MEMBER
        async with device() as me:
            sent = await me.send("hello", to=PEER)
            assert (sent.status, sent.code) == (SendStatus.FAILED, "NOT_MEMBER")
            assert sent.message == "as told"
            kept = await me.outcome(sent.client_message_id)
            assert kept is not None
            assert (kept.status, kept.code) == (sent.status, sent.code)
            with pytest.raises(SendFailed) as refused:
                await me.send(b"x" * 200_000, to=PEER)
            assert refused.value.code == ErrorCode.INVALID_ARGUMENT
            with pytest.raises(SendFailed):
                await me.send("to whom?")

    play(scene, tmp_path)


def test_one_key_is_sent_once_at_a_time(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        server.silent.add(SendMessage)
        key = b"k" * 16
        async with device() as me:
            await me.online()
            sending = asyncio.ensure_future(me.send("one", to=PEER, client_message_id=key))
            await server.until_heard(SendMessage)
            with pytest.raises(SendFailed) as refused:
                await me.send("two", to=PEER, client_message_id=key)
            assert refused.value.code == ErrorCode.IDEMPOTENCY_CONFLICT
            waiting = asyncio.ensure_future(me.settled(key))
            server.silent.clear()
            server.cut()
            assert (await sending).status is SendStatus.ACKED
            assert await waiting == await sending

    play(scene, tmp_path)


def test_a_cancelled_send_takes_nothing_back(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        server.silent.add(SendMessage)
        key = b"k" * 16
        async with device() as me:
            await me.online()
            sending = asyncio.ensure_future(me.send("one", to=PEER, client_message_id=key))
            await server.until_heard(SendMessage)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            server.silent.clear()
            server.cut()
            sent = await me.settled(key)
            assert sent is not None
            assert sent.status is SendStatus.ACKED

    play(scene, tmp_path)


def test_closing_ends_every_wait(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        async with device() as me:
            await me.online()
            server.silent |= {SendMessage, CreateGroup, PullHistory, PullMailbox}
            sending = asyncio.ensure_future(me.send("one", to=PEER))
            waits = [
                asyncio.ensure_future(me.create_group((PEER,))),
                asyncio.ensure_future(me.history(CONVERSATION)),
                asyncio.ensure_future(me.sync()),
            ]
            listening = asyncio.ensure_future(first(1, me))
            for kind in (SendMessage, CreateGroup, PullHistory):
                await server.until_heard(kind)
            await server.until_heard(PullMailbox, times=2)
            await me.close()
            assert (await sending).status is SendStatus.PENDING
            for wait in waits:
                # a query has been answered by then: it can't be had without a connection
                with pytest.raises((NotConnected, SendFailed)):
                    await wait
            with pytest.raises(AssertionError, match="ended"):
                await listening
            await me.close()
            with pytest.raises(NotConnected):
                await me.send("two", to=PEER)

    play(scene, tmp_path)


def test_a_final_kick_stops_and_the_user_may_come_back(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        async with device() as me:
            await me.online()
            server.silent.add(SendMessage)
            sending = asyncio.ensure_future(me.send("one", to=PEER))
            await server.until_heard(SendMessage)
            server.kick(KickReason.REPLACED)
            assert (await sending).status is SendStatus.PENDING
            assert me.state.state == ClientState.STOPPED
            with pytest.raises(NotConnected, match="REPLACED") as stopped:
                await me.online()
            assert stopped.value.refused
            with pytest.raises(NotConnected):
                await me.sync()
            second = await me.send("two", to=PEER)
            assert second.status is SendStatus.PENDING
            server.silent.clear()
            await me.reconnect()
            settled = await me.settled(second.client_message_id)
            assert settled is None or settled.status is not SendStatus.FAILED
            await server.until_heard(SendMessage, times=3)
            assert len(server.sent) == 2

    play(scene, tmp_path)


def test_a_wrong_token_stops_at_once_and_a_new_one_goes_on(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        server.refuse[Auth] = ErrorCode.UNAUTHENTICATED
        async with device() as me:
            with pytest.raises(NotConnected, match="UNAUTHENTICATED") as refused:
                await me.online()
            assert refused.value.refused
            server.refuse.clear()
            await me.renew_token("another")
            await me.online()
            tokens = [frame.access_token for frame in server.heard if isinstance(frame, Auth)]
            assert tokens[-1] == "another"

    play(scene, tmp_path)


def test_errors_of_queries_have_their_code(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        async with device() as me:
            await me.online()
            with pytest.raises(SendFailed) as refused:
                await me.members(CONVERSATION)
            assert refused.value.code == ErrorCode.NOT_MEMBER
            assert (await me.history(CONVERSATION)).messages == ()

    play(scene, tmp_path)


def test_a_machine_that_fails_its_own_assert_tells_whoever_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        async with device() as me:
            await me.online()
            server.silent.add(SendMessage)
            sending = asyncio.ensure_future(me.send("one", to=PEER))
            await server.until_heard(SendMessage)

            listening = asyncio.ensure_future(first(1, me))

            def broken(*_: object) -> None:
                raise AssertionError("our own bug")

            monkeypatch.setattr(ClientMachine, "step", broken)
            server.cut()
            with pytest.raises(AssertionError, match="our own bug"):
                await sending
            with pytest.raises(AssertionError, match="the client ended"):
                await listening
            assert me.state.state == ClientState.STOPPED
        monkeypatch.undo()
        async with device() as me:
            assert await me.pending_count() == 1, "what is stored stays"

    play(scene, tmp_path)


def test_a_device_is_open_once(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        async with device():
            with pytest.raises(LocalStoreBusy):
                async with device():
                    pytest.fail("open twice")
        async with device() as me:
            await me.online()

    play(scene, tmp_path)


def test_nobody_there_is_told_with_the_address(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Callable[[], Client]) -> None:
        del device
        async with client(server, tmp_path / "other.db") as me:
            server.silent.add(Auth)
            with pytest.raises(NotConnected, match=server.address) as late:
                await me.online(timeout=0.05)
            assert not late.value.refused
            with pytest.raises(NotConnected, match="not in sync"):
                await me.sync(timeout=0.05)

    play(scene, tmp_path)
