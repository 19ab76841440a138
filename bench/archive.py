"""Archive rows a second of wall clock and of CPU: the SQLite archive alone, and with the HistoryArchiver in front of it.

    python bench/archive.py [--rows 60000] [--rounds 5] [--conversations 1000] [--body 100] [--json FILE]

``adapter`` writes ready batches; ``archiver`` starts from outbox bytes: decoding, the effective filter, retention, batches,
confirmation, position. ``again`` writes the same rows a second time, as after an Unknown. Every batch is one commit that is
fsynced; rows a core count the CPU of the whole process (loop and database thread), so waiting for the disk is not in it.
Reads are pages of 50 from random places of the archive just written.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _processes import machine, median_of

from qim.adapters.embedded.sqlite_archive import SqliteArchive
from qim.core.archiver import ArchiverConfig, HistoryArchiver
from qim.core.contract import ids
from qim.core.contract.entities import (
    MessageRecord,
    decode_stored_record,
    encode_record,
    stored_record,
)
from qim.core.contract.logvalue import outbox_value
from qim.core.ports.archive import ArchiveRequest, ArchiveRow, ReadArchive, WriteArchive
from qim.core.ports.local import LeaseHeld, Started
from qim.core.ports.log import EndsRead, Fetch, Fetched, ReadEnds, StoredRecord
from qim.core.ports.registry import LeaseRead, ReadLease, Resource, Role
from qim.core.ports.store_history import ArchiveCommitted, ArchiveOpened, CommitArchive, OpenArchive
from qim.core.retention import RetentionPolicy, retained_until

WALL = 1_800_000_000_000
BATCH = 512
READS = 2_000
PAGE = 50
TOPIC = b"t" * 16


def outbox(count: int, conversations: int, body: bytes) -> list[StoredRecord]:
    """Records of many single chats, mixed as a busy shard mixes them."""
    dice = random.Random(1)
    seqs: dict[int, int] = {}
    records: list[StoredRecord] = []
    for number in range(count):
        chat = dice.randrange(conversations)
        seqs[chat] = seqs.get(chat, 0) + 1
        message_id = ids.pack_message_id(WALL + number, 0, 1, 1)
        record = MessageRecord(
            tenant_id="default",
            conversation_id=ids.single_conversation_id("default", chat + 1, chat + 2),
            conversation_kind=1,
            kind=1,
            sender_id=chat + 1,
            device_id=b"device",
            client_message_id=number.to_bytes(16, "big"),
            request_digest=b"r" * 16,
            message_id=message_id,
            version=0,
            membership_digest=b"",
            peer_user_id=chat + 2,
            recipients=(),
            delta=None,
            body=body,
            custom_type="",
            retention_class=0,
            sent_at=WALL + number,
            not_after=WALL + number + 3_600_000,
            trace_id=number,
        )
        value = outbox_value(1, stored_record(seqs[chat], message_id, encode_record(record)))
        records.append(
            StoredRecord(offset=number, append_time=WALL + number, key=message_id, value=value)
        )
    return records


class Span:
    """Wall and CPU of a stretch of work."""

    def __enter__(self) -> "Span":
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self.wall
        self.cpu = time.process_time() - self.cpu

    def rates(self, rows: int) -> dict[str, float]:
        """A second of wall clock, a second of CPU."""
        return {"rows_per_s": rows / self.wall, "rows_per_core_s": rows / self.cpu}


async def asked(archive: SqliteArchive, request: ArchiveRequest) -> Any:
    """One answer."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    archive.submit(request, future.set_result)
    return await future


async def adapter(archive: SqliteArchive, rows: list[ArchiveRow]) -> None:
    """One batch after the other."""
    for op, first in enumerate(range(0, len(rows), BATCH)):
        batch = tuple(rows[first : first + BATCH])
        reply = await asked(
            archive, WriteArchive(op=op, partition=0, rows=batch, through=first + len(batch))
        )
        assert reply.reused == (), reply


class Bench:
    """One HistoryArchiver over an outbox in memory; its position is kept here."""

    def __init__(self, archive: SqliteArchive, records: list[StoredRecord]) -> None:
        self.archive = archive
        self.records = records
        self.machine = HistoryArchiver(ArchiverConfig(), choose=lambda _, __: 0)
        self.loop = asyncio.get_running_loop()
        self.done = self.loop.create_future()
        self.answers: dict[type, Callable[[Any], Any]] = {
            OpenArchive: lambda e: ArchiveOpened(
                op=e.op, incarnation=b"r/m", position=None, filter_epoch=0
            ),
            ReadEnds: lambda e: EndsRead(op=e.op, topic_id=TOPIC, start=0, end=len(records)),
            ReadLease: lambda e: LeaseRead(
                op=e.op, resource=e.resource, epoch=1, owner="", address="",
                barrier_epoch=0, barrier_offset=-1,
            ),
            CommitArchive: self._commit,
            Fetch: self._fetch,
        }  # fmt: skip

    def _commit(self, effect: CommitArchive) -> ArchiveCommitted:
        if effect.to.offset == len(self.records):
            self.done.set_result(None)
        return ArchiveCommitted(op=effect.op)

    def _fetch(self, effect: Fetch) -> Fetched | None:
        if effect.offset == len(self.records):
            return None
        return Fetched(
            op=effect.op,
            topic_id=TOPIC,
            start=0,
            end=len(self.records),
            records=tuple(self.records[effect.offset : effect.offset + effect.limit]),
        )

    def post(self, event: Any) -> None:
        """One step, its effects handed out."""
        for effect in self.machine.step(int(time.monotonic() * 1000), [event]):
            if isinstance(effect, ArchiveRequest):
                self.archive.submit(effect, self.post)
            elif (made := self.answers.get(type(effect))) is not None:
                answer = made(effect)
                if answer is not None:
                    self.loop.call_soon(self.post, answer)

    async def run(self) -> None:
        """Until the position stands at the end."""
        self.post(Started(address="b", wall=WALL))
        resource = Resource(role=Role.ARCHIVER, number=0)
        self.post(
            LeaseHeld(resource=resource, epoch=1, barrier_epoch=0, barrier_offset=-1, wall=WALL)
        )
        await self.done


async def pages(archive: SqliteArchive, rows: list[ArchiveRow]) -> list[float]:
    """Milliseconds of pages read one at a time."""
    dice = random.Random(2)
    took: list[float] = []
    for op in range(READS):
        row = dice.choice(rows)
        began = time.perf_counter()
        await asked(
            archive,
            ReadArchive(
                op=op,
                conversation_id=row.conversation_id,
                low=-1,
                high=row.conversation_seq + 1,
                newest_first=True,
                limit=PAGE,
            ),
        )
        took.append((time.perf_counter() - began) * 1000)
    return sorted(took)


def archived(stored: StoredRecord) -> ArchiveRow:
    """The row of an outbox record."""
    value = stored.value[10:]
    record = decode_stored_record(value)
    return ArchiveRow(
        conversation_id=record.conversation_id,
        conversation_seq=record.conversation_seq,
        message_id=record.message_id,
        outbox_offset=stored.offset,
        retained_until=retained_until(RetentionPolicy(), "default", 0, record.sent_at),
        stored=value,
    )


async def one_round(folder: Path, records: list[StoredRecord]) -> dict[str, float]:
    """Fresh files each time."""
    loop = asyncio.get_running_loop()
    rows = [archived(stored) for stored in records]
    figures: dict[str, float] = {}
    archive = SqliteArchive(folder / "adapter.sqlite", loop)
    for name in ("adapter", "again"):
        with Span() as span:
            await adapter(archive, rows)
        figures |= {f"{name}_{key}": value for key, value in span.rates(len(rows)).items()}
    took = await pages(archive, rows)
    figures["page_p50_ms"], figures["page_p99_ms"] = took[READS // 2], took[READS * 99 // 100]
    await archive.close()
    archive = SqliteArchive(folder / "archiver.sqlite", loop)
    with Span() as span:
        await Bench(archive, records).run()
    figures |= {f"archiver_{key}": value for key, value in span.rates(len(rows)).items()}
    await archive.close()
    return figures


def main() -> int:
    """Rounds, medians, a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    records = outbox(args.rows, args.conversations, b"x" * args.body)
    rounds = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="qim-bench-") as folder:
            rounds.append(asyncio.run(one_round(Path(folder), records)))
    medians = median_of(rounds)
    print(f"{args.rows} rows, {args.conversations} conversations, bodies of {args.body} bytes")
    for name, value in medians.items():
        print(f"{name:28} {value:12.2f}")
    if args.json is not None:
        report = {"machine": machine(), "arguments": {"rows": args.rows, "rounds": args.rounds}}
        args.json.write_text(json.dumps(report | {"median": medians, "rounds": rounds}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
