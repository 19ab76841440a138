"""A peer made of bare sockets: it says what a test wants, reads when a test wants, and ends in the middle of anything."""

import asyncio
import socket

from qim.adapters.rpc.frames import (
    Control,
    FrameReader,
    control_kind,
    hello_frame,
    read_hello,
)

FRAME_BYTES_MAX = 1 << 24


class RawConnection:
    """One stream."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._payloads: list[bytes] = []

    @classmethod
    async def dial(cls, address: str) -> "RawConnection":
        host, _, port = address.rpartition(":")
        stream = socket.socket()
        stream.setblocking(False)
        await asyncio.get_running_loop().sock_connect(stream, (host, int(port)))
        return cls(stream)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.stream, data)

    async def receive(self) -> bytes | None:
        """The next payload; None: the stream ended."""
        while not self._payloads:
            async with asyncio.timeout(20):
                data = await self.bytes()
            if not data:
                return None
            self._payloads += self._reader.feed(data)
        return self._payloads.pop(0)

    async def bytes(self) -> bytes:
        """Whatever is there; b"" at the end, however it came."""
        try:
            return await asyncio.get_running_loop().sock_recv(self.stream, 65_536)
        except ConnectionError:
            return b""

    async def greet(self, role: str, address: str) -> Control | None:
        """Say HELLO; which control frame came back."""
        await self.send(hello_frame(Control.HELLO, role, address))
        payload = await self.receive()
        return None if payload is None else control_kind(payload)

    async def welcome(self, role: str, address: str) -> str:
        """Hear HELLO and say WELCOME; the address that was said."""
        payload = await self.receive()
        assert payload is not None and control_kind(payload) is Control.HELLO
        await self.send(hello_frame(Control.WELCOME, role, address))
        return read_hello(payload).address

    def close(self) -> None:
        self.stream.close()


class RawListener:
    """Accepts when asked to."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Small before listening: what is accepted inherits it, and a reader that stops is felt soon.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(8)
        self._socket.setblocking(False)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    async def accept(self) -> RawConnection:
        async with asyncio.timeout(20):
            stream, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        stream.setblocking(False)
        return RawConnection(stream)

    def close(self) -> None:
        self._socket.close()
