"""A real `qim up` in a process of its own, for tests that kill it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

READY_SECONDS_MAX = 60
ENDED_SECONDS_MAX = 120
"""Guards against waiting for ever: what a start or an end may take is judged by the server's own limits."""


class UpProcess:
    """Start, kill, stop. ``ready`` is the JSON line it printed; its log goes to ``<data>.log``."""

    def __init__(self, data: Path, tcp: str = "127.0.0.1:0", *options: str) -> None:
        self.data = data
        self.tcp = tcp
        self.options = options
        self.ready: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> dict[str, Any]:
        """Wait for the ready line; later starts use the port of the first, as clients keep dialing it."""
        command = [sys.executable, "-m", "qim", "up", "--data", str(self.data), "--tcp", self.tcp]
        command += ["--metrics", "127.0.0.1:0", *self.options]
        log = self.data.with_suffix(".log").open("ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        log.close()
        self.ready = json.loads(self._first_line())
        assert self.ready["ready"] is True, self.ready
        self.tcp = self.ready["tcp"]
        return self.ready

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nothing is said."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=ENDED_SECONDS_MAX)
        self._close()

    def stop(self) -> int:
        """SIGTERM and the exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(timeout=ENDED_SECONDS_MAX)
        self._close()
        return status

    def ended(self) -> int:
        """The exit status of a start that was refused."""
        assert self.process is not None
        status = self.process.wait(timeout=ENDED_SECONDS_MAX)
        self._close()
        return status

    def close(self) -> None:
        """At the end of a test, whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(OSError):
                self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=30)
            if self.process.poll() is None:
                self.kill()
        self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()

    def _first_line(self) -> bytes:
        """The ready line, or what the process said instead, never a wait without an end."""
        process = self.process
        assert process is not None
        assert process.stdout is not None
        timer = threading.Timer(READY_SECONDS_MAX, process.kill)
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            said = self.data.with_suffix(".log").read_text(errors="replace")[-4000:]
            raise AssertionError(f"qim up ended with {process.wait()} before it was ready:\n{said}")
        return line


def run_qim(*arguments: str, expect: int = 0, or_else: int | None = None) -> str:
    """A command to its end; its stdout. Asserts the exit status, one of two."""
    done = subprocess.run(
        [sys.executable, "-m", "qim", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode in (expect, or_else), (
        f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout
