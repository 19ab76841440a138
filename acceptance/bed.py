"""The system under test: a cluster of its own on free loopback ports, and what each of its processes says of itself."""

import contextlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qim.core.contract.invariants import Invariant
from tests.integration.cluster.cluster import ONE_EACH, SECRET, Cluster
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.testbed.maven_jars import jars_of

PAGES: Final = ("/livez", "/healthz", "/readyz")
LENT: Final = ("QIM_TEST_REDIS", "QIM_TEST_KAFKA", "QIM_TEST_ETCD", "QIM_TEST_CASSANDRA")
"""Servers that somebody has: for tests, never for an acceptance, which must know that it is alone."""
PROGRAMS: Final = {
    "redis-server": "redis-server",
    "etcd": "etcd-server",
    "java": "openjdk-17-jre-headless",
    "mvn": "maven",
    "make": "make",
}
AS_IN_LIFE: Final = {
    "QIM_LEASE_TTL_MS": "10000",
    "QIM_LEASE_RENEW_MS": "3000",
    "QIM_LEASE_MARGIN_MS": "1000",
    "QIM_DRAIN_MS": "10000",
}
"""The defaults again: the tests' cluster has others, for the tests' sake."""
DISK_BYTES_MIN: Final = 4 << 30
DEATHS: Final = ("machine died", "violation")


class Bed(Cluster):
    """``processes_each``: of every role; one auditor. Encrypted: mTLS inside, TLS 1.3 for clients."""

    def __init__(self, folder: Path, *, processes_each: int, brokers: int, plain: bool) -> None:
        counts = dict.fromkeys(ONE_EACH, processes_each) | {"auditor": 1}
        super().__init__(
            folder,
            counts=counts,
            settings=AS_IN_LIFE,
            brokers=brokers,
            encrypted=not plain,
            lent=False,
        )
        self.pids: dict[str, int] = {}

    def start(self) -> None:
        """And remember who is who: a process that came back is not the one that was started."""
        super().start()
        self.pids = {name: one.pid for name, one in self.processes.items()}

    @property
    def client_environment(self) -> dict[str, str]:
        """What `qim load` and `qim smoke` need beside the address."""
        tls = {} if self._chain is None else dict(self._chain.environment["client"])
        return {**tls, "QIM_AUTH_SECRET": SECRET}

    @property
    def operators(self) -> list[str]:
        """Addresses of every process's own endpoint."""
        return [one.ready["metrics"] for one in self.processes.values()]

    def told(self) -> dict[str, dict[str, Any] | None]:
        """Of every process that was started, for ``judge_processes``."""
        found: dict[str, dict[str, Any] | None] = {}
        for name, process in self.processes.items():
            found[name] = None
            with contextlib.suppress(OSError, ValueError, AssertionError):
                found[name] = self._told_by(process)
        return found

    def _told_by(self, process: RoleProcess) -> dict[str, Any]:
        pages = {}
        for path in PAGES:
            status, text = process.get(path)
            pages[path] = status == 200 and json.loads(text)["ok"] is True
        samples = process.metrics()
        names = {
            one.value: f"qim_{one.value.removesuffix('_total').removesuffix('_count')}_total"
            for one in Invariant
        }
        return {
            "alive": process.alive,
            "restarted": process.pid != self.pids.get(process.name),
            "pages": pages,
            "invariants": {
                said: samples[name, ""] for said, name in names.items() if (name, "") in samples
            },
            "violations": {
                label: value
                for (name, label), value in samples.items()
                if name == "qim_violation_total"
            },
            "stale": samples.get(("qim_samples_stale", ""), 1.0),
        }

    def stopped(self) -> dict[str, int | None]:
        """Exit status of each process after SIGTERM; a process that was gone already says how."""
        for process in self.processes.values():
            process.process.stop()
        return {name: one.process.status for name, one in self.processes.items()}

    def deaths(self) -> list[str]:
        """What logs tell of a machine's end, a broken rule or a traceback."""
        said = []
        for name, process in self.processes.items():
            if re.search(r"^Traceback ", process.log(), re.MULTILINE):
                said.append(f"{name}: a traceback in its log")
            for record in process.log_records():
                if record["event"] in DEATHS:
                    said.append(f"{name}: {json.dumps(record)[:400]}")
        return said

    def left(self) -> int:
        """Children of this run that still run."""
        servers = [self.message_redis.process, self.mailbox_redis.process]
        servers += [broker.process for broker in self.kafka]
        if self.etcd is not None:
            servers.append(self.etcd.process)
        servers += [one.process for one in self.processes.values()]
        return sum(server.alive for server in servers)


def missing_parts(environment: Mapping[str, str]) -> list[str]:
    """Why no bed can be made here, in words; fetches Kafka's jars where they are not here yet. Raises JarsMissing."""
    why = []
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            why.append(f"no {program} on PATH: apt-get install -y {package}")
    why += [f"{name} names somebody's server: unset it" for name in LENT if environment.get(name)]
    if not why:
        jars_of("kafka")
    return why


def room_for(folder: Path) -> list[str]:
    """Why the run's folder will not do."""
    free = shutil.disk_usage(folder).free
    if free < DISK_BYTES_MIN:
        return [f"{free >> 20} MiB free where {folder} is, {DISK_BYTES_MIN >> 20} needed"]
    return []
