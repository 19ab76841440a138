"""One server of the test bed: a child process with a directory, a log file and a question that tells when it serves."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.integration.testbed.claim import claimed
from tests.integration.testbed.signalled import stand_still

PR_SET_PDEATHSIG: Final = 1
_prctl = ctypes.CDLL(None).prctl
"""Looked up here: a child of a process with threads may load nothing between fork and exec."""
PORTS: Final = (10_000, 32_000)
_claims: dict[int, socket.socket] = {}
"""Ports handed out: who got one binds it later, and no other run of tests on this machine may get it meanwhile."""
LOOK_SECONDS: Final = 0.05
STOP_SECONDS: Final = 20.0
LOG_TAIL_BYTES: Final = 4_000


class ServerFailed(Exception):
    """It ended or did not come to serve in time; the message holds the end of its log."""


class ServerProcess:
    """Started with ``start``, which waits until ``ready()`` is true; every end is by this pid, never by name."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        *,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        seconds_max: float = 90.0,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.directory = directory
        self.log_path = directory / f"{name}.log"
        self._ready = ready
        self._environment = {**os.environ, **(environment or {})}
        self._seconds_max = seconds_max
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running child."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Started, and not ended yet."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status of the last run, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it (again) and wait until it serves. Raises ServerFailed."""
        assert not self.alive, f"{self.name} runs already"
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start it (again); several that need each other are launched first and waited for afterwards.

        From a thread that lives as long as the child should: the kernel takes the thread's end for the parent's death.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )

    def wait_ready(self) -> None:
        """Until ``ready()``. Raises ServerFailed when it ends before, or time is up."""
        deadline = time.monotonic() + self._seconds_max
        while not self._ready():
            if not self.alive:
                raise ServerFailed(f"{self.name} ended at start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(
                    f"{self.name} not serving after {self._seconds_max:g} s:\n{self.log_tail()}"
                )
            time.sleep(LOOK_SECONDS)

    def stop(self, seconds_max: float = STOP_SECONDS) -> None:
        """SIGTERM, and SIGKILL when it takes longer; nothing if it has ended."""
        if not self.alive:
            return
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: alive for the kernel, silent for everybody by the time this returns."""
        stand_still(self.pid)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        """The end of what it wrote."""
        data = self.log_path.read_bytes() if self.log_path.exists() else b""
        return data[-LOG_TAIL_BYTES:].decode("utf-8", "replace")


def free_port() -> int:
    """A loopback port that was free a moment ago, outside of those that the kernel gives to whoever dials."""
    while True:
        port = random.randrange(*PORTS)
        claim = claimed(f"port {port}")
        if claim is None:
            continue
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims[port] = claim
        return port


def accepts(port: int) -> bool:
    """Something listens on this loopback port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _die_with_parent() -> None:
    """A test run that is killed must leave no server behind."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
