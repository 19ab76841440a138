"""The simulator's speed: machine events and worlds a CPU-second, simulated over real time, and where the time goes.

    python bench/sim.py [--worlds 40] [--rounds 5] [--profiles calm swarm] [--messages 60] [--json FILE]

Everything is on: the machines' checks after each step, all checkers, the audit, the rolling digest. CPU time of one
process; medians over the rounds, which take the profiles in turn. Then one more round of each profile is sampled (a look
at the stack every few CPU milliseconds, so that small functions weigh what they cost) and added up by area: a machine's
own check, a checker or the audit anywhere on the stack gives the sample to it, else the innermost file of ours does.
"""

import argparse
import json
import signal
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from _processes import machine

from qim.sim.generate import generate
from qim.sim.plan import PROFILES, Plan
from qim.sim.run import run
from qim.sim.scene import Kit

AIM_EVENTS = 60_000
AIM_WORLDS = 35
SAMPLE_S = 0.001
SRC = str(Path(__file__).resolve().parents[1] / "qim") + "/"
AREAS = {
    "sim/keyspace": "Lua (store scripts)",
    "adapters/redis": "store codec",
    "core/contract": "contract (digests, wire, ids)",
    "core/audit": "audit",
    "sim/checkers": "checkers and oracle",
    "sim/oracle": "checkers and oracle",
    "sim/history": "checkers and oracle",
    "core/client": "machine: client",
    "core/gateway": "machine: gateway",
    "core/writer": "machine: writer",
    "core/fanout": "machine: fanout",
    "core/mailbox": "machine: mailbox",
    "core/lease": "machine: lease",
    "sim/": "simulator (heap, draws, network, logs, …)",
    "core/": "machines: shared parts",
}
OWNERS = ("checkers and oracle", "audit")


def one_round(plans: list[Plan], kit: Kit) -> dict[str, float]:
    """Run every plan once, clean or an error."""
    begun = time.process_time()
    reports = [run(plan, kit) for plan in plans]
    cpu_s = time.process_time() - begun
    bad = [report.seed for report in reports if not report.clean]
    assert not bad, f"seeds {bad} are not clean: a bench of a broken build measures nothing"
    events = sum(report.events for report in reports)
    return {
        "events_per_cpu_s": events / cpu_s,
        "worlds_per_cpu_s": len(plans) / cpu_s,
        "simulated_over_real": sum(report.sim_ms for report in reports) / 1000 / cpu_s,
        "events_per_world": events / len(plans),
        "steps_per_world": sum(report.steps for report in reports) / len(plans),
    }


def where(plans: list[Plan], kit: Kit) -> dict[str, float]:
    """Share of CPU time by area."""
    shares: Counter[str] = Counter()

    def look(_: int, frame: FrameType | None) -> None:
        shares[area_of(frame)] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
    try:
        for plan in plans:
            run(plan, kit)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    total = sum(shares.values())
    return {area: count / total for area, count in shares.most_common()}


def area_of(frame: FrameType | None) -> str:
    """Whose time this moment is."""
    innermost = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(SRC):
            rest = file.removeprefix(SRC)
            area = next((name for start, name in AREAS.items() if rest.startswith(start)), "other")
            if frame.f_code.co_name == "check" and rest.startswith("core/"):
                return "machines: own checks"
            if area in OWNERS:
                return area
            innermost = innermost or area
        frame = frame.f_back
    return innermost or "other"


def measure(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Both profiles in each round, so that a change of the machine's speed meets both."""
    kit = Kit()
    plans = {
        profile: [generate(seed, profile, messages=args.messages) for seed in range(args.worlds)]
        for profile in args.profiles
    }
    rounds: dict[str, list[dict[str, float]]] = {profile: [] for profile in args.profiles}
    one_round(plans[args.profiles[0]][:4], kit)
    for _ in range(args.rounds):
        for profile in args.profiles:
            rounds[profile].append(one_round(plans[profile], kit))
    results: dict[str, dict[str, Any]] = {}
    for profile, samples in rounds.items():
        results[profile] = {
            name: round(statistics.median(one[name] for one in samples), 1) for name in samples[0]
        }
        shares = where(plans[profile], kit)
        results[profile]["where"] = {area: round(share, 3) for area, share in shares.items()}
    return results


def table(results: dict[str, dict[str, Any]], args: argparse.Namespace) -> str:
    """A column a profile."""
    rows = {
        "events_per_cpu_s": f"machine events a CPU-second (aim {AIM_EVENTS:,})",
        "worlds_per_cpu_s": f"worlds a CPU-second (aim {AIM_WORLDS})",
        "simulated_over_real": "simulated over real time",
        "events_per_world": "events a world",
        "steps_per_world": "steps a world",
    }
    title = f"{args.worlds} worlds of {args.messages} messages, checks and digest on"
    lines = [f"{title:<48}" + "".join(f"{profile:>12}" for profile in results)]
    for key, text in rows.items():
        cells = "".join(f"{results[profile][key]:>12,.1f}" for profile in results)
        lines.append(f"  {text:<46}{cells}")
    lines.append("where the time goes, %")
    areas = dict.fromkeys(area for result in results.values() for area in result["where"])
    for area in areas:
        cells = "".join(f"{100 * results[p]['where'].get(area, 0):>12.1f}" for p in results)
        lines.append(f"  {area:<46}{cells}")
    return "\n".join(lines)


def main() -> int:
    """Prints the table and one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=["calm", "swarm"])
    parser.add_argument("--messages", type=int, default=60)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    where_run = machine()
    results = measure(args)
    print(table(results, args))
    report = {"machine": where_run, "messages": args.messages, "worlds": args.worlds}
    report["results"] = results
    print(json.dumps(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
