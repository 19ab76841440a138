"""A child process that archives until it is killed, and says what was confirmed: one line a batch.

Batch n holds seqs 3n-2 .. 3n of one conversation, and moves the position to 3n + 1.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from qim.adapters.embedded.sqlite_archive import SqliteArchive
from qim.core.ports.archive import ArchiveWritten, WriteArchive
from tests.adapters.archive.records import message

IN_FLIGHT = 4


async def main(path: Path) -> None:
    loop = asyncio.get_running_loop()
    archive = SqliteArchive(path, loop)
    number = 0

    def write() -> None:
        nonlocal number
        number += 1
        mine = number

        def answered(reply: Any) -> None:
            assert isinstance(reply, ArchiveWritten) and reply.reused == (), reply
            sys.stdout.write(f"{mine}\n")
            sys.stdout.flush()
            write()

        rows = tuple(message(seq) for seq in range(3 * mine - 2, 3 * mine + 1))
        request = WriteArchive(op=mine, partition=0, rows=rows, through=3 * mine + 1)
        archive.submit(request, answered)

    for _ in range(IN_FLIGHT):
        write()
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
