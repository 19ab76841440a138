"""CPU of processes and threads as the kernel counts it, and figures that `qim up` tells of itself.

Times are user + system seconds in ticks of 10 ms, so a span must be a second at least to mean something. They are held
against ``wait4`` of the ended server, which counts the same from the other side (``accounting`` in the report).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_SECONDS_MAX = 60.0


def _ticks(stat: Path) -> float:
    with contextlib.suppress(OSError):
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return 0.0


def children(pid: int) -> list[int]:
    """Processes whose parent is ``pid``, whichever of its threads started them."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


class Server:
    """A `qim up` of its own on a fresh directory, and what it has used so far."""

    def __init__(self, data: Path, *options: str, wrapper: tuple[str, ...] = ("-m", "qim")) -> None:
        command = [sys.executable, *wrapper, "up", "--data", str(data)]
        command += ["--tcp", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *options]
        self.data = data
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.pid = self.process.pid
        self.store_pids = children(self.pid)

    def cpu(self) -> dict[str, float]:
        """Seconds of the whole process, of its event loop (the main thread), and of its store."""
        return {
            "server": _ticks(Path(f"/proc/{self.pid}/stat")),
            "loop": _ticks(Path(f"/proc/{self.pid}/task/{self.pid}/stat")),
            "store": sum(_ticks(Path(f"/proc/{pid}/stat")) for pid in self.store_pids),
        }

    def metrics(self) -> dict[str, float]:
        """Values of /metrics by name and label."""
        with urllib.request.urlopen(f"http://{self.said['metrics']}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def stop(self) -> dict[str, float]:
        """SIGTERM, and the CPU of server and store together: by /proc just before, by ``wait4`` after."""
        counted = self.cpu()
        self.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS_MAX
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > end:
                self.process.kill()
            time.sleep(0.02)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return {
            "proc_s": counted["server"] + counted["store"],
            "wait4_s": usage.ru_utime + usage.ru_stime,
        }


def machine_cpu() -> float:
    """CPU seconds that the whole machine has spent, whoever spent them, those stolen by its host too; 0 if unknown."""
    with contextlib.suppress(OSError):
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        idle = int(fields[3]) + int(fields[4])
        return (sum(map(int, fields[:8])) - idle) / TICKS_PER_S
    return 0.0


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers by their median over the rounds, anything else as the last round had it; only what every round has."""
    shared = [key for key in rounds[0] if all(key in one for one in rounds)]
    ordered = {
        key: sorted(one[key] for one in rounds if isinstance(one[key], int | float))
        for key in shared
    }
    return {
        key: values[len(values) // 2] if len(values) == len(rounds) else rounds[-1][key]
        for key, values in ordered.items()
    }


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": sys.version.split()[0],
    }
