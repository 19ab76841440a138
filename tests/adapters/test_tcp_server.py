"""The gateway's sockets over real TCP: what the kernel did not take is told as it grows, and as it shrinks."""

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any

from qim.adapters.tcp.server import BACKLOG_STEP_BYTES, TcpServer
from qim.core.contract.params import DEFAULT
from qim.core.ports.sockets import Accepted, Backlog, SocketClosed, SocketEvent, Write
from tests.adapters.conftest import NewLoop

PIECE = bytes(1024)
WAIT_SECONDS_MAX = 20.0


class Heard:
    """What the server posted, and a way to wait for the next of it."""

    def __init__(self) -> None:
        self.events: list[SocketEvent] = []
        self._more = asyncio.Event()

    def post(self, event: SocketEvent) -> None:
        self.events.append(event)
        self._more.set()

    def backlogs(self) -> list[int]:
        return [event.bytes_queued for event in self.events if isinstance(event, Backlog)]

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not holds():
                self._more.clear()
                await self._more.wait()


async def connected(server: TcpServer, heard: Heard) -> socket.socket:
    """A client that reads nothing by itself, with as small a kernel buffer as there is."""
    host, _, port = (await server.listen("127.0.0.1", 0)).rpartition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    await heard.until(lambda: any(isinstance(event, Accepted) for event in heard.events))
    return client


async def read(client: socket.socket, size: int) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while size:
            got = len(await loop.sock_recv(client, min(size, 65_536)))
            assert got, "the server closed"
            size -= got


async def grown_and_drained() -> None:
    heard = Heard()
    server = TcpServer(heard.post, lambda: 0)
    client = await connected(server, heard)
    written = 0
    while len(heard.backlogs()) < 20:
        server.write(Write(conn=1, data=PIECE), None)
        written += len(PIECE)
        assert written < 64 * 1024 * 1024, "the kernel takes everything"
    told = heard.backlogs()
    assert told[0] <= BACKLOG_STEP_BYTES + len(PIECE), "the first bytes that wait are told"
    steps = [after - before for before, after in itertools.pairwise(told)]
    assert max(steps) <= BACKLOG_STEP_BYTES + len(PIECE)

    # A reader that takes a part, and nothing more is written: the part is told all the same.
    await read(client, written - told[-1] // 2)
    await heard.until(lambda: heard.backlogs()[-1] < told[-1])
    await read(client, told[-1] // 2)
    await heard.until(lambda: heard.backlogs()[-1] == 0)
    client.close()
    await heard.until(lambda: isinstance(heard.events[-1], SocketClosed))
    assert server.open_streams == 0
    server.stop_accepting()


def test_a_backlog_is_told_in_small_steps_both_ways(new_loop: NewLoop) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(grown_and_drained())


def test_the_step_is_small_beside_what_cuts_a_reader() -> None:
    assert DEFAULT.outbound_bytes_max >= 16 * BACKLOG_STEP_BYTES
