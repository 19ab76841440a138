"""The registry on etcd: how long its requests take one after the other, and what they cost this process.

    python bench/registry.py [--rounds 5] [--leases 64] [--json FILE]

One member of the test bed on loopback. ``renew``: one request for ``--leases`` leases, as a keeper sends every 3 s.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _processes import machine, median_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from qim.adapters.etcd import EtcdRegistry
from qim.core.ports.registry import (
    Acquire,
    Announce,
    ReadLease,
    RegistryRequest,
    Renew,
    Resource,
    Role,
)
from tests.integration.testbed.etcd import EtcdServer

TTL_MS = 10_000
REQUESTS = 200
FIRST = Resource(role=Role.WRITER, number=0)


async def _asked(registry: EtcdRegistry, request: RegistryRequest) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    registry.submit(request, future.set_result)
    return await future


def _acquire(resource: Resource) -> Acquire:
    return Acquire(op=1, resource=resource, owner="bench", address="bench:1", ttl_ms=TTL_MS)


async def _round(registry: EtcdRegistry, request: RegistryRequest) -> dict[str, float]:
    took: list[float] = []
    cpu = time.process_time()
    for _ in range(REQUESTS):
        began = time.perf_counter()
        await _asked(registry, request)
        took.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    took.sort()
    return {
        "p50_ms": took[REQUESTS // 2] * 1e3,
        "p99_ms": took[REQUESTS * 99 // 100] * 1e3,
        "cpu_ms": cpu / REQUESTS * 1e3,
    }


async def measured(address: str, rounds: int, leases: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds, by kind of request."""
    registry = EtcdRegistry([address], "/qim-bench/", asyncio.get_running_loop())
    await registry.start()
    shards = [Resource(role=Role.MAILBOX, number=number) for number in range(leases)]
    granted = await asyncio.gather(*(_asked(registry, _acquire(shard)) for shard in shards))
    held = tuple((grant.resource, grant.epoch) for grant in granted)
    requests: dict[str, RegistryRequest] = {
        "read": ReadLease(op=1, resource=FIRST),
        "acquire": _acquire(FIRST),
        "renew": Renew(op=1, owner="bench", leases=held, ttl_ms=TTL_MS),
        "announce": Announce(
            op=1, role=Role.WRITER, owner="bench", address="bench:1", ttl_ms=TTL_MS
        ),
    }
    found: dict[str, dict[str, float]] = {}
    for name, request in requests.items():
        found[name] = median_of([await _round(registry, request) for _ in range(rounds)])
    await registry.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--leases", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = EtcdServer(Path(folder) / "etcd")
        server.start()
        try:
            found = asyncio.run(measured(server.address, args.rounds, args.leases))
        finally:
            server.stop()
    report = {"machine": machine(), "leases": args.leases, **found}
    for name, values in found.items():
        print(f"{name:9} " + "  ".join(f"{key} {value:.2f}" for key, value in values.items()))
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
