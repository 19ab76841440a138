"""Users with devices of the SDK against a real server, for tests of what they see."""

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from qim.client import Client, Conversation, SendStatus, Sent
from qim.core.contract.frames import (
    Ping,
    Pong,
    PullSessionList,
    SessionEntry,
    SessionListBatch,
)
from qim.core.contract.ids import single_conversation_id
from qim.core.ports.local_store import Coordinates
from tests.integration.raw_client import RawClient, Target, token
from tests.integration.served import Served

PATIENCE_SECONDS = 60.0
_users = itertools.count(3_000_001)


def chat_of(one: "Person", other: "Person") -> bytes:
    """The single chat of two users."""
    return single_conversation_id("default", one.user, other.user)


def acked(sent: Sent) -> Coordinates:
    """Where a send that must be acked stands."""
    assert sent.status is SendStatus.ACKED, sent
    assert sent.coordinates is not None
    return sent.coordinates


class Person:
    """A user nobody else is; ``device`` opens one of his devices, again after it was closed."""

    def __init__(self, people: "People") -> None:
        self.user = next(_users)
        self._people = people
        self._open: dict[str, Client] = {}

    def path(self, name: str) -> Path:
        """The file of a device."""
        return self._people.folder / f"{self.user}-{name}.db"

    async def device(self, name: str = "phone", *, online: bool = True) -> Client:
        served = self._people.served
        client = Client(
            user_id=self.user,
            access_token=token((served.data / "secret").read_bytes(), self.user),
            addresses=(served.tcp,),
            store_path=self.path(name),
            device_id=name.encode(),
        )
        await client.__aenter__()
        self._people.stack.push_async_callback(client.close)
        self._open[name] = client
        if online:
            await client.online(PATIENCE_SECONDS)
        return client

    async def close(self, name: str = "phone") -> None:
        """The device's app is gone; its file stays."""
        await self._open.pop(name).close()


class People:
    """Everybody of one test; all devices are closed at its end."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self.folder = folder / os.urandom(4).hex()
        self.stack = AsyncExitStack()

    async def __aenter__(self) -> "People":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()

    def persons(self, count: int) -> list[Person]:
        return [Person(self) for _ in range(count)]


Run = Callable[[Callable[[People], Coroutine[Any, Any, None]]], None]


def over(served: Served, folder: Path) -> Run:
    """Carries a case out among people of its own, whose devices keep their files in ``folder``."""

    def go(case: Callable[[People], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with People(served, folder) as people:
                await case(people)

        asyncio.run(main())

    return go


async def listing(client: RawClient, limit: int = 0) -> list[SessionEntry]:
    """The list, once it knows everything that is in the mailbox now: the projection follows by itself."""
    known = (await client.ask(Ping(client_time=1), Pong)).watermark
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found, projected_through = await listed_now(client, limit)
            if projected_through >= known:
                return found
            await asyncio.sleep(0.01)


async def listed_now(client: RawClient, limit: int = 0) -> tuple[list[SessionEntry], int]:
    """Every page of a list under one revision, and how far it knows the mailbox; no page is empty but the only one."""
    found: list[SessionEntry] = []
    revision, after = 0, None
    while True:
        batch = await client.ask(
            PullSessionList(revision=revision, after=after, limit=limit), SessionListBatch
        )
        assert revision in (0, batch.revision)
        assert batch.conversations or not found
        found += batch.conversations
        revision, after = batch.revision, batch.after
        if after is None:
            return found, batch.projected_through


async def badge(target: Target, user: int, device: bytes = b"badge") -> int:
    """What AUTH_OK tells of everything unread, which is not 0; it waits for that only a moment, and says 0 then."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async with await RawClient.log_in(target, user, device=device) as client:
                if client.auth_ok.badge:
                    return client.auth_ok.badge


async def seen(client: Client, conversation_id: bytes) -> Conversation:
    """A conversation as the device shows it once everything is here."""
    await client.sync(PATIENCE_SECONDS)
    await client.listed(PATIENCE_SECONDS)
    row = await client.conversation(conversation_id)
    assert row is not None, "the conversation is not in the list"
    return row


async def unread(client: Client, conversation_id: bytes) -> int:
    """Exact unread."""
    row = await seen(client, conversation_id)
    assert row.unread_exact, row
    return row.unread


async def arrived(client: Client, conversation_id: bytes, seq: int) -> None:
    """Wait until the mailbox brought conversation_seq ``seq``."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            await client.sync(PATIENCE_SECONDS)
            row = await client.conversation(conversation_id)
            if row is not None and row.newest_seq >= seq:
                return
            await asyncio.sleep(0.02)


def text_of(row: Conversation) -> str | None:
    """The preview's text."""
    if row.preview is None or row.preview.body is None:
        return None
    return row.preview.body.decode()
