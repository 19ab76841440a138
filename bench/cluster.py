"""A cluster of real servers under load, side by side with `qim up`; and how long it takes to recover from each kill.

    python bench/cluster.py [--rounds 3] [--seconds 8] [--users 40] [--window 8] [--processes 1] [--brokers 1]
                            [--no-up] [--recovery 1] [--json FILE]

Each round: a fresh cluster (one process a role, two Redis, Kafka, etcd) and a fresh `qim up`, in turn, the same client
process, plaintext. First every device keeps ``--window`` sends in flight: the maximum. Then half of it by `qim load`'s
open loop: latencies from the due time (ack, push, end_to_end, ping as the control group, generator: the bench's own
lateness) and the server's own stage histograms over the same span. CPU is that of all processes and servers, by /proc.

Recovery, on a cluster with two processes a role, archivers and auditors too, over Cassandra: SIGKILL of one process of each
role (the other takes over when the lease ends) and of each server (started again at once): seconds until every lane is
acked, and delivered, again; and until the role's own work is done again, where that is another: sessions list, archivers
archive, the auditor audits.

Clients, processes and servers share the machine: only the figures per CPU-second can be compared between machines.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _cluster import cluster_of, cpu, histograms, minus, per_cpu, quantiles, shares
from _processes import Server, machine, machine_cpu, median_of
from _recovery import recoveries
from pipeline import Load, Meter

from qim.client.load.run import LoadPlan, LoadReport, LoadRun
from tests.integration.cluster.cluster import LEASE_MARGIN_MS, LEASE_RENEW_MS, LEASE_TTL_MS, Cluster
from tests.integration.testbed.maven_jars import JarsMissing

LOAD_STAGES = ("ack", "push", "end_to_end", "ping", "generator")
SERVER_STAGES = (
    "qim_stage_seconds",
    "qim_gateway_request_seconds",
    "qim_log_transit_seconds",
    "qim_port_seconds",
    "qim_rpc_queue_wait_seconds",
    "qim_rpc_write_seconds",
    "qim_conn_write_wait_seconds",
    "qim_conn_write_seconds",
    "qim_inbox_wait_seconds",
    "qim_step_seconds",
)
TABLE_STAGES = ("stage ", "log_transit ", "gateway_request ")
HALF_USERS = 100
HALF_SETTLE_SECONDS = 60.0
GENERATOR_LATE_MS = 1_000.0
"""Told as a stage of its own; a busy machine must not make the whole bench refuse."""
OTHERS_CORES_MAX = 0.25


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


class Side:
    """One system under test: where clients connect, and what it used so far."""

    address: str
    secret: bytes

    def cpu(self) -> dict[str, float]:
        """Seconds of each part."""
        raise NotImplementedError

    def stages(self) -> Any:
        """Its histograms now."""
        return None


class ClusterSide(Side):
    """Real servers and a process a role."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.address = cluster.addresses[0]
        self.secret = cluster.target.secret

    def cpu(self) -> dict[str, float]:
        return cpu(self.cluster)

    def stages(self) -> Any:
        return histograms(self.cluster)


class UpSide(Side):
    """Everything in one process, and its store."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = server.said["tcp"]
        self.secret = (server.data / "secret").read_bytes()

    def cpu(self) -> dict[str, float]:
        used = self.server.cpu()
        return {"server": used["server"], "store": used["store"]}


async def maximum(side: Side, args: argparse.Namespace) -> dict[str, Any]:
    """Closed windows."""
    load = Load(side.address, side.secret, users=args.users, group_size=0, window=args.window)
    await load.connect()
    load.open_windows()
    await asyncio.sleep(args.warmup)
    before, own, whole = side.cpu(), time.process_time(), machine_cpu()
    load.meter, began = Meter(), time.perf_counter()
    await asyncio.sleep(args.seconds)
    meter, elapsed = load.meter, time.perf_counter() - began
    used = minus(side.cpu(), before)
    own, whole = time.process_time() - own, machine_cpu() - whole
    load.meter = Meter()
    await load.close_windows()
    for device in load.devices:
        device.transport.close()
    others = max(whole - own - sum(used.values()), 0.0) / elapsed
    return {
        "acked_per_s": meter.acked / elapsed,
        "delivered_per_s": meter.delivered / elapsed,
        "acked_per_cpu_s": per_cpu(meter.acked, used),
        "delivered_per_cpu_s": per_cpu(meter.delivered, used),
        "cores": sum(used.values()) / elapsed,
        **shares(used, elapsed),
        "client_cores": own / elapsed,
        "others_cores": others,
        "limit": "others" if others > OTHERS_CORES_MAX else max(used, key=lambda k: used[k]),
        "errors": meter.errors,
    }


async def half(side: Side, rate: float, args: argparse.Namespace) -> dict[str, Any]:
    """Open loop at ``rate``."""
    plan = LoadPlan(
        servers=(side.address,),
        secret=side.secret,
        users=HALF_USERS,
        first_user=500_001,
        rate=rate,
        seconds=args.seconds,
        warmup=args.warmup,
        settle=HALF_SETTLE_SECONDS,
        late_ms=GENERATOR_LATE_MS,
    )
    stages, used, began = side.stages(), side.cpu(), time.perf_counter()
    report: LoadReport = await LoadRun(plan).run()
    elapsed = time.perf_counter() - began
    used = minus(side.cpu(), used)
    told: dict[str, Any] = {
        "rate": rate,
        "half acked_per_s": report.acked_per_s,
        "half acked_per_cpu_s": per_cpu(report.verdict["acked"], used),
        "half cores": sum(used.values()) / elapsed,
    }
    for stage in LOAD_STAGES:
        row = report.latency_ms[stage]
        told[f"{stage} p50_ms"], told[f"{stage} p99_ms"] = row["p50"], row["p99"]
    told["holds"], told["complete"] = report.holds, report.complete
    if stages is not None:
        for name, row in quantiles(side.stages(), stages, SERVER_STAGES).items():
            told[f"server {name} p50_ms"] = row["p50_ms"]
            told[f"server {name} p99_ms"] = row["p99_ms"]
    return told


async def measured(side: Side, args: argparse.Namespace) -> dict[str, Any]:
    """The maximum, then half of it."""
    most = await maximum(side, args)
    return most | await half(side, max(most["acked_per_s"] / 2, 1.0), args)


def round_on_cluster(args: argparse.Namespace) -> dict[str, Any]:
    """Fresh servers, fresh processes."""
    with cluster_of(args.processes, args.brokers) as cluster:
        return asyncio.run(measured(ClusterSide(cluster), args))


def round_on_up(args: argparse.Namespace) -> dict[str, Any]:
    """A fresh `qim up`."""
    data = Path(tempfile.mkdtemp(prefix="qim-bench-"))
    server = Server(data, "--log", os.devnull)
    try:
        return asyncio.run(measured(UpSide(server), args))
    finally:
        server.stop()
        shutil.rmtree(data, ignore_errors=True)


def recovery(args: argparse.Namespace) -> list[dict[str, dict[str, Any]]]:
    """``--recovery`` rounds on one cluster of two processes a role, whose leases are the tests' (short)."""
    leases = {
        "QIM_LEASE_TTL_MS": str(args.lease_ttl_ms),
        "QIM_LEASE_RENEW_MS": str(args.lease_ttl_ms * LEASE_RENEW_MS // LEASE_TTL_MS),
        "QIM_LEASE_MARGIN_MS": str(args.lease_ttl_ms * LEASE_MARGIN_MS // LEASE_TTL_MS),
    }
    folder = Path(tempfile.mkdtemp(prefix="qim-bench-"))
    found = []
    try:
        with cluster_of(2, 1, settings=leases, whole=True) as cluster:
            for number in range(args.recovery):
                say(f"recovery, round {number + 1}")
                found.append(asyncio.run(recoveries(cluster, folder / str(number), say)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def table(sides: dict[str, dict[str, Any]], rounds: int) -> str:
    """Figures of the sides beside each other."""
    keys = [key for side in sides.values() for key in side]
    lines = [f"{f'median of {rounds}':>36}" + "".join(f"{name:>14}" for name in sides)]
    for key in dict.fromkeys(keys):
        if key.startswith("server ") and not key.startswith(
            tuple(f"server {one}" for one in TABLE_STAGES)
        ):
            continue
        cells = [side.get(key, "–") for side in sides.values()]
        shown = [f"{c:>14.2f}" if isinstance(c, float) else f"{c!s:>14}" for c in cells]
        lines.append(f"{key:>36}" + "".join(shown))
    return "\n".join(lines)


def recovery_table(rounds: list[dict[str, dict[str, Any]]]) -> tuple[dict[str, Any], str]:
    """Medians, and as text."""
    medians = {name: median_of([one[name] for one in rounds]) for name in rounds[0]}
    figures = ("ack_s", "end_s", "own_s")
    lines = [f"{'killed':>20}" + "".join(f"{name:>10}" for name in figures)]
    for name, row in medians.items():
        shown = {k: "never" if row[k] is None else f"{row[k]:.1f}" for k in row}
        cells = [f"{shown.get(figure, '–'):>10}" for figure in figures]
        lines.append(f"{name:>20}" + "".join(cells))
    return medians, "\n".join(lines)


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measured span")
    parser.add_argument("--warmup", type=float, default=3.0)
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--window", type=int, default=8, help="sends a device keeps in flight")
    parser.add_argument("--processes", type=int, default=1, help="of each role")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("--no-up", action="store_true", help="the cluster alone")
    parser.add_argument("--recovery", type=int, default=1, help="rounds of kills (1)")
    parser.add_argument("--lease-ttl-ms", type=int, default=LEASE_TTL_MS)
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def main() -> int:
    """Medians over rounds, as tables and as JSON."""
    args = arguments()
    where = machine()
    rounds: dict[str, list[dict[str, Any]]] = {"cluster": []}
    if not args.no_up:
        rounds["qim up"] = []
    try:
        for number in range(args.rounds):
            say(f"round {number + 1}: cluster")
            rounds["cluster"].append(round_on_cluster(args))
            if not args.no_up:
                say(f"round {number + 1}: qim up")
                rounds["qim up"].append(round_on_up(args))
        told: dict[str, Any] = {"machine": where}
        if args.rounds:
            sides = {name: median_of(of) for name, of in rounds.items()}
            print(table(sides, args.rounds))
            told |= {"sides": sides}
        if args.recovery:
            told["lease_ttl_ms"] = args.lease_ttl_ms
            told["recovery"], text = recovery_table(recovery(args))
            print(text)
    except JarsMissing as missing:
        print(f"not measured: {missing}")
        return 0
    report = json.dumps(told | {"load_after": os.getloadavg()[0]})
    print(report)
    if args.json is not None:
        args.json.write_text(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
