"""What the SDK says of membership changes that are late, given twice, or of a client that ends: kept is not failed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qim.client import (
    Client,
    ErrorCode,
    KickReason,
    LocalStoreUnusable,
    NotConnected,
    SendFailed,
    SendStatus,
    StillPending,
    waiting,
)
from qim.client.local_store import LocalStore
from qim.core.contract.frames import CreateGroup, SendMessage
from qim.core.ports.completion import Unknown
from tests.client.scripted_server import PEER, ScriptedServer
from tests.client.sdk_scene import play

Device = Callable[[], Client]
KEY = b"k" * 16


def test_a_change_that_is_late_is_one_change_and_tells_its_end(tmp_path: Path) -> None:
    """Who asks again after a time-out, under the same key, gets the one group; under none he would get two."""

    async def scene(server: ScriptedServer, device: Device) -> None:
        server.silent.add(CreateGroup)
        async with device() as me:
            await me.online()
            with pytest.raises(StillPending, match=KEY.hex()) as late:
                await me.create_group((PEER,), client_message_id=KEY, timeout=0.05)
            assert late.value.client_message_id == KEY
            with pytest.raises(SendFailed) as twice:
                await me.create_group((PEER,), client_message_id=KEY)
            assert twice.value.code == ErrorCode.IDEMPOTENCY_CONFLICT
            settling = asyncio.ensure_future(me.settled(KEY, timeout=30))
            await asyncio.sleep(0)
            server.silent.clear()
            server.cut()
            settled = await settling
            assert settled is not None
            assert settled.status is SendStatus.ACKED
            assert settled == await me.outcome(KEY)
            again = await me.create_group((PEER,), client_message_id=KEY)
            assert (again.version, again.noop) == (0, False), "done; the version is not kept"
        keys = {f.client_message_id for f in server.heard if isinstance(f, CreateGroup)}
        assert keys == {KEY}

    play(scene, tmp_path)


def test_a_refused_change_tells_its_end_with_words(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Device) -> None:
        server.refuse[CreateGroup] = ErrorCode.TOO_MANY_MEMBERS
        async with device() as me:
            with pytest.raises(SendFailed, match="TOO_MANY_MEMBERS: as told"):
                await me.create_group((PEER,), client_message_id=KEY)
            settled = await me.settled(KEY)
            assert settled is not None
            assert (settled.status, settled.code) == (SendStatus.FAILED, "TOO_MANY_MEMBERS")

    play(scene, tmp_path)


def test_a_change_of_a_stopped_or_closed_client_is_told_as_kept(tmp_path: Path) -> None:
    async def scene(server: ScriptedServer, device: Device) -> None:
        async with device() as me:
            await me.online()
            server.silent |= {CreateGroup, SendMessage}
            waits = [
                asyncio.ensure_future(me.create_group((PEER,), client_message_id=KEY)),
                asyncio.ensure_future(me.send("one", to=PEER)),
            ]
            await server.until_heard(CreateGroup)
            await server.until_heard(SendMessage)
            await me.close()
            with pytest.raises(NotConnected, match=f"kept here as {KEY.hex()}"):
                await waits[0]
            sent = await waits[1]
            assert sent.status is SendStatus.PENDING, "it is on disk: nobody may call it lost"
            with pytest.raises(NotConnected):
                await me.next_state()
        async with device() as me:
            assert await me.pending_count() == 2
            await me.online()
            server.kick(KickReason.REPLACED)
            while not me.state.reason:
                await me.next_state()
            with pytest.raises(NotConnected, match=r"REPLACED.*kept here") as stopped:
                await me.create_group((PEER,))
            assert stopped.value.refused
            assert await me.pending_count() == 3

    play(scene, tmp_path)


def test_a_store_that_takes_nothing_is_told_and_never_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(server: ScriptedServer, device: Device) -> None:
        async with device() as me:
            await me.online()

            def full(store: LocalStore, requests: list[Any]) -> list[Any]:
                store.fault = "local store: database or disk is full"
                return [Unknown(op=request.op) for request in requests]

            monkeypatch.setattr(LocalStore, "execute", full)
            monkeypatch.setattr(waiting, "STORE_SECONDS", 0.05)
            for call in (
                me.send("one", to=PEER, client_message_id=KEY, timeout=None),
                me.create_group((PEER,)),
            ):
                with pytest.raises(LocalStoreUnusable, match="took nothing"):
                    await call
            with pytest.raises(SendFailed, match="TIMEOUT_UNKNOWN: the local store does not say"):
                await me.mark_read(b"c" * 16, 1)
            monkeypatch.undo()
            await server.until_heard(SendMessage)
            settled = await me.settled(KEY, timeout=30)
            assert settled is not None
            assert settled.status is SendStatus.ACKED, "it was still asked for, and told so"

    play(scene, tmp_path)
