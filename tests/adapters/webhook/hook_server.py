"""A real HTTP server on loopback whose path says how it behaves; HTTP/1.1 by hand, so that it can misbehave."""

import asyncio
import ssl
from typing import Final

ANSWERS: Final[dict[str, bytes]] = {
    "/allow": b"HTTP/1.1 204 No Content\r\n\r\n",
    "/ok": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "/299": b"HTTP/1.1 299 Fine\r\nContent-Length: 0\r\n\r\n",
    "/reject": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nbad",
    "/redirect": b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /ok\r\nContent-Length: 0\r\n\r\n",
    "/400": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "/401": b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
    "/404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "/429": b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n",
    "/500": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
    "/503": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "/garbage": b"\x16\x03\x01 this is no HTTP at all\r\n\r\n\x00\xff",
    "/odd-status": b"HTTP/1.1 2OO OK\r\nContent-Length: 0\r\n\r\n",
    "/huge-header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "/half": b"HTTP/1.1 20",
    "/nothing": b"",
}
HANGING: Final = ("/slow", "/slow-line", "/endless")


class Request:
    """What came."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body


class HookServer:
    """``requests`` in the order they came; ``connections`` ever accepted."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.close_after: int | None = None
        """Answers on a connection before the server closes it, without a word in the headers."""
        self.held: list[asyncio.StreamWriter] = []
        self.release = asyncio.Event()
        self._came = asyncio.Condition()
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def url(self, path: str) -> str:
        scheme = "https" if self._tls else "http"
        host = "localhost" if self._tls else "127.0.0.1"
        return f"{scheme}://{host}:{self.port}{path}"

    async def came(self, count: int) -> None:
        """Until so many requests are here."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.requests) >= count)

    async def close(self) -> None:
        assert self._server is not None
        self.release.set()
        self._server.close()
        for writer in self.held:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.held.append(writer)
        answered = 0
        try:
            while await self._one(reader, writer):
                answered += 1
                if self.close_after is not None and answered >= self.close_after:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split(" ")[1]
        pairs = [line.split(": ", 1) for line in head[1:] if line]
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        async with self._came:
            self.requests.append(Request(path, headers, body))
            self._came.notify_all()
        if path == "/held":
            await self.release.wait()
            path = "/ok"
        if path in HANGING:
            if path == "/slow-line":
                writer.write(b"HTTP/1.1 200 OK\r\nX-")
            elif path == "/endless":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\nabc")
            await writer.drain()
            await reader.read()
            return False
        writer.write(ANSWERS[path])
        await writer.drain()
        return path not in ("/garbage", "/half", "/nothing", "/odd-status", "/huge-header")
