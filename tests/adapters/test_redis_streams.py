"""Streams that end, stay silent or say too much: what is unanswered is ReplyLost, and the connection is made again."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import hiredis
import pytest

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig, RedisConnection
from qim.adapters.redis.first_exchange import QUESTIONS
from qim.adapters.redis.outcomes import ReplyLost
from tests.adapters.connected import HASHES, SCRIPTS, made, opened, until

Talk = Callable[[hiredis.Reader, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def served(path: Path, talk: Talk, run_ids: Sequence[bytes] = (b"a" * 40,)) -> asyncio.Server:
    """A stand-in that completes the first exchange and then talks as told."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        info = b"role:master\r\nrun_id:" + run_ids[-1] + b"\r\n"
        answers = {b"INFO": b"$%d\r\n%b\r\n" % (len(info), info), b"CONFIG": b"*0\r\n"}
        for question in QUESTIONS:
            await asked(commands, reader)
            writer.write(answers.get(bytes(question[0]), b"$-1\r\n"))  # type: ignore[arg-type]
        for name in SCRIPTS:
            await asked(commands, reader)
            writer.write(b"$40\r\n%b\r\n" % HASHES[name])
        try:
            await talk(commands, reader, writer)
        finally:
            writer.close()

    return await asyncio.start_unix_server(serve, str(path))


async def asked(commands: hiredis.Reader, reader: asyncio.StreamReader) -> object:
    while (command := commands.gets()) is False:
        data = await reader.read(65_536)
        if not data:
            raise ConnectionResetError
        commands.feed(data)
    return command


async def never_again(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def outcomes_from(path: Path, talk: Talk, calls: int, **limits: int) -> list[object]:
    server = await served(path, talk)
    try:
        async with opened(path, **limits) as connection:
            return await connection.call_many([(b"PING",)] * calls)
    finally:
        server.close()


def test_an_overdue_reply_ends_the_connection(tmp_path: Path) -> None:
    async def stall(
        commands: hiredis.Reader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await asked(commands, reader)
        writer.write(b"+PONG\r\n")
        await never_again(reader)

    outcomes = asyncio.run(outcomes_from(tmp_path / "s", stall, 3, call_timeout_ms=50))
    assert outcomes[0] == b"PONG"
    assert [type(outcome) for outcome in outcomes[1:]] == [ReplyLost, ReplyLost]
    assert str(outcomes[1]) == "a reply is overdue"


@pytest.mark.parametrize(
    ("said", "first"),
    [
        (b"+PONG\r\n$5\r\nhal", b"PONG"),  # gone in the middle of a reply
        (b"+PONG\r\n?what\r\n", b"PONG"),  # no reply at all
        (b"", None),
    ],
)
def test_a_broken_stream_loses_what_is_unanswered(
    tmp_path: Path, said: bytes, first: bytes | None
) -> None:
    async def break_off(
        commands: hiredis.Reader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await asked(commands, reader)
        writer.write(said)
        await writer.drain()

    outcomes = asyncio.run(outcomes_from(tmp_path / "s", break_off, 2))
    if first is not None:
        assert outcomes.pop(0) == first
    assert all(isinstance(outcome, ReplyLost) for outcome in outcomes)


def test_a_reply_too_many_ends_the_connection(tmp_path: Path) -> None:
    async def chatter(
        commands: hiredis.Reader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await asked(commands, reader)
        writer.write(b"+PONG\r\n+MORE\r\n")
        await never_again(reader)

    async def run() -> None:
        server = await served(tmp_path / "s", chatter)
        async with opened(tmp_path / "s") as connection:
            assert await connection.call(b"PING") == b"PONG"
            await until(lambda: connection.connections_made > 1)
        server.close()

    asyncio.run(run())


def test_the_pause_between_attempts_grows_to_its_bound() -> None:
    connection = made(Path("nowhere"), backoff_first_ms=10, backoff_max_ms=1_000)
    for failures, most in ((1, 0.01), (2, 0.02), (5, 0.16), (8, 1.0), (10_000, 1.0)):
        pauses = [connection._backoff_s(failures) for _ in range(50)]
        assert most / 2 <= min(pauses) <= max(pauses) <= most
        assert len(set(pauses)) > 1, "many processes must not come back at one moment"


def test_a_callback_that_raises_is_heard_of(tmp_path: Path) -> None:
    async def hang_up(
        commands: hiredis.Reader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        run_ids.append(b"b" * 40)

    def broken(run_id: bytes, incarnation_key: bytes) -> None:
        raise RuntimeError(run_id.decode())

    async def run() -> None:
        heard: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: heard.append(context["exception"]))
        server = await served(tmp_path / "s", hang_up, run_ids)
        config = ConnectionConfig(address=StoreAddress(unix_path=str(tmp_path / "s")))
        connection = RedisConnection(
            config, scripts=SCRIPTS, hashes=HASHES, on_incarnation_changed=broken
        )
        connection.open()
        await until(lambda: bool(heard))
        assert str(heard[0]) == "b" * 40
        await connection.close()
        server.close()

    run_ids = [b"a" * 40]
    asyncio.run(run())
