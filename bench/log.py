"""The two logs behind one port: records a second and a CPU-second, and how long one record takes to reach a waiting reader.

    python bench/log.py [--seconds 3] [--rounds 5] [--partitions 16] [--logs sqlite kafka kafka3] [--json FILE]

``append``: one Append in flight a partition, as writers do, ``--batch`` records each. ``read``: the same records from the
start, one waiting Fetch in flight a partition. ``reach``: one record at a time, from submit of its Append until a reader
that waits has it. kafka: one broker of the test bed; kafka3: three, every record on two of them before it is answered.
CPU counts the process (loop and database thread) and the brokers; SQLite fsyncs each commit, Kafka leaves that to the
kernel and relies on its copies, so the two columns don't promise the same against a power cut.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from _processes import _ticks, machine, median_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.adapters.kafka.log import KafkaLog
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.topics import create_topics
from qim.core.ports.log import Append, Appended, Fetch, Fetched, LogRecord, Topic
from tests.integration.testbed.kafka import KafkaBroker, KafkaCluster
from tests.integration.testbed.maven_jars import JarsMissing

DAY_MS = 86_400_000
BATCHES = (1, 16, 128)
KEY = b"k" * 16


class Subject:
    """A log, and the servers it needs beside this process."""

    def __init__(self, log: Any, pids: list[int]) -> None:
        self.log = log
        self.pids = pids

    def cpu(self) -> float:
        """CPU seconds of this process and the servers."""
        servers = sum(_ticks(Path(f"/proc/{pid}/stat")) for pid in self.pids)
        return time.process_time() + servers


def _partitions(count: int) -> dict[Topic, int]:
    return {Topic.OUTBOX: count, Topic.DISPATCH: 1, Topic.USER_STATE: 1}


@contextlib.asynccontextmanager
async def opened(name: str, folder: Path, partitions: int) -> AsyncIterator[Subject]:
    """The log of this name, empty."""
    loop = asyncio.get_running_loop()
    if name == "sqlite":
        sqlite = SqliteLog(folder / "log.sqlite", loop, partitions=_partitions(partitions))
        yield Subject(sqlite, [])
        await sqlite.close()
        return
    servers = KafkaCluster(folder) if name == "kafka3" else KafkaBroker(folder)
    brokers = servers.brokers if isinstance(servers, KafkaCluster) else [servers]
    settings = KafkaSettings(
        brokers=",".join(broker.address for broker in brokers),
        outbox_partitions=partitions,
        dispatch_partitions=1,
        user_state_partitions=1,
        outbox_recovery_ms=DAY_MS,
        dispatch_recovery_ms=DAY_MS,
        body_bytes_max=64 * 1024,
        allow_single_broker=name == "kafka",
    )
    try:
        await asyncio.to_thread(servers.start)
        await create_topics(settings, loop)
        kafka = KafkaLog(settings, loop)
        await kafka.start()
        yield Subject(kafka, [broker.process.pid for broker in brokers])
        await kafka.close()
    finally:
        for broker in brokers:
            broker.kill()


class Run:
    """Ops are numbered; every answer must be the good one."""

    def __init__(self, subject: Subject, partitions: int, body: bytes) -> None:
        self.subject = subject
        self.partitions = partitions
        self.body = body
        self.ends = [0] * partitions
        self._op = 0

    def _submit(self, request: Any, done: Callable[[Any], None]) -> None:
        self.subject.log.submit(request, done)

    def _next(self) -> int:
        self._op += 1
        return self._op

    async def append(self, batch: int, seconds: float) -> dict[str, float]:
        """Every partition busy for so long."""
        records = tuple(LogRecord(key=KEY, value=self.body) for _ in range(batch))
        took: list[float] = []
        until = time.perf_counter() + seconds
        count = 0

        async def writer(partition: int) -> None:
            nonlocal count
            while (began := time.perf_counter()) < until:
                reply = await self._asked(
                    Append(
                        op=self._next(), topic=Topic.OUTBOX, partition=partition, epoch=1, records=records
                    )
                )  # fmt: skip
                assert isinstance(reply, Appended), reply
                took.append(time.perf_counter() - began)
                self.ends[partition] = reply.offsets[-1] + 1
                count += batch

        return await self._measured(writer, lambda: count, took)

    async def read(self) -> dict[str, float]:
        """All that stands, 512 records at a time."""
        took: list[float] = []
        count = 0

        async def reader(partition: int) -> None:
            nonlocal count
            position = 0
            while position < self.ends[partition]:
                began = time.perf_counter()
                reply = await self._asked(self._fetch(partition, position))
                assert isinstance(reply, Fetched), reply
                took.append(time.perf_counter() - began)
                position += len(reply.records)
                count += len(reply.records)

        return await self._measured(reader, lambda: count, took)

    async def reach(self, times: int) -> dict[str, float]:
        """Milliseconds from an append to the reader that waits for it."""
        took: list[float] = []
        for _ in range(times):
            waiting = asyncio.ensure_future(self._asked(self._fetch(0, self.ends[0])))
            await asyncio.sleep(0.002)
            began = time.perf_counter()
            record = (LogRecord(key=KEY, value=self.body),)
            append = Append(
                op=self._next(), topic=Topic.OUTBOX, partition=0, epoch=1, records=record
            )
            self._submit(append, lambda _: None)
            reply = await waiting
            took.append(time.perf_counter() - began)
            self.ends[0] = reply.records[-1].offset + 1
        return _latency(took)

    async def _measured(
        self, work: Callable[[int], Any], count: Callable[[], int], took: list[float]
    ) -> dict[str, float]:
        cpu, own, wall = self.subject.cpu(), time.process_time(), time.perf_counter()
        await asyncio.gather(*(work(number) for number in range(self.partitions)))
        wall = time.perf_counter() - wall
        cpu, own = self.subject.cpu() - cpu, time.process_time() - own
        return {
            "records_per_s": count() / wall,
            "records_per_cpu_s": count() / cpu,
            "own_us_per_record": own / count() * 1e6,
            **_latency(took),
        }

    def _fetch(self, partition: int, offset: int) -> Fetch:
        return Fetch(
            op=self._next(),
            topic=Topic.OUTBOX,
            partition=partition,
            offset=offset,
            limit=512,
            bytes_max=1 << 20,
            wait_ms=10_000,
        )

    async def _asked(self, request: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._submit(request, future.set_result)
        return await future


def _latency(took: list[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[len(ordered) * 99 // 100] * 1e3,
    }


async def measured(name: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians over the rounds of everything, on one log that grows."""
    with tempfile.TemporaryDirectory() as folder:
        async with opened(name, Path(folder), args.partitions) as subject:
            run = Run(subject, args.partitions, b"v" * args.body)
            await run.append(16, 1.0)
            found: dict[str, list[dict[str, float]]] = {}
            for _ in range(args.rounds):
                for batch in BATCHES:
                    found.setdefault(f"append {batch}", []).append(
                        await run.append(batch, args.seconds)
                    )
                found.setdefault("reach", []).append(await run.reach(args.reaches))
            found["read"] = [await run.read()]
            return {what: median_of(rounds) for what, rounds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--body", type=int, default=300)
    parser.add_argument("--reaches", type=int, default=200)
    parser.add_argument("--logs", nargs="+", default=["sqlite", "kafka", "kafka3"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "partitions": args.partitions}
    for name in args.logs:
        try:
            report[name] = asyncio.run(measured(name, args))
        except JarsMissing as missing:
            print(f"{name:7} not measured: {missing}", flush=True)
            continue
        for what, values in report[name].items():
            line = "  ".join(f"{key} {value:,.2f}" for key, value in values.items())
            print(f"{name:7} {what:10} {line}", flush=True)
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
