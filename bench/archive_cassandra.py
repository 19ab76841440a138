"""Archive rows a second of wall clock and of our CPU on a Cassandra or ScyllaDB cluster, by each of the driver's reactors.

    python bench/archive_cassandra.py --contact HOST:PORT [--rows 20000] [--conversations 1000] [--body 100] [--json FILE]

``contact`` (or $QIM_TEST_CASSANDRA) names a cluster on loopback; a keyspace `qim_bench` is made there with one replica, and
dropped at the end. Batches of 512 go one after the other, as of one outbox partition. The servers' CPU is not counted.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from archive import BATCH, PAGE, Span, outbox
from cassandra.io.asyncioreactor import AsyncioConnection

from qim.adapters.cassandra import CassandraArchive, CassandraSettings, session
from qim.adapters.cassandra.schema import create
from qim.adapters.cassandra.settings import hosts_of
from qim.core.contract.entities import decode_stored_record
from qim.core.contract.logvalue import read_outbox
from qim.core.ports.archive import ArchiveRow, ReadArchive, WriteArchive
from qim.core.retention import RetentionPolicy, retained_until

READS = 500


def rows_of(count: int, conversations: int, body: bytes) -> list[ArchiveRow]:
    """As the archiver makes them."""
    rows: list[ArchiveRow] = []
    for stored in outbox(count, conversations, body):
        entry: Any = read_outbox(stored.value)
        record = decode_stored_record(entry.stored)
        rows.append(
            ArchiveRow(
                conversation_id=record.conversation_id,
                conversation_seq=record.conversation_seq,
                message_id=record.message_id,
                outbox_offset=stored.offset,
                retained_until=retained_until(RetentionPolicy(), "default", 0, record.sent_at),
                stored=entry.stored,
            )
        )
    return rows


async def measured(settings: CassandraSettings, rows: list[ArchiveRow]) -> dict[str, float]:
    """Writes, then pages of random conversations."""
    loop = asyncio.get_running_loop()
    archive = CassandraArchive(settings, loop)
    await archive.start()

    async def ask(request: Any) -> Any:
        future: asyncio.Future[Any] = loop.create_future()
        archive.submit(request, future.set_result)
        return await future

    with Span() as writing:
        for first in range(0, len(rows), BATCH):
            batch = tuple(rows[first : first + BATCH])
            end = first + len(batch)
            reply = await ask(WriteArchive(op=first, partition=0, rows=batch, through=end))
            assert reply.reused == (), reply
    dice = random.Random(1)
    times: list[float] = []
    for op in range(READS):
        began = time.perf_counter()
        name = dice.choice(rows).conversation_id
        page = ReadArchive(
            op=op, conversation_id=name, low=-1, high=1 << 63, newest_first=True, limit=PAGE
        )
        assert (await ask(page)).stored
        times.append((time.perf_counter() - began) * 1_000)
    await archive.close()
    times.sort()
    return {**writing.rates(len(rows)), "page_ms_p50": times[READS // 2], "page_ms_p99": times[-5]}


def main() -> int:
    """0, also where no cluster is named and so nothing measured: `make bench` runs on machines without one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--contact", default=os.environ.get("QIM_TEST_CASSANDRA", ""))
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.contact:
        print("no cluster named: --contact HOST:PORT; nothing measured", file=sys.stderr)
        return 0
    settings = CassandraSettings(
        hosts=hosts_of(args.contact),
        keyspace="qim_bench",
        data_centre=os.environ.get("QIM_TEST_CASSANDRA_DC", "datacenter1"),
        replication=1,
        unsafe_dev=True,
        request_timeout_ms=30_000,
    )
    rows = rows_of(args.rows, args.conversations, b"x" * args.body)
    chosen = session.connection_class
    reactors = dict.fromkeys((chosen(), AsyncioConnection))
    figures: dict[str, dict[str, float]] = {}
    for reactor in reactors:
        session.connection_class = lambda reactor=reactor: reactor
        cluster, connected = session.open_session(settings)
        connected.execute("DROP KEYSPACE IF EXISTS qim_bench", timeout=60.0)
        create(connected, settings)
        figures[reactor.__name__] = asyncio.run(measured(settings, rows))
        connected.execute("DROP KEYSPACE qim_bench", timeout=60.0)
        cluster.shutdown()
        told = ", ".join(
            f"{name} {value:,.1f}" for name, value in figures[reactor.__name__].items()
        )
        print(f"{reactor.__name__}: {told}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
