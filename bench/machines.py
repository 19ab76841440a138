"""Nanoseconds per event of each machine's ``step``, in batches of 1, 16, 64 and 256.

    python bench/machines.py [--batches 1 16 64 256] [--rounds 15] [--users 256] [--json FILE]

One calm world of the simulator in which every latency is 1 ms and nothing is drawn, so that what is sent together stays
together: in each round B devices send one message each, and gateway, writer, fanout and mailbox find B of them in their
inbox. All answers come from the real Lua, the fake logs and the other machines; ONLY the inside of ``step`` is timed, in
CPU time of the thread less what reading that clock costs, with the world around it hidden from the garbage collector. A completion of a batch is one event, however many messages it names: so the table says the events
of a step, too, and what a machine costs per message. The client is one device that sends B to one peer; leases are the
grants of B resources; the auditor reads what all rounds left behind. Medians over the rounds, the first two not counted.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from _processes import machine

from qim.core.audit import Auditor
from qim.core.client import Client
from qim.core.fanout import FanoutCoordinator
from qim.core.gateway import ConnectionNode
from qim.core.lease import LeaseKeeper
from qim.core.mailbox import MailboxNode
from qim.core.writer import Writer
from qim.sim.auditing import audited
from qim.sim.plan import Compressed, DevicePlan, Latency, Plan, Send, Topology
from qim.sim.scene import Kit, Scene

FIRST_MS = 2_000
ROUND_MS = 200
WARM_UP_ROUNDS = 2
STILL = Latency(
    network_spread_ms=0, store_spread_ms=0, log_spread_ms=0, registry_ms=1, registry_spread_ms=0
)
CHAIN = (ConnectionNode, Writer, FanoutCoordinator, MailboxNode)
Sample = dict[str, float]


def _clock_cost() -> int:
    begun = time.thread_time_ns()
    return time.thread_time_ns() - begun


class Stopwatch:
    """Time inside ``step`` by machine class, while it is started."""

    def __init__(self) -> None:
        self.ns: dict[type, int] = {}
        self.events: dict[type, int] = {}
        self.steps: dict[type, int] = {}
        self.clock_ns = min(_clock_cost() for _ in range(1_000))
        for kind in (*CHAIN, Client, LeaseKeeper, Auditor):
            self._wrap(kind)

    def _wrap(self, kind: Any) -> None:
        step, clock, cost = kind.step, time.thread_time_ns, self.clock_ns

        def timed(machine: Any, now: int, events: Any) -> Any:
            begun = clock()
            effects = step(machine, now, events)
            spent = clock() - begun - cost
            self.ns[kind] = self.ns.get(kind, 0) + spent
            self.events[kind] = self.events.get(kind, 0) + len(events)
            self.steps[kind] = self.steps.get(kind, 0) + 1
            return effects

        kind.step = timed

    def restart(self) -> None:
        """Forget what was measured."""
        self.ns.clear()
        self.events.clear()
        self.steps.clear()

    def sample(self, kind: type, items: int) -> Sample:
        """Figures since ``restart``, ``items`` messages (or leases) having gone through."""
        events, steps = self.events.get(kind, 0), self.steps.get(kind, 0)
        ns = self.ns.get(kind, 0)
        return {
            "ns_per_event": ns / max(events, 1),
            "events_per_step": events / max(steps, 1),
            "us_per_item": ns / 1_000 / items,
        }


def plan_of(users: int, batch: int, rounds: int, *, one_device: bool, partitions: int = 1) -> Plan:
    """``rounds`` times ``batch`` sends at the same millisecond, by as many devices or by one."""
    sends = [
        Send(
            at_ms=FIRST_MS + turn * ROUND_MS,
            device=0 if one_device else index % users,
            number=1_000 + turn * batch + index,
            peer=2 if one_device else (index % users) + 2 if index % users + 2 <= users else 1,
            body_bytes=100,
        )
        for turn in range(rounds)
        for index in range(batch)
    ]
    return Plan(
        seed=1,
        profile="calm",
        topology=Topology(outbox_partitions=partitions),
        devices=tuple(DevicePlan(user_id=user, device_id=b"d1") for user in range(1, users + 1)),
        operations=tuple(sends),
        latency=STILL,
        parameters=Compressed(lease_ttl_ms=60_000, lease_renew_ms=20_000),
    )


def chain(
    watch: Stopwatch, kit: Kit, kinds: tuple[type, ...], plan: Plan, batch: int, rounds: int
) -> tuple[dict[type, list[Sample]], Scene]:
    """Samples of each round after the warm-up."""
    scene = Scene(plan, kit)
    samples: dict[type, list[Sample]] = {kind: [] for kind in kinds}
    scene.world.run(FIRST_MS - 1)
    gc.collect()
    gc.freeze()
    for turn in range(rounds):
        watch.restart()
        scene.world.run(FIRST_MS - 1 + (turn + 1) * ROUND_MS)
        if turn >= WARM_UP_ROUNDS:
            for kind in kinds:
                samples[kind].append(watch.sample(kind, batch))
    gc.unfreeze()
    committed = len(scene.workload.asked)
    assert committed == batch * rounds, f"{committed} of {batch * rounds} sends were asked"
    return samples, scene


def leases(watch: Stopwatch, kit: Kit, batch: int, rounds: int) -> list[Sample]:
    """A keeper is granted ``batch`` writer shards at once."""
    samples: list[Sample] = []
    for _ in range(rounds):
        scene = Scene(plan_of(2, 0, 0, one_device=True, partitions=batch), kit)
        watch.restart()
        scene.world.run(50)
        samples.append(watch.sample(LeaseKeeper, batch))
    return samples


def medians(samples: list[Sample]) -> Sample:
    """By figure."""
    return {name: statistics.median(one[name] for one in samples) for name in samples[0]}


def measure(args: argparse.Namespace) -> dict[str, dict[int, Sample]]:
    """Every machine at every batch size."""
    watch, kit = Stopwatch(), Kit()
    results: dict[str, dict[int, Sample]] = {}

    def keep(kind: type, batch: int, samples: list[Sample]) -> None:
        results.setdefault(kind.__name__, {})[batch] = medians(samples)

    rounds = args.rounds + WARM_UP_ROUNDS
    for batch in args.batches:
        plan = plan_of(max(args.users, batch), batch, rounds, one_device=False)
        samples, scene = chain(watch, kit, CHAIN, plan, batch, rounds)
        for kind in CHAIN:
            keep(kind, batch, samples[kind])
        watch.restart()
        report = audited(scene)
        assert report is not None, "the audit of the chain never ended"
        keep(Auditor, batch, [watch.sample(Auditor, batch * rounds)])
        pair = plan_of(2, batch, rounds, one_device=True)
        keep(Client, batch, chain(watch, kit, (Client,), pair, batch, rounds)[0][Client])
        keep(LeaseKeeper, batch, leases(watch, kit, batch, 3))
    return results


def table(results: dict[str, dict[int, Sample]], batches: list[int]) -> str:
    """A block a figure, a row a machine, a column a batch size."""
    titles = {
        "ns_per_event": "ns per event",
        "events_per_step": "events per step",
        "us_per_item": "us per message (lease)",
    }
    lines: list[str] = []
    for figure, title in titles.items():
        lines.append(f"{title:<24}" + "".join(f"{f'batch {batch}':>12}" for batch in batches))
        for name, row in results.items():
            cells = "".join(f"{row[batch][figure]:>12,.1f}" for batch in batches)
            lines.append(f"  {name:<22}{cells}")
    return "\n".join(lines)


def main() -> int:
    """Prints the tables and one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--users", type=int, default=256)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    where = machine()
    results = measure(args)
    print(table(results, args.batches))
    report = {"machine": where, "rounds": args.rounds, "users": args.users, "results": results}
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
