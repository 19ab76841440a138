"""Signals that have taken effect: when the kernel returns from kill, other threads of the process may still finish what they do.

A server that was "stopped" a microsecond ago could answer one more request, and one that was "killed" write one more record.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

SECONDS_MAX: Final = 60.0
"""A thread that waits for its disk takes no signal before the disk has answered."""
LOOK_SECONDS: Final = 0.001
STANDS: Final = frozenset("TtZX")
GONE: Final = frozenset("ZX")


def stand_still(pid: int) -> None:
    """SIGSTOP, and wait until every thread stands: what is sent to it afterwards is not answered."""
    os.kill(pid, signal.SIGSTOP)
    _wait(lambda: _states(pid) <= STANDS, f"process {pid} runs on after SIGSTOP")


def die(pid: int) -> None:
    """SIGKILL of a process that is somebody else's child: wait until it runs no more, reaped or not."""
    os.kill(pid, signal.SIGKILL)
    _wait(lambda: _states(pid) <= GONE, f"process {pid} lives on after SIGKILL")


def children_of(pid: int) -> list[int]:
    """Those that it forked and that run now; who kills it has to kill them as well."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state not in GONE:
            found.append(int(stat.parent.name))
    return found


def _wait(reached: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not reached():
        assert time.monotonic() < deadline, otherwise
        time.sleep(LOOK_SECONDS)


def _states(pid: int) -> frozenset[str]:
    """The letters of /proc for its threads; a thread that is gone by now has none."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return frozenset()
    found = []
    for task in tasks:
        try:
            found.append((task / "stat").read_text().rpartition(")")[2].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return frozenset(found)
