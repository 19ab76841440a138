"""The store port on a real server: exactly one answer a request, and the right kind of it whatever happens."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from qim.adapters.redis.connection import ConnectionConfig
from qim.adapters.redis.outcomes import NotConnected
from qim.adapters.redis.store import RedisStore
from qim.core.ports import store_mailbox as mailbox
from qim.core.ports import store_message as message
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from tests.adapters.store.requests import MARKER, NOW, key, marked, single
from tests.adapters.store.samples import KINDS, sample
from tests.adapters.store.servers import redis_binary, running, socket_of, valkey_binary

DURABLE = ("--appendonly", "yes")


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    binary = valkey_binary() if request.param == "valkey" else redis_binary()
    if binary is None:
        pytest.skip(f"no {request.param}-server on PATH")
    with running(binary, settings=DURABLE) as client:
        yield client


@asynccontextmanager
async def opened(server: redis.Redis, **config: Any) -> AsyncIterator[RedisStore]:
    resets: asyncio.Queue[StoreReset] = asyncio.Queue()
    store = await RedisStore.open(
        ConnectionConfig(unix_path=socket_of(server), **config), on_reset=resets.put_nowait
    )
    store.resets = resets  # type: ignore[attr-defined]
    try:
        yield store
    finally:
        await store.close()


async def ask(store: RedisStore, *requests: Any) -> list[Any]:
    """Submit all in one turn; the answers in the order of the requests."""
    answers: dict[int, Any] = {}
    done = asyncio.Event()

    def answered(place: int, answer: Any) -> None:
        assert place not in answers, "answered twice"
        answers[place] = answer
        if len(answers) == len(requests):
            done.set()

    for place, request in enumerate(requests):
        store.submit(request, lambda answer, place=place: answered(place, answer))  # type: ignore[misc]
    async with asyncio.timeout(30):
        await done.wait()
    return [answers[place] for place in range(len(requests))]


def bound(kind: Any, store_opened: Any, **fields: Any) -> Any:
    return sample(kind, incarnation=store_opened.incarnation, **fields)


OPEN = sample(message.OpenShard)


def test_a_message_through_every_request(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            run_id, _, marker = shard.incarnation.partition(b"/")
            assert (run_id, marker) == (store.connection.run_id, MARKER)
            await ask(store, *[sample(kind) for kind in (message.OpenSource, mailbox.OpenMailbox)])
            for kind in KINDS:
                fields = {"incarnation": shard.incarnation}
                if "incarnation" not in kind.__struct_fields__:  # type: ignore[attr-defined]
                    fields = {}
                (answer,) = await ask(store, sample(kind, **fields))
                assert not isinstance(answer, Failed | Unknown | StoreReset), answer
                assert answer.op == 77

    asyncio.run(main())


def test_requests_of_one_turn_are_one_write_in_order(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            items = [single(n) for n in range(1, 201)]
            requests: list[Any] = []
            for seq, item in enumerate(items, start=1):
                requests.append(bound(message.ReserveAndRecord, shard, op=seq, items=(item,)))
                mark = marked(item, seq, seq)
                requests.append(
                    bound(message.MarkCommitted, shard, op=seq, items=(mark,), applied_to=seq + 1)
                )
            answers = await ask(store, *requests)
            assert [a.op for a in answers] == [r.op for r in requests]
            assert [a.results[0].conversation_seq for a in answers[::2]] == list(range(1, 201))
            assert {type(a) for a in answers[1::2]} == {message.MarkedCommitted}

    asyncio.run(main())


def test_forgotten_scripts_are_loaded_and_sent_again(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            server.script_flush()
            requests = [bound(message.ReserveAndRecord, shard, items=(single(n),)) for n in (1, 2)]
            answers = await ask(store, *requests, *requests)
            kinds = [type(answer.results[0]) for answer in answers]
            assert sorted(kinds, key=str) == [message.Existing] * 2 + [message.Fresh] * 2
            assert store.connection.scripts_reloaded > 0

    asyncio.run(main())


def test_another_run_is_refused_unsent(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            stale = sample(message.ReserveAndRecord, incarnation=b"otherrun/" + MARKER)
            before = server.info("commandstats")
            (answer,) = await ask(store, stale)
            assert answer == StoreReset(op=77, store=StoreRole.MESSAGE)
            assert server.info("commandstats").get("cmdstat_evalsha") == before["cmdstat_evalsha"]
            server.flushall()
            (answer,) = await ask(store, bound(message.ReserveAndRecord, shard))
            assert answer == StoreReset(op=77, store=StoreRole.MESSAGE), "FLUSHALL leaves run_id"

    asyncio.run(main())


def test_no_server_is_failed_and_a_lost_reply_unknown(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server, backoff_first_ms=60_000, backoff_max_ms=60_000) as store:
            (shard,) = await ask(store, OPEN)
            server.execute_command("CLIENT", "PAUSE", "30000", "WRITE")
            waiting = asyncio.ensure_future(
                ask(store, bound(message.ReserveAndRecord, shard), sample(message.ReadFacts))
            )
            for _ in range(5):
                await asyncio.sleep(0)
            assert store.connection._pipeline is not None
            assert store.connection._pipeline.inflight == 2
            server.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await waiting == [Unknown(op=77), Unknown(op=77)]
            (answer,) = await ask(store, OPEN)
            assert answer == Failed(op=77, why=FailReason.UNREACHABLE)

    asyncio.run(main())


def test_memory_that_is_full_is_failed_and_nothing_was_written(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            server.config_set("maxmemory", "1")
            before = server.dbsize()
            answers = await ask(
                store,
                bound(message.ReserveAndRecord, shard),
                bound(message.LookupCommits, shard, dedupe_keys=(key(6),)),
            )
            assert answers[0] == Failed(op=77, why=FailReason.OUT_OF_MEMORY)
            assert answers[1].commits == (None,), "reading goes on"
            assert server.dbsize() == before
            server.config_set("maxmemory", "0")
            (answer,) = await ask(store, bound(message.ReserveAndRecord, shard))
            assert isinstance(answer, message.Reserved)

    asyncio.run(main())


def test_too_large_a_call_is_failed_unsent(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            many = bound(message.LookupCommits, shard, dedupe_keys=(key(1),) * 7_000, now_wall=NOW)
            assert await ask(store, many) == [Failed(op=77, why=FailReason.TOO_LARGE)]

    asyncio.run(main())


def test_data_of_another_kind_under_our_keys_is_unknown(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            server.lpush(b"wp:\0\0\0\3", b"x")
            (answer,) = await ask(store, bound(message.ReadPending, shard))
            assert answer == Unknown(op=77)
            assert "WRONGTYPE" in store.last_error

    asyncio.run(main())


def test_a_restart_is_told_to_both_roles(server: redis.Redis) -> None:
    binary = valkey_binary()
    assert binary is not None

    async def main() -> None:
        async with opened(server, backoff_first_ms=1, backoff_max_ms=5) as store:
            (shard,) = await ask(store, OPEN)
            path = socket_of(server)
            with running(binary, settings=DURABLE) as other:
                # another server takes the place of the first, as after a restart elsewhere
                os.rename(path, path + ".old")
                os.symlink(socket_of(other), path)
                server.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                told = [await store.resets.get() for _ in range(2)]  # type: ignore[attr-defined]
                assert told == [
                    StoreReset(op=None, store=StoreRole.MESSAGE),
                    StoreReset(op=None, store=StoreRole.MAILBOX),
                ]
                (answer,) = await ask(store, bound(message.ReserveAndRecord, shard))
                assert answer == StoreReset(op=77, store=StoreRole.MESSAGE)
                (again,) = await ask(store, OPEN)
                assert again.incarnation != shard.incarnation
                await store.close()

    asyncio.run(main())


def test_closing_answers_what_is_under_way(server: redis.Redis) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            server.execute_command("CLIENT", "PAUSE", "30000", "WRITE")
            waiting = asyncio.ensure_future(ask(store, bound(message.ReserveAndRecord, shard)))
            await asyncio.sleep(0)
            await store.close()
            (answer,) = await waiting
            assert isinstance(answer, Unknown | Failed)
            (answer,) = await ask(store, OPEN)
            assert answer == Failed(op=77, why=FailReason.UNREACHABLE)

    asyncio.run(main())


def test_nobody_there_is_told_in_time() -> None:
    async def main() -> None:
        with pytest.raises(NotConnected):
            await RedisStore.open(
                "no-such-socket", on_reset=lambda reset: None, ready_timeout_ms=10
            )

    asyncio.run(main())
