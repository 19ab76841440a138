"""What the exit status of every command means: one table, printed by `qim --help` and kept in docs/operations.md."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """Exit statuses of all commands."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INCOMPLETE = 4
    INTERRUPTED = 130


MEANINGS: Final[dict[Exit, str]] = {
    Exit.DONE: "done; smoke: every check holds; audit: CLEAN; sim: clean; doctor: nothing fails; deadletter, repair, shard: "
    "nothing is left to do; config share: the registry has the same numbers; up, serve: stopped on a signal, everything drained",
    Exit.FAILED: "what was asked for failed: the server refused it, a check doesn't hold, ORPHANS, violations; doctor: "
    "something fails; deadletter, repair, shard: something is left, was refused or was not tried; "
    "config share: it has others, nothing "
    "was written; load: something acked was lost, doubled or out of order; up, serve: died or not drained in time",
    Exit.USAGE: "wrong usage, a start that is refused, or an order of somebody who is no admin; the message says what to do",
    Exit.UNREACHABLE: "no server, or no answer in time; a send that printed `pending` is kept in the local store and goes "
    "out with the device's next command",
    Exit.INCOMPLETE: "audit: no orphan found, but not everything could be judged (INCOMPLETE); load: nothing acked was lost, "
    "but the run proves nothing (sends without an outcome, or a generator that was late)",
    Exit.INTERRUPTED: "interrupted by Ctrl-C (tail and chat end with 0: that is how one leaves them)",
}


def exit_lines() -> Iterator[str]:
    """The table for `--help`."""
    for code, meaning in MEANINGS.items():
        yield f"  {int(code):>3}  {meaning}"


def exit_table() -> str:
    """The table for docs/operations.md; a test compares it."""
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| status | means |", "|---|---|", *rows])
