"""CPU of the store's client: redis-py's asyncio pipelines and pools against our multiplexed hiredis connection, in turn.

    python bench/store_client.py [--calls 1000] [--rounds 7] [--batches 1 16 64] [--address HOST:PORT] [--json FILE]

The same EVALSHA calls, encoded beforehand, go over TCP to one server, B of them in flight together: ``multiplexed`` is
qim's connection (one socket, one write a turn of the loop), ``pipeline`` a redis-py pipeline of B, ``pool`` B redis-py calls
at once, each on a connection of its pool, which is how independent callers use redis-py without a batcher in front.
``port`` is the whole of RedisStore.submit: our connection, the codec both ways and a callback a request. CPU is user +
system time of this process, the server is another one. What is compared stands within one round; figures are medians.

The server is a private Valkey of its own, or an empty one at --address, which is emptied again.
"""

import argparse
import asyncio
import functools
import json
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis.asyncio
import uvloop
from _processes import machine, median_of

from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.private_valkey import PrivateValkey
from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.codec import encode
from qim.adapters.redis.layout import Call
from qim.adapters.redis.scripts import script_hashes
from qim.adapters.redis.store import RedisStore
from qim.core.contract import ids
from qim.core.contract.entities import MessageRecord, encode_record
from qim.core.contract.hashing import H
from qim.core.ports.store_message import LookupCommits, OpenShard, ReserveAndRecord, ReserveItem
from qim.core.ports.store_reads import ReadBodies

WALL = 1_800_000_000_000
BODY = b"b" * 100
ITEMS = 8
"""Commits of one ReserveAndRecord, names of one read: what a writer under load batches into one script."""

Requests = Sequence[Any]
Client = Callable[[Requests, list[Call], int], Awaitable[None]]


@functools.cache
def item(number: int) -> ReserveItem:
    """A single chat's commit, a conversation of its own every 64."""
    conversation = ids.single_conversation_id("default", number // 64 + 1, 1 << 32)
    message_id = ids.pack_message_id(WALL, 0, 1, number)
    record = MessageRecord(
        tenant_id="default",
        conversation_id=conversation,
        conversation_kind=1,
        kind=1,
        sender_id=1,
        device_id=b"device",
        client_message_id=number.to_bytes(16, "big"),
        request_digest=b"r" * 16,
        message_id=message_id,
        version=0,
        membership_digest=b"",
        peer_user_id=1 << 32,
        recipients=(),
        delta=None,
        body=BODY,
        custom_type="",
        retention_class=0,
        sent_at=WALL,
        not_after=WALL + 3_600_000,
        trace_id=number,
    )
    return ReserveItem(
        dedupe_key=H("bench.key", number),
        request_digest=b"r" * 16,
        message_id=message_id,
        conversation_id=conversation,
        conversation_kind=1,
        version=0,
        membership_digest=b"",
        single_users=(number // 64 + 1, 1 << 32),
        record=encode_record(record),
        sent_at=WALL,
        not_after=WALL + 3_600_000,
    )


def workloads(calls: int, incarnation: bytes, first: int) -> dict[str, Requests]:
    """Requests by name; ``first`` numbers the first commit, so that every client reserves new ones."""
    bound: dict[str, Any] = {"shard": 1, "epoch": 1, "incarnation": incarnation, "now_wall": WALL}
    items = [item(first + number) for number in range(calls * ITEMS)]
    groups = [items[low : low + ITEMS] for low in range(0, len(items), ITEMS)]
    reserve = [
        ReserveAndRecord(op=op, items=tuple(group), **bound) for op, group in enumerate(groups)
    ]
    lookup = [
        LookupCommits(op=op, dedupe_keys=tuple(one.dedupe_key for one in group), **bound)
        for op, group in enumerate(groups)
    ]
    seqs = [(one.conversation_id, at % 64 + 1, one.message_id) for at, one in enumerate(items)]
    bodies = [
        ReadBodies(op=op, names=tuple(seqs[low : low + ITEMS]))
        for op, low in enumerate(range(0, len(seqs), ITEMS))
    ]
    return {"reserve": reserve, "lookup": lookup, "bodies": bodies}


class Clients:
    """Every client of the comparison, connected."""

    def __init__(self, store: RedisStore, address: StoreAddress) -> None:
        self._store = store
        self._hashes = script_hashes()
        self._redis = redis.asyncio.Redis(
            host=address.host, port=address.port, max_connections=1_024
        )

    def all(self) -> dict[str, Client]:
        """In the order of a round."""
        return {
            "multiplexed": self.multiplexed,
            "pipeline": self.pipeline,
            "pool": self.pool,
            "port": self.port,
        }

    async def multiplexed(self, requests: Requests, calls: list[Call], batch: int) -> None:
        connection = self._store.connection
        for low in range(0, len(calls), batch):
            together = calls[low : low + batch]
            futures = connection.send(
                [
                    (b"EVALSHA", self._hashes[one.script], len(one.keys), *one.keys, *one.args)
                    for one in together
                ],
                run_id=connection.run_id,
            )
            for future in futures:
                _expect(await future)

    async def pipeline(self, requests: Requests, calls: list[Call], batch: int) -> None:
        for low in range(0, len(calls), batch):
            pipeline = self._redis.pipeline(transaction=False)
            for one in calls[low : low + batch]:
                pipeline.evalsha(self._sha(one), len(one.keys), *one.keys, *one.args)
            for reply in await pipeline.execute():
                _expect(reply)

    async def pool(self, requests: Requests, calls: list[Call], batch: int) -> None:
        for low in range(0, len(calls), batch):
            together = calls[low : low + batch]
            replies = await asyncio.gather(
                *(
                    self._redis.evalsha(self._sha(one), len(one.keys), *one.keys, *one.args)
                    for one in together
                )
            )
            for reply in replies:
                _expect(reply)

    async def port(self, requests: Requests, calls: list[Call], batch: int) -> None:
        loop = asyncio.get_running_loop()
        for low in range(0, len(requests), batch):
            together = requests[low : low + batch]
            done: asyncio.Future[None] = loop.create_future()
            left = len(together)

            def answered(reply: Any, done: asyncio.Future[None] = done) -> None:
                nonlocal left
                left -= 1
                if not left:
                    done.set_result(None)

            for request in together:
                self._store.submit(request, answered)
            await done

    def _sha(self, call: Call) -> str:
        return self._hashes[call.script].decode()

    async def close(self) -> None:
        await self._redis.aclose()


def _expect(reply: Any) -> None:
    if not isinstance(reply, list) or reply[0] != b"K":
        raise RuntimeError(f"not measured: {reply!r}")


@contextmanager
def own_server() -> Iterator[StoreAddress]:
    """A private Valkey that listens on a loopback port as a production server does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        tempfile.TemporaryDirectory(prefix="qim-bench-") as folder,
        DataDirectory(Path(folder) / "data") as directory,
    ):
        valkey = PrivateValkey.start(directory, settings={"port": str(port), "bind": "127.0.0.1"})
        try:
            yield StoreAddress(host="127.0.0.1", port=port)
        finally:
            valkey.stop()


async def measure(address: StoreAddress, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of CPU µs a call by workload, batch and client; ``wall`` is that of the round, server included."""
    store = await RedisStore.open(address, on_reset=lambda reset: None)
    if await store.connection.call(b"DBSIZE"):
        raise SystemExit(f"{address} is not empty, and would be emptied")
    clients = Clients(store, address)
    measured: dict[tuple[str, int], list[dict[str, Any]]] = {}
    try:
        for number in range(options.rounds + 1):  # the first warms scripts, pools and caches
            for batch in options.batches:
                round_of = await _round(store, clients, options.calls, batch)
                for workload, figures in round_of.items():
                    if number:
                        measured.setdefault((workload, batch), []).append(figures)
    finally:
        await store.connection.call(b"FLUSHALL")
        await clients.close()
        await store.close()
    return {
        f"{workload} x{batch}": median_of(rounds) for (workload, batch), rounds in measured.items()
    }


async def _round(
    store: RedisStore, clients: Clients, calls: int, batch: int
) -> dict[str, dict[str, Any]]:
    await store.connection.call(b"FLUSHALL")
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    store.submit(OpenShard(op=1, shard=1, epoch=1, fresh_key=b"b" * 16), opened.set_result)
    incarnation = (await opened).incarnation
    found: dict[str, dict[str, Any]] = {}
    for place, (name, client) in enumerate(clients.all().items()):
        first = place * -(-calls * ITEMS // 64) * 64
        for workload, requests in workloads(calls, incarnation, first).items():
            encoded = [encode(request) for request in requests]
            cpu, wall = time.process_time(), time.perf_counter()
            await client(requests, encoded, batch)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            figures = found.setdefault(workload, {})
            figures[f"{name}_cpu_us"] = cpu * 1e6 / calls
            figures[f"{name}_wall_us"] = wall * 1e6 / calls
    for figures in found.values():
        for name in ("pipeline", "pool"):
            figures[f"{name}_ratio"] = figures[f"{name}_cpu_us"] / figures["multiplexed_cpu_us"]
    return found


def table(figures: dict[str, Any]) -> None:
    """CPU µs a call, and how many times ours redis-py takes."""
    names = ("multiplexed", "pipeline", "pool", "port")
    print(
        f"{'CPU us a call':<14}"
        + "".join(f"{name:>13}" for name in names)
        + "   pipeline/ours   pool/ours"
    )
    for what, row in figures.items():
        cells = "".join(f"{row[f'{name}_cpu_us']:>13.1f}" for name in names)
        print(f"{what:<14}{cells}{row['pipeline_ratio']:>15.2f}x{row['pool_ratio']:>11.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--address", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parser_name = redis.asyncio.connection.DefaultParser.__name__
    report: dict[str, Any] = {
        "machine": machine(),
        "redis_py": f"{redis.__version__} with {parser_name}",
    }
    if options.address:
        report["figures"] = uvloop.run(measure(StoreAddress.parse(options.address), options))
    else:
        with own_server() as address:
            report["figures"] = uvloop.run(measure(address, options))
    table(report["figures"])
    text = json.dumps(report, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    else:
        print(text, file=sys.stdout)


if __name__ == "__main__":
    main()
