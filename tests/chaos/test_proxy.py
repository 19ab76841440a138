"""The proxy does to a stream what it says, and nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from chaos.proxy import Direction, Proxy

WAIT = 10.0


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[Proxy, list[bytes]]]:
    """A proxy before a server that answers what it hears; what it heard."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            heard.append(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = Proxy("echo", "127.0.0.1", server.sockets[0].getsockname()[1])
    await proxy.start()
    try:
        yield proxy, heard
    finally:
        await proxy.close()
        server.close()


def told(work: Callable[[Proxy, list[bytes]], Awaitable[None]]) -> None:
    async def main() -> None:
        async with echo() as (proxy, heard), asyncio.timeout(WAIT):
            try:
                await work(proxy, heard)
            finally:
                await hang_up()

    asyncio.run(main())


DIALLED: list[asyncio.StreamWriter] = []


async def dial(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    stream = await asyncio.open_connection("127.0.0.1", proxy.port)
    DIALLED.append(stream[1])
    return stream


async def hang_up() -> None:
    while DIALLED:
        writer = DIALLED.pop()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def say(
    stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], text: bytes
) -> bytes | None:
    """The echo; None while it does not come."""
    stream[1].write(text)
    return await hear(stream, len(text))


async def hear(
    stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], size: int
) -> bytes | None:
    try:
        return await asyncio.wait_for(stream[0].readexactly(size), 0.2)
    except TimeoutError:
        return None


def test_it_passes_both_ways() -> None:
    async def work(proxy: Proxy, heard: list[bytes]) -> None:
        assert await say(await dial(proxy), b"hello") == b"hello"
        assert proxy.accepted == 1

    told(work)


def test_one_direction_held_keeps_the_other_flowing() -> None:
    async def work(proxy: Proxy, heard: list[bytes]) -> None:
        stream = await dial(proxy)
        assert await say(stream, b"one") == b"one"
        proxy.hold(Direction.BACK)
        assert await say(stream, b"two") is None
        assert b"".join(heard) == b"onetwo", "the question went through, its answer is held"
        proxy.passes()
        assert await asyncio.wait_for(stream[0].readexactly(3), WAIT) == b"two"
        proxy.hold(Direction.THERE)
        assert await say(stream, b"six") is None
        assert b"".join(heard) == b"onetwo"
        proxy.passes()
        assert await asyncio.wait_for(stream[0].readexactly(3), WAIT) == b"six"

    told(work)


def test_a_cut_resets_and_refuses_until_it_passes() -> None:
    async def work(proxy: Proxy, heard: list[bytes]) -> None:
        reader, writer = await dial(proxy)
        assert await say((reader, writer), b"one") == b"one"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        again, _ = await dial(proxy)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await again.readexactly(1)
        proxy.passes()
        assert await say(await dial(proxy), b"two") == b"two"
        assert proxy.resets == 1

    told(work)


def test_a_delay_keeps_order() -> None:
    async def work(proxy: Proxy, heard: list[bytes]) -> None:
        proxy.delay_ms = 20
        reader, writer = await dial(proxy)
        for number in range(5):
            writer.write(b"%d" % number)
            await asyncio.sleep(0)
        assert await asyncio.wait_for(reader.readexactly(5), WAIT) == b"01234"

    told(work)


def test_the_end_of_one_side_is_the_end_of_the_other() -> None:
    async def work(proxy: Proxy, heard: list[bytes]) -> None:
        reader, writer = await dial(proxy)
        assert await say((reader, writer), b"one") == b"one"
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), WAIT) == b""

    told(work)
