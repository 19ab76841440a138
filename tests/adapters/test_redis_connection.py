"""One multiplexed connection: the n-th reply is the n-th call's, whatever callers and servers do."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from msgspec.structs import replace

from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.private_valkey import PrivateValkey
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.connection import ConnectionConfig, RedisConnection
from qim.adapters.redis.first_exchange import QUESTIONS
from qim.adapters.redis.layout import INCARNATION_KEY, Call
from qim.adapters.redis.outcomes import (
    NotConnected,
    NotSent,
    ReplyLost,
    ServerError,
    StoreResetError,
    TooManyInFlight,
)
from qim.adapters.redis.reply_pipeline import ReplyPipeline
from tests.adapters.connected import HASHES, READY_MS, SCRIPTS, ask, made, opened, until
from tests.adapters.store.stand_in import StandIn, info, standing_in


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataDirectory]:
    with DataDirectory(tmp_path_factory.mktemp("d")) as directory:
        yield directory


@pytest.fixture(scope="module")
def shared_store(directory: DataDirectory) -> Iterator[PrivateValkey]:
    store = PrivateValkey.start(directory)
    yield store
    store.stop()


@pytest.fixture
def store(shared_store: PrivateValkey) -> PrivateValkey:
    ask(shared_store, b"FLUSHALL")
    return shared_store


# Calls -----------------------------------------------------------------------------------------------


def test_calls_batches_and_scripts(store: PrivateValkey) -> None:
    async def run() -> None:
        async with opened(store.socket_path) as connection:
            every_byte = bytes(range(256))
            assert await connection.call(b"SET", b"k", every_byte) == b"OK"
            assert await connection.call(b"GET", b"k") == every_byte
            with pytest.raises(ServerError) as refused:
                await connection.call(b"HGET", b"k", b"f")
            assert refused.value.code == "WRONGTYPE"
            replies = await connection.call_many(
                [(b"GET", b"k"), (b"HGET", b"k", b"f"), (b"GET", 7)]
            )
            assert replies[0] == every_byte
            assert isinstance(replies[1], ServerError)
            assert replies[2] is None
            calls = [Call("tag", [b"k%d" % n], [b"%d" % n]) for n in range(100)]
            assert await connection.call_scripts(calls, run_id=connection.run_id) == [
                [b"k%d" % n, b"%d" % n] for n in range(100)
            ]

    asyncio.run(run())


def test_what_was_sent_in_one_turn_goes_out_in_one_write(store: PrivateValkey) -> None:
    async def run() -> None:
        async with opened(store.socket_path) as connection:
            before = ask(store, b"INFO", b"stats")
            many = [connection.call(b"ECHO", b"%d" % n) for n in range(50)]
            assert await asyncio.gather(*many) == [b"%d" % n for n in range(50)]
            after = ask(store, b"INFO", b"stats")
        assert isinstance(before, bytes)
        assert isinstance(after, bytes)
        reads = [
            int(said.partition(b"total_reads_processed:")[2].split()[0]) for said in (before, after)
        ]
        # one for our calls, the rest for the two questions
        assert reads[1] - reads[0] <= 4

    asyncio.run(run())


def test_limits_refuse_without_sending(store: PrivateValkey) -> None:
    async def run() -> None:
        async with opened(store.socket_path, inflight_calls_max=10) as connection:
            with pytest.raises(TooManyInFlight):
                connection.send([(b"INCR", b"n")] * 11)
            futures = connection.send([(b"INCR", b"n")] * 10)
            with pytest.raises(TooManyInFlight):
                connection.send([(b"INCR", b"n")])
            assert [await future for future in futures] == list(range(1, 11))
            assert await connection.call(b"GET", b"n") == b"10"

    asyncio.run(run())


def test_bytes_of_one_turn_count_against_their_limit(store: PrivateValkey) -> None:
    async def run() -> None:
        async with opened(store.socket_path, buffered_bytes_max=10_000) as connection:
            first = connection.send([(b"ECHO", b"x" * 20_000)])[0]
            assert connection.buffered_bytes > 20_000
            with pytest.raises(TooManyInFlight, match="bytes wait"):
                connection.send([(b"ECHO", b"y")])
            assert await first == b"x" * 20_000
            assert connection.buffered_bytes == 0
            assert await connection.call(b"ECHO", b"y") == b"y"

    asyncio.run(run())


def test_cancelled_callers_never_shift_a_reply(store: PrivateValkey) -> None:
    chance = random.Random(5)

    async def caller(connection: RedisConnection, name: int, wrong: list[object]) -> None:
        for n in range(60):
            tag = b"%d:%d" % (name, n)
            if chance.random() < 0.5:
                reply = await connection.call(b"ECHO", tag)
                right: object = tag
            else:
                (reply,) = await connection.call_scripts([Call("tag", [tag], [tag])])
                right = [tag, tag]
            if reply != right:
                wrong.append((tag, reply))

    async def run() -> None:
        wrong: list[object] = []
        cancelled = 0
        async with opened(store.socket_path) as connection:
            tasks = [asyncio.create_task(caller(connection, n, wrong)) for n in range(200)]
            waiting = set(tasks)
            while waiting:
                victims = [task for task in tasks if not task.done() and chance.random() < 0.01]
                for task in victims:
                    cancelled += task.cancel()
                _, waiting = await asyncio.wait(waiting, timeout=0)
            assert await connection.call(b"ECHO", b"last") == b"last"
            assert connection.connections_made == 1
        assert cancelled > 0
        assert not wrong

    asyncio.run(run())


# Which server ----------------------------------------------------------------------------------------


def test_the_first_exchange_tells_run_and_incarnation(store: PrivateValkey) -> None:
    ask(store, b"SET", INCARNATION_KEY, b"i" * 16)

    async def run() -> None:
        async with opened(store.socket_path) as connection:
            run_id, _, history = connection.run_id.partition(b".")
            assert run_id == store.run_id.encode()
            assert history in str(ask(store, b"INFO", b"replication")).encode()
            assert connection.incarnation_key == b"i" * 16
            assert b"run_id:" + run_id in connection.facts.info

    asyncio.run(run())


def test_every_connection_asks_for_run_and_incarnation_before_anything_else() -> None:
    """Also the tenth, also with callers that wait to be first."""

    async def eager(connection: RedisConnection, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(NotConnected):
                connection.send([(b"EVALSHA", b"0" * 40, 0)])
            await asyncio.sleep(0)

    async def run() -> None:
        server = StandIn(info_text=info())
        async with standing_in(server) as address:
            secret = replace(address, username="u", password="p")
            connection = RedisConnection(
                ConnectionConfig(address=secret, backoff_first_ms=1, inflight_calls_max=8),
                scripts=SCRIPTS,
                hashes=HASHES,
            )
            connection.open()
            stop = asyncio.Event()
            pushing = asyncio.create_task(eager(connection, stop))
            for made in range(1, 11):
                await until(lambda made=made: connection.connections_made == made)  # type: ignore[misc]
                assert connection._pipeline is not None
                connection._pipeline.abort("the test")
            stop.set()
            await pushing
            await connection.close()
        assert len(server.connections) >= 10
        for asked_there in server.connections:
            first = [b"AUTH", *(question[0] for question in QUESTIONS), b"SCRIPT", b"SCRIPT"]
            assert asked_there[: len(first)] == first[: len(asked_there)]

    asyncio.run(run())


def test_a_call_for_another_run_is_not_sent(store: PrivateValkey) -> None:
    async def run() -> None:
        async with opened(store.socket_path) as connection:
            other = b"0" * 40
            with pytest.raises(StoreResetError) as refused:
                await connection.call(b"SET", b"k", b"v", run_id=other)
            assert (refused.value.expected, refused.value.present) == (other, connection.run_id)
            with pytest.raises(StoreResetError):
                await connection.call_many([(b"SET", b"k", b"v")], run_id=other)
            with pytest.raises(StoreResetError):
                await connection.call_scripts([Call("count", [b"k"], [b"v"])], run_id=other)
            assert await connection.call(b"EXISTS", b"k", run_id=connection.run_id) == 0

    asyncio.run(run())


def test_a_script_that_was_forgotten_is_not_sent_again_where_its_connection_is_gone(
    store: PrivateValkey,
) -> None:
    """Behind another one there may be another run, which the call was not meant for."""

    async def run() -> None:
        async with opened(store.socket_path) as connection:
            ask(store, b"SCRIPT", b"FLUSH")
            pipeline = connection._pipeline
            assert pipeline is not None
            received = pipeline.data_received

            def last(data: bytes) -> None:
                received(data)
                pipeline.abort("gone with the answer")

            pipeline.data_received = last  # type: ignore[method-assign]
            (answer,) = await connection.call_scripts([Call("count", [b"h"], [b"f"])])
            assert isinstance(answer, NotConnected)
        assert ask(store, b"HLEN", b"h") == 0

    asyncio.run(run())


def test_forgotten_scripts_are_loaded_again_and_each_call_runs_once(store: PrivateValkey) -> None:
    async def run() -> None:
        async with opened(store.socket_path) as connection, opened(store.socket_path) as other:
            flushes = 0

            async def flusher(stop: asyncio.Event) -> None:
                nonlocal flushes
                while not stop.is_set():
                    assert await other.call(b"SCRIPT", b"FLUSH") == b"OK"
                    flushes += 1

            async def writer(name: int) -> None:
                for n in range(20):
                    fields = [b"%d:%d:%d" % (name, n, item) for item in range(10)]
                    calls = [Call("count", [b"h"], [field]) for field in fields]
                    # 1: this field was new, so no call ran twice
                    answers = await connection.call_scripts(calls)
                    for place, answer in enumerate(answers):
                        while isinstance(answer, ServerError) and answer.code == "NOSCRIPT":
                            (answer,) = await connection.call_scripts([calls[place]])
                        assert answer == 1

            stop = asyncio.Event()
            flushing = asyncio.create_task(flusher(stop))
            await asyncio.gather(*(writer(name) for name in range(8)))
            stop.set()
            await flushing
            assert await connection.call(b"HLEN", b"h") == 8 * 20 * 10
            assert flushes
            assert connection.scripts_reloaded
            assert connection.connections_made == 1

    asyncio.run(run())


# A server that dies and comes back --------------------------------------------------------------------


def test_a_server_killed_under_load_answers_reply_lost_and_the_next_run_is_noticed(
    tmp_path: Path,
) -> None:
    with DataDirectory(tmp_path / "d") as directory:
        first = PrivateValkey.start(directory)
        seen: list[tuple[bytes, bytes]] = []
        answered: list[int] = []
        lost: list[int] = []
        run_id = b""

        async def caller(connection: RedisConnection, name: int) -> None:
            for n in range(1_000_000):
                try:
                    reply = await connection.call(b"INCR", b"n%d" % name, run_id=run_id)
                except ReplyLost:
                    lost.append(name)
                    return
                except NotSent:
                    return
                assert reply == n + 1
                answered.append(name)

        async def run() -> PrivateValkey:
            nonlocal run_id
            config = ConnectionConfig(address=StoreAddress(unix_path=str(first.socket_path)))
            connection = RedisConnection(
                config,
                scripts=SCRIPTS,
                hashes=HASHES,
                on_incarnation_changed=lambda run, key: seen.append((run, key)),
            )
            connection.open()
            await connection.ready(READY_MS)
            run_id = connection.run_id
            callers = [asyncio.create_task(caller(connection, name)) for name in range(64)]
            await until(lambda: len(answered) > 2_000)
            os.kill(first.pid, signal.SIGKILL)
            await asyncio.gather(*callers)
            first.stop()
            with pytest.raises(NotConnected):
                await connection.call(b"PING")
            second = PrivateValkey.start(directory)
            await connection.ready(READY_MS)
            assert connection.run_id.startswith(second.run_id.encode() + b".")
            assert connection.run_id != run_id
            assert seen == [(connection.run_id, b"")]
            with pytest.raises(StoreResetError):
                await connection.call(b"INCR", b"n0", run_id=run_id)
            assert await connection.call(b"ECHO", b"again", run_id=connection.run_id) == b"again"
            await connection.close()
            return second

        second = asyncio.run(run())
        second.stop()
        assert lost


def test_no_server_is_said_in_time_and_its_coming_is_noticed(
    tmp_path: Path, store: PrivateValkey
) -> None:
    async def run() -> None:
        path = tmp_path / "later"
        connection = made(path)
        connection.open()
        with pytest.raises(NotConnected, match="No such file"):
            await connection.ready(50)
        with pytest.raises(NotConnected):
            connection.send([(b"PING",)])
        path.symlink_to(store.socket_path)
        await connection.ready(READY_MS)
        assert await connection.call(b"PING") == b"PONG"
        await connection.close()
        with pytest.raises(NotConnected):
            await connection.call(b"PING")

    asyncio.run(run())


def test_a_stream_that_ends_before_anything_is_said_is_dialled_again(
    store: PrivateValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by chaos: a store that was killed under its connections; the keeper must not end with them."""
    dial, dials = RedisConnection._dial, []

    async def cut_once(connection: RedisConnection) -> ReplyPipeline:
        pipeline = await dial(connection)
        dials.append(pipeline)
        if len(dials) == 1:
            pipeline.abort("reset by the peer")
        return pipeline

    async def main() -> None:
        monkeypatch.setattr(RedisConnection, "_dial", cut_once)
        async with opened(store.socket_path) as connection:
            assert await connection.call("PING") == b"PONG"
        assert len(dials) == 2

    asyncio.run(main())


def test_a_close_answers_what_is_under_way(store: PrivateValkey) -> None:
    async def run() -> None:
        async with opened(store.socket_path) as connection:
            written = connection.send([(b"BLPOP", b"nothing", 0)])
            await asyncio.sleep(0)  # the flush
            unwritten = connection.send([(b"SET", b"k", b"v")])
            await connection.close()
            assert isinstance(await written[0], ReplyLost)
            assert isinstance(await unwritten[0], NotConnected | ReplyLost)

    asyncio.run(run())


def test_it_runs_on_the_servers_loop_too(store: PrivateValkey) -> None:
    async def run() -> None:
        async with opened(store.socket_path) as connection:
            calls = [Call("tag", [b"k%d" % n], [b"%d" % n]) for n in range(1_000)]
            assert await connection.call_scripts(calls) == [
                [b"k%d" % n, b"%d" % n] for n in range(1_000)
            ]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
