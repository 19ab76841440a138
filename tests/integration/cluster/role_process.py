"""One `qim serve ROLE` of a cluster under test: its pid, its ready line, its log, its metrics, and every end of it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.integration.operator_view import OperatorView
from tests.integration.testbed.server_process import ServerProcess

READY_SECONDS_MAX: Final = 240.0
"""A dozen of them start at once, on a machine of two cores that has other work."""
DRAIN_MS: Final = 60_000
"""Longer than in life: how fast such a machine drains is judged nowhere but where a test says so."""
STOP_SECONDS_MAX: Final = DRAIN_MS / 1000 + 30.0
PREFIX: Final = "QIM_"


class RoleProcess(OperatorView):
    """``settings``: QIM_ variables; what the caller's own environment says of them is not passed on."""

    def __init__(self, name: str, role: str, directory: Path, settings: Mapping[str, str]) -> None:
        self.name = name
        self.role = role
        self.settings = dict(settings)
        self.ready: dict[str, Any] = {}
        self._log_began = 0
        self.process = ServerProcess(
            name,
            [*without_settings(settings), sys.executable, "-m", "qim", "serve", role],
            directory,
            ready=self._said_ready,
            seconds_max=READY_SECONDS_MAX,
        )

    @property
    def pid(self) -> int:
        """Of the running child."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """It runs, or is stopped by a signal."""
        return self.process.alive

    def launch(self) -> None:
        """Begin; ``wait_ready`` waits until it serves."""
        path = self.process.log_path
        self._log_began = path.stat().st_size if path.exists() else 0
        self.ready = {}
        self.process.launch()

    def wait_ready(self) -> None:
        """Until its ready line. Raises ServerFailed with the end of its log."""
        self.process.wait_ready()

    def start(self) -> None:
        """Begin and wait."""
        self.launch()
        self.wait_ready()

    async def started(self) -> None:
        """Begin, and wait off the loop. (The child is made by this thread: it would end with one of the loop's pool.)"""
        self.launch()
        await asyncio.to_thread(self.wait_ready)

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        self.process.stop(STOP_SECONDS_MAX)
        status = self.process.status
        assert status is not None
        return status

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        os.kill(self.pid, signal.SIGTERM)

    def cpu_seconds(self) -> float | None:
        """Of its life so far, user and system; None once it has ended."""
        if not self.alive:
            return None
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wanted_seconds(self) -> float | None:
        """How long its loop's thread wanted a processor so far, had one or waited for one; None once it has ended.

        A thread that spins always wants one, however few it gets beside others.
        """
        try:
            had, waited, _ = Path(f"/proc/{self.pid}/schedstat").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return (int(had) + int(waited)) / 1e9

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP: it lives, and does nothing."""
        self.process.pause()

    def resume(self) -> None:
        """SIGCONT: it goes on as if nothing had been."""
        self.process.resume()

    async def restarted(self) -> int:
        """Drain it and start it again; the exit status of what was drained."""
        status = await asyncio.to_thread(self.stop)
        await self.started()
        return status

    def log(self) -> str:
        """All runs."""
        path = self.process.log_path
        return path.read_text(errors="replace") if path.exists() else ""

    def log_records(self) -> list[dict[str, Any]]:
        """Lines that are JSON objects with an event; the last one may be half written yet."""
        found = []
        for line in self.log().rpartition("\n")[0].splitlines():
            if line.startswith("{") and '"event"' in line:
                found.append(json.loads(line))
        return found

    def _said_ready(self) -> bool:
        path = self.process.log_path
        with path.open("rb") as log:
            log.seek(self._log_began)
            for line in log:
                if line.startswith(b'{"ready"') and line.endswith(b"\n"):
                    self.ready = json.loads(line)
                    return True
        return False


def without_settings(settings: Mapping[str, str]) -> list[str]:
    """`env` with these variables, and without those of whoever runs the tests."""
    inherited = [name for name in os.environ if name.startswith(PREFIX)]
    words = ["env", *[word for name in inherited for word in ("-u", name)]]
    return [*words, *[f"{name}={value}" for name, value in settings.items()]]
