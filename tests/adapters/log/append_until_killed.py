"""A child process that appends until it is killed, and says what was answered durable: one line an append.

Each line is ``<append number> <first offset> <records>``; record i of append n holds ``n/i``.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.core.ports.log import Append, Appended, LogRecord, Topic

IN_FLIGHT = 6


async def main(path: Path) -> None:
    loop = asyncio.get_running_loop()
    log = SqliteLog(path, loop, partitions={Topic.OUTBOX: 2, Topic.DISPATCH: 3})
    number = 0

    def append() -> None:
        nonlocal number
        number += 1
        mine, count = number, 1 + number % 5
        records = tuple(
            LogRecord(key=b"k" * 16, value=b"%d/%d" % (mine, index)) for index in range(count)
        )

        def answered(reply: Any) -> None:
            assert isinstance(reply, Appended), reply
            sys.stdout.write(f"{mine} {reply.offsets[0]} {count}\n")
            sys.stdout.flush()
            append()

        log.submit(
            Append(op=mine, topic=Topic.OUTBOX, partition=0, epoch=1, records=records), answered
        )

    for _ in range(IN_FLIGHT):
        append()
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
