"""A scripted server and devices of the SDK that are all the same one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from qim.client import Client
from qim.core.client.vocabulary import ClientConfig
from qim.core.ports.local_store import LocalMessage
from tests.client.scripted_server import USER, ScriptedServer

Scene = Callable[[ScriptedServer, Callable[[], Client]], Awaitable[None]]


def play(scene: Scene, tmp_path: Path) -> None:
    """A scripted server, and devices that are all the same one."""

    async def run() -> None:
        async with ScriptedServer() as server, asyncio.timeout(60):
            await scene(server, lambda: client(server, tmp_path / "device.db"))

    asyncio.run(run())


def client(server: ScriptedServer, store: Path) -> Client:
    config = ClientConfig(
        user_id=USER,
        device_id=b"d",
        access_token="token",
        addresses=(server.address,),
        backoff_min_ms=1,
        backoff_max_ms=5,
    )
    return Client(
        user_id=USER,
        access_token="token",
        addresses=(server.address,),
        store_path=store,
        config=config,
    )


async def first(messages: int, device: Client) -> list[LocalMessage]:
    found: list[LocalMessage] = []
    async for message in device.messages():
        found.append(message)
        if len(found) == messages:
            return found
    raise AssertionError("the client ended")
