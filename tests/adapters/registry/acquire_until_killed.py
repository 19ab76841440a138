"""A child process that takes a lease again and again until it is killed; one line an epoch it was told."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from qim.adapters.embedded.sqlite_registry import SqliteRegistry
from qim.core.ports.registry import Acquire, Granted, Resource, Role


async def main(path: Path) -> None:
    loop = asyncio.get_running_loop()
    registry = SqliteRegistry(path, loop)
    resource = Resource(role=Role.WRITER, number=3)

    def acquire() -> None:
        request = Acquire(op=1, resource=resource, owner="child", address="", ttl_ms=60_000)
        registry.submit(request, granted)

    def granted(reply: Any) -> None:
        assert isinstance(reply, Granted), reply
        sys.stdout.write(f"{reply.epoch}\n")
        sys.stdout.flush()
        acquire()

    acquire()
    acquire()
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
