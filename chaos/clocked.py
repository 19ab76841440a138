"""`qim` with a wall clock that chaos can set: python -m chaos.clocked serve writer.

$CHAOS_CLOCK names a file of 8 bytes, a signed number of ms (little endian) that this process's wall clock is ahead of the
machine's. The product reads its clock at one edge, ``time.time_ns``; here that edge is the one that is set. The monotonic
clock, by which leases are judged, stays the machine's.
"""

import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Final

CLOCK_VARIABLE: Final = "CHAOS_CLOCK"
OFFSET: Final = struct.Struct("<q")
NS_A_MS: Final = 1_000_000


def write_offset(path: Path, ms: int) -> None:
    """Set the clock of whoever runs with this file, from now on."""
    if path.exists():
        with path.open("r+b") as file:
            file.write(OFFSET.pack(ms))
    else:
        path.write_bytes(OFFSET.pack(ms))


def follow(path: Path) -> None:
    """Make this process's wall clock follow the file."""
    with path.open("rb") as file:
        shown = mmap.mmap(file.fileno(), OFFSET.size, access=mmap.ACCESS_READ)
    true_ns = time.time_ns

    def time_ns() -> int:
        offset: int = OFFSET.unpack_from(shown)[0]
        return true_ns() + offset * NS_A_MS

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if __name__ == "__main__":
    if told := os.environ.get(CLOCK_VARIABLE):
        follow(Path(told))
    from qim.cli.main import main

    sys.exit(main())
