"""A cluster of real servers under a bench: CPU of every process of it, and what its histograms say of a span."""

import contextlib
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.integration.cluster.cluster import Cluster

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
AS_IN_LIFE: Final = {
    "QIM_LEASE_TTL_MS": "10000",
    "QIM_LEASE_RENEW_MS": "3000",
    "QIM_LEASE_MARGIN_MS": "1000",
}
ROLES: Final = ("gateway", "writer", "fanout", "mailbox", "session")
BESIDE: Final = ("archiver", "auditor")
BUCKET: Final = re.compile(r"^(qim_\w+)_bucket\{(.*)\} (\S+)$")
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

Buckets = dict[tuple[str, str], dict[float, float]]
"""(metric, label) → upper bound in seconds → how many at or below it, over all processes."""


@contextlib.contextmanager
def cluster_of(
    each: int, brokers: int, *, settings: Mapping[str, str] = AS_IN_LIFE, whole: bool = False
) -> Iterator[Cluster]:
    """``each`` processes of every role that carries messages, on fresh servers, all gone afterwards.

    ``whole``: of archivers and auditors too, with Cassandra behind.
    """
    folder = Path(tempfile.mkdtemp(prefix="qim-bench-"))
    counts = dict.fromkeys((*ROLES, *BESIDE) if whole else ROLES, each)
    try:
        with Cluster(
            folder, counts=counts, brokers=brokers, settings=settings, tiered=whole, lent=False
        ) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pids(cluster: Cluster) -> dict[str, list[int]]:
    """By role or server: everything that the service needs."""
    found: dict[str, list[int]] = defaultdict(list)
    for process in cluster.processes.values():
        found[process.role].append(process.pid)
    found["redis messages"].append(cluster.message_redis.pid)
    found["redis mailboxes"].append(cluster.mailbox_redis.pid)
    for broker in cluster.kafka:
        found["kafka"].append(broker.process.pid)
    if cluster.etcd is not None:
        found["etcd"].append(cluster.etcd.process.pid)
    if cluster.cassandra is not None:
        found["cassandra"].append(cluster.cassandra.process.pid)
    return found


def cpu(cluster: Cluster) -> dict[str, float]:
    """User and system seconds of each, by /proc (ticks of 10 ms: a span must be seconds to mean something)."""
    return {name: sum(map(_seconds, of)) for name, of in pids(cluster).items()}


def _seconds(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return 0.0


def minus(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """What was used in between."""
    return {name: value - before.get(name, 0.0) for name, value in now.items()}


# ---------------------------------------------------------------- histograms


def histograms(cluster: Cluster) -> Buckets:
    """Of all processes together: their buckets are the same."""
    found: Buckets = defaultdict(lambda: defaultdict(float))
    for process in cluster.processes.values():
        for line in process.get("/metrics")[1].splitlines():
            if match := BUCKET.match(line):
                labels = dict(LABEL.findall(match[2]))
                bound = float(labels.pop("le"))
                found[match[1], " ".join(labels.values())][bound] += float(match[3])
    return found


def quantiles(
    now: Buckets, before: Buckets, wanted: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Of these metrics between two looks: count, P50 and P99 in ms, straight lines within a bucket."""
    told: dict[str, dict[str, float]] = {}
    for (metric, label), buckets in sorted(now.items()):
        if metric not in wanted:
            continue
        earlier = before.get((metric, label), {})
        span = {bound: count - earlier.get(bound, 0.0) for bound, count in buckets.items()}
        total = span[float("inf")]
        if total > 0:
            name = f"{metric.removeprefix('qim_').removesuffix('_seconds')} {label}".strip()
            told[name] = {
                "count": total,
                "p50_ms": _quantile(span, 0.5 * total) * 1000,
                "p99_ms": _quantile(span, 0.99 * total) * 1000,
            }
    return told


def _quantile(span: dict[float, float], rank: float) -> float:
    low, below = 0.0, 0.0
    for bound in sorted(span):
        if span[bound] >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / (span[bound] - below)
        low, below = bound, span[bound]
    return low


def per_cpu(count: float, used: Mapping[str, float]) -> float:
    """Of a CPU-second of all of them."""
    return count / max(sum(used.values()), 0.001)


def shares(used: Mapping[str, float], seconds: float) -> dict[str, Any]:
    """Cores that each kept busy."""
    return {f"{name} cores": value / seconds for name, value in used.items()}
