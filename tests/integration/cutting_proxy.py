"""A TCP proxy that understands frames of the server and can swallow one and cut: how an answer gets lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from qim.core.contract.wire import FRAME_BYTES_MAX, FrameDecoder, RawFrame, encode_raw

CHUNK_BYTES = 65536

Swallow = Callable[[RawFrame], bool]
"""Asked for each frame of the server: True swallows it and cuts both sides."""


async def _upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()


async def _downstream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallow: Swallow
) -> None:
    decoder = FrameDecoder(FRAME_BYTES_MAX)
    while chunk := await reader.read(CHUNK_BYTES):
        for raw in decoder.feed(chunk):
            if swallow(raw):
                return
            writer.write(
                encode_raw(
                    raw.opcode, raw.body, flags=raw.flags, stream=raw.stream, request=raw.request
                )
            )
        await writer.drain()


@asynccontextmanager
async def cutting_proxy(tcp: str, swallow: Swallow) -> AsyncIterator[str]:
    """Its own host:port, forwarding to ``tcp``; every connection is cut where ``swallow`` says so."""
    host, _, port = tcp.rpartition(":")
    open_pairs: set[asyncio.Task[None]] = set()

    async def serve(near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_pairs.add(task)
        far_reader, far = await asyncio.open_connection(host, int(port))
        ways = [
            asyncio.create_task(_upstream(near_reader, far)),
            asyncio.create_task(_downstream(far_reader, near, swallow)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(*ways, return_exceptions=True)
            near.transport.abort()
            far.transport.abort()
            open_pairs.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        bound = server.sockets[0].getsockname()
        yield f"{bound[0]}:{bound[1]}"
    finally:
        server.close()
        for task in list(open_pairs):
            task.cancel()
        await asyncio.gather(*open_pairs, return_exceptions=True)
        await server.wait_closed()
