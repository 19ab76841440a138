"""A real etcd on free loopback ports; ``QIM_TEST_ETCD=host:port`` uses one that somebody already has.

Tests that kill, pause or secure a server start their own in any case.
"""

import json
import os
import shutil
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
AMONG_OTHERS: Final = ("--heartbeat-interval=100", "--election-timeout=1000")
"""As by default: members that miss each other for 200 ms on a busy machine would elect a leader for ever."""
CLUSTER: Final = "--initial-cluster="


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
        self.name = f"qim-{directory.name}"
        self.port = free_port()
        self.peer_url = f"http://127.0.0.1:{free_port()}"
        # Health on a port of its own: a server that asks for client certificates tells nobody else how it is.
        self._health_url = f"http://127.0.0.1:{free_port()}"
        client = f"{scheme}://127.0.0.1:{self.port}"
        command = [
            binary,
            f"--name={self.name}",
            f"--data-dir={directory / 'data'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-metrics-urls={self._health_url}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--heartbeat-interval={HEARTBEAT_MS}",
            f"--election-timeout={ELECTION_MS}",
            "--log-level=warn",
            "--logger=zap",
            *options,
        ]
        self.process = ServerProcess("etcd", command, directory, ready=self._healthy)
        self.join((self,))

    def join(self, members: "Sequence[EtcdServer]") -> None:
        """The members it forms a cluster with, itself among them; before the first start."""
        cluster = ",".join(f"{member.name}={member.peer_url}" for member in members)
        told = [part for part in self.process.command if not part.startswith(CLUSTER)]
        self.process.command = [*told, f"{CLUSTER}{cluster}"]

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
        try:
            with urllib.request.urlopen(f"{self._health_url}/health", timeout=1) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (OSError, ValueError):
            return False


def started_cluster(directory: Path, size: int = 3) -> list[EtcdServer]:
    """Members that have elected a leader."""
    members = [EtcdServer(directory / str(number), options=AMONG_OTHERS) for number in range(size)]
    for member in members:
        member.join(members)
        member.process.launch()
    for member in members:
        member.process.wait_ready()
    return members


def given_address() -> str | None:
    """The server that somebody already has, from QIM_TEST_ETCD."""
    return os.environ.get(GIVEN) or None
