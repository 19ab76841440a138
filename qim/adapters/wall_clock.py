"""The wall clock of this machine, as every adapter and service reads it; the core is handed what it says.

A client reads its own (qim/client/driver.py): it imports nothing of a server's.
"""

import time


def wall_ms() -> int:
    """Wall time, ms since 1970."""
    return time.time_ns() // 1_000_000
