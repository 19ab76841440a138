"""A stand-in that speaks just enough RESP to be connected to, for what no real server can be made to show."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import hiredis

from qim.adapters.redis.address import StoreAddress

GOOD_INFO: Final = {
    "redis_version": "7.0.0",
    "redis_mode": "standalone",
    "run_id": "a" * 40,
    "role": "master",
}
GOOD_SETTINGS: Final = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
}


def info(*further: str, **fields: str) -> bytes:
    """The text of INFO server; a field that is "" is absent."""
    lines = [f"{name}:{value}" for name, value in (GOOD_INFO | fields).items() if value]
    return "\r\n".join(["# Server", *lines, *further, ""]).encode()


class StandIn:
    """Answers as told and remembers what it was asked."""

    def __init__(
        self, *, info_text: bytes, settings: dict[str, str] | None = None, script: bytes = b"*0\r\n"
    ) -> None:
        self._info = info_text
        self._settings = GOOD_SETTINGS | (settings or {})
        self._script = script
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self.connections: list[list[bytes]] = []
        """What was asked, a list a connection."""

    @property
    def asked(self) -> list[bytes]:
        """What was asked, on whichever connection."""
        return [word for connection in self.connections for word in connection]

    def answer(self, words: list[bytes]) -> bytes:
        match words[0]:
            case b"INFO":
                return bulk(self._info)
            case b"AUTH":
                return b"+OK\r\n"
            case b"GET":
                return b"$-1\r\n"
            case b"SCRIPT":
                return bulk(hashlib.sha1(words[2]).hexdigest().encode())
            case b"CONFIG":
                value = self._settings.get(words[2].decode(), "")
                return b"*2\r\n" + bulk(words[2]) + bulk(value.encode())
            case b"EVALSHA":
                return self._script
        return b"-ERR unknown command\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        asked: list[bytes] = []
        self.connections.append(asked)
        self._open[writer] = asyncio.current_task()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    asked.append(command[0])
                    writer.write(self.answer(command))
        writer.close()

    async def hang_up(self) -> None:
        """End every connection, and wait until each has ended."""
        for writer in self._open:
            writer.close()
        await asyncio.gather(*(task for task in self._open.values() if task is not None))


@asynccontextmanager
async def standing_in(server: StandIn) -> AsyncIterator[StoreAddress]:
    """Its address, while it serves."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    try:
        yield StoreAddress(host="127.0.0.1", port=listening.sockets[0].getsockname()[1])
    finally:
        listening.close()
        await server.hang_up()


def bulk(text: bytes) -> bytes:
    """RESP's bulk string."""
    return b"$%d\r\n%b\r\n" % (len(text), text)
