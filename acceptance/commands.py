"""Commands of a step: each in a process group of its own, ended with the run, its output in a file of the run's folder."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
QIM: Final = (sys.executable, "-m", "qim")
LOOK_SECONDS: Final = 0.2
END_SECONDS: Final = 30.0
HEARTBEAT_SECONDS: Final = 30.0
STATUS_TIMED_OUT: Final = 124


class Ended:
    """``status`` 124: it did not end in time and was killed."""

    def __init__(self, status: int, out: Path) -> None:
        self.status = status
        self.out = out

    def report(self) -> dict[str, Any] | None:
        """The one JSON object of its standard output; None where there is none."""
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(self.out.read_text("utf-8"))
            return told if isinstance(told, dict) else None
        return None


class Commands:
    """Runs them one after another. ``beat(seconds)`` is told now and then how long one has taken."""

    def __init__(self, folder: Path, beat: Callable[[float], None]) -> None:
        self.folder = folder
        self._beat = beat
        self._running: subprocess.Popen[bytes] | None = None

    def run(
        self,
        name: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        seconds_max: float,
        poll: Callable[[], None] = lambda: None,
    ) -> Ended:
        """Until it ends or its time is up. ``poll`` is called meanwhile. Standard error goes to the same folder."""
        out, log = self.folder / f"{name}.out", self.folder / f"{name}.log"
        began = told = time.monotonic()
        with out.open("wb") as stdout, log.open("wb") as stderr:
            child = self._running = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            while child.poll() is None:
                now = time.monotonic()
                if now - began > seconds_max:
                    self.end()
                    return Ended(STATUS_TIMED_OUT, out)
                if now - told > HEARTBEAT_SECONDS:
                    told = now
                    self._beat(now - began)
                poll()
                time.sleep(LOOK_SECONDS)
            return Ended(child.returncode, out)
        finally:
            self.end()

    def end(self) -> None:
        """Whatever of the last command still runs: its own group, told to stop and then killed."""
        child, self._running = self._running, None
        if child is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
                break


def junit_of(report: Path) -> dict[str, Any] | None:
    """Counts of a JUnit report, skipped tests by name with their reason; None where there is no such report."""
    try:
        root = ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    suites = [root] if root.tag == "testsuite" else list(root.iter("testsuite"))
    told: dict[str, Any] = {"tests": 0, "failures": 0, "errors": 0, "skipped": []}
    for suite in suites:
        for kind in ("tests", "failures", "errors"):
            told[kind] += int(suite.get(kind, "0"))
    for case in root.iter("testcase"):
        for why in case.iter("skipped"):
            told["skipped"].append(f"{case.get('name')} ({why.get('message', '')})")
    return told


def tail(path: Path, lines: int = 15) -> str:
    """The end of a log, for people."""
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text("utf-8", "replace").splitlines()[-lines:])
    return ""
