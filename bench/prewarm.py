"""What `qim prewarm` is worth: a load across the doubling of the store's key table, and the same load without one.

    python bench/prewarm.py [--rate 300] [--seconds 40] [--rounds 3] [--json FILE]

A store keeps a key a message for the dedupe window. At 2^20 keys its table, and that of the expiry times, are doubled and
moved over little by little while every command looks into both. Each round, in alternating order, on a fresh cluster:

    cold        filled to so far below 2^20 that the load crosses it in the middle of the measured time
    prewarmed   filled above 2^20 before: no doubling until 2^21

Latency counts from the due time (open loop). ``table_mib`` is the store's own word for its key table before and after: it
doubles in the one and stands still in the other, else the comparison is none (``crossed``).
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis
from _cluster import cluster_of, histograms, quantiles
from _processes import machine, median_of

from qim.adapters.redis.address import StoreAddress
from qim.adapters.redis.prewarm import Prewarmer
from qim.client.load.run import LoadPlan, LoadRun
from tests.integration.cluster.cluster import Cluster
from tests.integration.testbed.maven_jars import JarsMissing

DOUBLING: Final = 1 << 20
PREWARMED: Final = DOUBLING + (DOUBLING >> 2)
SLOTS_MIB: Final = 8.0
"""What a doubling at 2^20 adds to the table, beside 40 bytes a key."""
USERS: Final = 100
WARMUP_SECONDS: Final = 5.0
GENERATOR_LATE_MS: Final = 1_000.0
STAGES: Final = ("ack", "end_to_end", "ping", "generator")
SERVER_STAGES: Final = ("qim_port_seconds",)
QUIET_SECONDS_MAX: Final = 120.0


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def keys_and_table(store: redis.Redis) -> tuple[int, float]:
    """How many, and MiB of the main table by the server's own account."""
    told: Any = store.memory_stats()
    return int(store.dbsize()), int(told["db.0"]["overhead.hashtable.main"]) / (1 << 20)  # type: ignore[arg-type]


def wait_quiet(store: redis.Redis) -> None:
    """Filling makes the server rewrite its file; while a child does that, tables are not grown."""
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    while time.monotonic() < deadline:
        told: Any = store.info("persistence")
        busy = ("aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress")
        if not any(told[name] for name in busy):
            return
        time.sleep(0.2)
    raise TimeoutError("the store rewrites its file without end")


async def filled(cluster: Cluster, keys: int) -> None:
    """By the product's own prewarmer."""
    async with Prewarmer(StoreAddress.parse(cluster.message_redis.address)) as prewarmer:
        await prewarmer.fill(keys, lambda done, total: None)


async def loaded(cluster: Cluster, rate: float, seconds: float, first_user: int) -> Any:
    """The report of `qim load` in this process."""
    plan = LoadPlan(
        servers=cluster.addresses,
        secret=cluster.target.secret,
        users=USERS,
        first_user=first_user,
        rate=rate,
        seconds=seconds,
        warmup=WARMUP_SECONDS,
        late_ms=GENERATOR_LATE_MS,
    )
    return await LoadRun(plan).run()


def keys_per_message(cluster: Cluster, store: redis.Redis, rate: float) -> float:
    """By a short load; devices and conversations are new in it, so it is a little too much."""
    before = int(store.dbsize())  # type: ignore[arg-type]
    report = asyncio.run(loaded(cluster, rate, 5.0, 800_001))
    return (int(store.dbsize()) - before) / max(report.verdict["acked"], 1)  # type: ignore[arg-type]


def variant(args: argparse.Namespace, *, prewarmed: bool) -> dict[str, Any]:
    """One fresh cluster, filled, loaded."""
    with cluster_of(1, 1) as cluster, cluster.message_redis.client() as store:
        per_message = keys_per_message(cluster, store, args.rate)
        until_crossing = args.rate * per_message * (WARMUP_SECONDS + args.seconds / 2)
        keys = PREWARMED if prewarmed else int(DOUBLING - until_crossing)
        asyncio.run(filled(cluster, keys))
        wait_quiet(store)
        keys_before, table_before = keys_and_table(store)
        stages = histograms(cluster)
        report = asyncio.run(loaded(cluster, args.rate, args.seconds, 900_001))
        keys_after, table_after = keys_and_table(store)
        told: dict[str, Any] = {
            "keys_per_message": per_message,
            "keys_before": keys_before,
            "keys_after": keys_after,
            "table_mib before": table_before,
            "table_mib after": table_after,
            "crossed": table_after - table_before > SLOTS_MIB / 2,
            "acked_per_s": report.acked_per_s,
            "holds": report.holds,
            "complete": report.complete,
        }
        for stage in STAGES:
            for name in ("p50", "p99", "p99.9", "max"):
                told[f"{stage} {name}_ms"] = report.latency_ms[stage][name]
        for name, row in quantiles(histograms(cluster), stages, SERVER_STAGES).items():
            told[f"server {name} p99_ms"] = row["p99_ms"]
        return told


def table(sides: dict[str, dict[str, Any]], rounds: int) -> str:
    """Beside each other."""
    lines = [f"{f'median of {rounds}':>28}" + "".join(f"{name:>14}" for name in sides)]
    for key in next(iter(sides.values())):
        cells = [side.get(key, "–") for side in sides.values()]
        shown = [f"{c:>14.2f}" if isinstance(c, float) else f"{c!s:>14}" for c in cells]
        lines.append(f"{key:>28}" + "".join(shown))
    return "\n".join(lines)


def main() -> int:
    """Medians over rounds, as a table and as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=300.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    where = machine()
    rounds: dict[str, list[dict[str, Any]]] = {"cold": [], "prewarmed": []}
    try:
        for number in range(args.rounds):
            order = ("cold", "prewarmed") if number % 2 == 0 else ("prewarmed", "cold")
            for name in order:
                say(f"round {number + 1}: {name}")
                rounds[name].append(variant(args, prewarmed=name == "prewarmed"))
    except JarsMissing as missing:
        print(f"not measured: {missing}")
        return 0
    sides = {name: median_of(of) for name, of in rounds.items()}
    print(table(sides, args.rounds))
    crossed = (
        [one["crossed"] for one in rounds["cold"]],
        [one["crossed"] for one in rounds["prewarmed"]],
    )
    if not all(crossed[0]) or any(crossed[1]):
        say(f"no comparison: the doubling was crossed {crossed}")
    report = json.dumps(
        {"machine": where, "load_after": os.getloadavg()[0], "sides": sides, "rounds": rounds}
    )
    print(report)
    if args.json is not None:
        args.json.write_text(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
