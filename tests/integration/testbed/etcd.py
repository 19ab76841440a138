"""A real etcd on free loopback ports; ``QIM_TEST_ETCD=host:port`` uses one that somebody already has.

Tests that kill, pause or secure a server start their own in any case.
"""

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.integration.testbed.server_process import ServerProcess, free_port

GIVEN: Final = "QIM_TEST_ETCD"
INSTALL: Final = "apt-get install -y etcd-server"
HEARTBEAT_MS: Final = 20
ELECTION_MS: Final = 200
"""Short ones: the least TTL that etcd grants is three half elections, 1 s here and 2 s by default."""


class EtcdMissing(Exception):
    """No etcd on PATH and none given: says what brings one."""


class EtcdServer:
    """One member with a data directory of its own; the ports stay the same over kill and start."""

    def __init__(
        self, directory: Path, *, options: Sequence[str] = (), scheme: str = "http"
    ) -> None:
        binary = shutil.which("etcd")
        if binary is None:
            raise EtcdMissing(f"no etcd on PATH: `{INSTALL}` brings it, or {GIVEN}=host:port")
        self.port = free_port()
        self.scheme = scheme
        client, peer = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{free_port()}"
        command = [
            binary,
            "--name=qim",
            f"--data-dir={directory / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=qim={peer}",
            f"--heartbeat-interval={HEARTBEAT_MS}",
            f"--election-timeout={ELECTION_MS}",
            "--log-level=warn",
            "--logger=zap",
            *options,
        ]
        self.process = ServerProcess("etcd", command, directory, ready=self._healthy)

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it (again) and wait until it has a leader. Raises ServerFailed."""
        self.process.start()

    def stop(self) -> None:
        """SIGTERM."""
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def pause(self) -> None:
        """SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    def _healthy(self) -> bool:
        if self.scheme == "https":
            # A server that asks for client certificates tells nobody else how it is; its log does.
            return b"serving client traffic" in self.process.log_path.read_bytes()
        try:
            with urllib.request.urlopen(f"http://{self.address}/health", timeout=1) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (urllib.error.URLError, OSError, ValueError):
            return False


def given_address() -> str | None:
    """The server that somebody already has, from QIM_TEST_ETCD."""
    return os.environ.get(GIVEN) or None
