"""A page of history from the hot store, from the archive, and across the seam between them.

    python bench/history.py [--messages 2000] [--rounds 300] [--json FILE]

One embedded server with a hot window of a millisecond in this process, so that the writer trims what the archive has (a real
one keeps an hour at least). ``cold``: pages of 100 from random anchors of a conversation that was trimmed; ``seam``: the
newest page of one that was trimmed and has 50 newer messages; ``hot``: pages of one that wasn't. Times of one PULL_HISTORY
over TCP, server and client in one event loop, so a part of each is the client's. Everything is measured before the writer
looks for more to trim, a minute later.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _processes import machine
from msgspec.structs import replace
from pipeline import quantile
from session import Device, in_parallel

from qim.adapters.embedded.data_directory import DataDirectory
from qim.core.contract.frames import HistoryBatch, PullHistory, SendAck, SendMessage
from qim.core.contract.kinds import HistoryDirection
from qim.services.config import UpConfig
from qim.services.embedded import EmbeddedServer
from qim.services.observation import LogSink, ProcessObserver
from qim.services.up import open_store

PAGE = 100
NEWER = 50
TRIM_SECONDS_MAX = 180.0


class Observed(ProcessObserver):
    """Knows how many hot rows went."""

    trimmed = 0

    def count(self, name: str, value: int, label: str) -> None:
        if name == "hot_rows_trimmed":
            self.trimmed += value
        super().count(name, value, label)


async def say(sender: Device, peer: int) -> SendAck:
    acked = await sender.done(
        SendMessage(
            client_message_id=os.urandom(16),
            conversation_id=None,
            peer_user_id=peer,
            kind=1,
            custom_type="",
            body=b"x" * 100,
            retention_class=0,
            not_after=sender.not_after,
        )
    )
    assert isinstance(acked, SendAck), acked
    return acked


async def fill(sender: Device, peer: int, count: int) -> bytes:
    """The conversation's id."""
    acks = await in_parallel([say(sender, peer) for _ in range(count)])
    name: bytes = acks[0].conversation_id
    return name


async def page(reader: Device, name: bytes, anchor: int) -> float:
    """Milliseconds."""
    begun = time.perf_counter()
    told = await reader.ask(
        PullHistory(
            conversation_id=name, anchor=anchor, direction=HistoryDirection.OLDER, limit=PAGE
        )
    )
    elapsed = (time.perf_counter() - begun) * 1000
    assert isinstance(told, HistoryBatch), told
    assert len(told.records) == PAGE
    return elapsed


async def measure(server: EmbeddedServer, observer: Observed, args: Any) -> dict[str, Any]:
    assert server.tcp is not None
    address = await server.tcp.listen("127.0.0.1", 0)
    secret = server._directory.secret()
    sender = Device(1)
    await sender.connect(address, secret)
    count = args.messages
    cold, seam = await fill(sender, 2, count), await fill(sender, 3, count)
    async with asyncio.timeout(TRIM_SECONDS_MAX):
        while observer.trimmed < 2 * count:  # noqa: ASYNC110 - a minute between two looks
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)  # a last look that finds nothing more, and then a minute's rest
    await fill(sender, 3, NEWER)
    hot = await fill(sender, 4, count)
    assert observer.trimmed == 2 * count, "the next look came too soon: take fewer messages"
    dice = random.Random(1)
    times: dict[str, list[float]] = {"cold": [], "seam": [], "hot": []}
    for _ in range(args.rounds):  # in turn, so that whatever else the machine does meets all alike
        anchor = dice.randrange(PAGE + 1, count + 1)
        times["cold"].append(await page(sender, cold, anchor))
        times["seam"].append(await page(sender, seam, 0))
        times["hot"].append(await page(sender, hot, anchor))
    assert observer.trimmed == 2 * count, "the next look came too soon: take fewer rounds"
    return {
        f"{name}_ms_{label}": quantile(values, at)
        for name, values in times.items()
        for label, at in (("p50", 0.5), ("p99", 0.99))
    }


async def served(data: Path, args: Any) -> dict[str, Any]:
    """A server of this process, ended again."""
    sink = LogSink(asyncio.get_running_loop(), os.open(os.devnull, os.O_WRONLY), as_json=True)
    observer = Observed(sink, lambda *_: None, stages=False)
    with DataDirectory(data) as directory:
        directory.secret()
        config = UpConfig(data=data)
        server = EmbeddedServer(directory, config.parameters(), observer)
        try:
            await server.start_parts(
                *await open_store(directory, "everysec", server.store_was_reset)
            )
            server._parameters = replace(server._parameters, hot_window_ms=1)
            server.start_auditor()
            server.start_machines("bench")
            while server.not_serving():  # noqa: ASYNC110 - as `qim up` looks
                await asyncio.sleep(0.01)
            return await measure(server, observer, args)
        finally:
            await server.close()
            sink.close()


def main() -> int:
    """A table and JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000, help="of each conversation")
    parser.add_argument("--rounds", type=int, default=300, help="pages of each kind")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    where = machine()
    data = Path(tempfile.mkdtemp(prefix="qim-bench-"))
    try:
        results = asyncio.run(served(data / "data", args))
    finally:
        shutil.rmtree(data, ignore_errors=True)
    for name, value in results.items():
        print(f"{name:>20} {value:>12.2f}")
    report = {"machine": where, "rounds": args.rounds, "results": results}
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
