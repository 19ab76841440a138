"""Behind a torn transaction nothing is written: the append-only file is begun anew before a server run's first write of ours.

A script's writes stand in the file between MULTI and EXEC. Torn in the middle, they are dropped at the next start, but
servers without valkey-io/valkey#4342 (every Redis 7) then go on writing behind the open MULTI: the start after that takes
its half, which nobody ever saw applied, for the beginning of the next transaction. Half a ReserveAndRecord comes back so
as a pending intent whose message the log already holds, and is appended twice (decision 0024).

BGREWRITEAOF opens a new file for what follows before it copies anything, so the copy need not be waited for. The server
counts it in ``aof_rewrites``, from 0 in every run.
"""

from collections.abc import Mapping
from typing import Final

BEGIN_ANEW: Final = (b"BGREWRITEAOF",)
ASK: Final = (b"INFO", b"persistence")


def must_begin_anew(persistence: Mapping[str, str]) -> bool:
    """Whether a write would go behind what this run found on its disk (pure); ``persistence`` is INFO persistence.

    A server that keeps no such file loses everything at its end anyway; start-up judges that.
    """
    if persistence.get("aof_enabled") != "1" or persistence.get("aof_rewrites") != "0":
        return False
    # CONFIG RESETSTAT puts the count back to 0, these two it leaves.
    begun = persistence.get("aof_rewrite_in_progress") == "1"
    return not begun and persistence.get("aof_last_rewrite_time_sec", "-1") == "-1"
