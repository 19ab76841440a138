"""The simulator's speed: machine events and worlds a CPU-second, simulated over real time, and where the time goes.

    python bench/sim.py [--worlds 40] [--rounds 5] [--profile calm] [--messages 60] [--where] [--json FILE]

Everything is on: checks after each step, all checkers, the audit, the rolling digest. CPU time of one process; the median
of rounds counts. `--where` profiles one more round and adds its time up by package.
"""

import argparse
import cProfile
import json
import platform
import pstats
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from qim.sim.generate import generate
from qim.sim.plan import PROFILES, Plan
from qim.sim.run import run
from qim.sim.scene import Kit

AIM_EVENTS = 60_000
AIM_WORLDS = 35
ROOT = str(Path(__file__).resolve().parents[1]) + "/"


def one_round(plans: list[Plan], kit: Kit) -> dict[str, float]:
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
    """Share of the time by package; what the standard library and C cost is added to who called it."""
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    for plan in plans:
        run(plan, kit)
    profile.disable()
    shares: Counter[str] = Counter()
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        place = package_of(file)
        if place:
            shares[place] += own
            continue
        for (caller, _, _), (_, _, by_caller, _) in callers.items():
            shares[package_of(caller) or "other"] += by_caller
    total = sum(shares.values())
    return {place: share / total for place, share in shares.most_common(14)}


def package_of(file: str) -> str:
    if not file.startswith(ROOT + "qim/"):
        return ""
    parts = file.removeprefix(ROOT).split("/")
    return "/".join(parts[:3]) if parts[1] != "sim" else "/".join(parts[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", choices=PROFILES, default="calm")
    parser.add_argument("--messages", type=int, default=60)
    parser.add_argument("--where", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    plans = [generate(seed, args.profile, messages=args.messages) for seed in range(args.worlds)]
    kit = Kit()
    one_round(plans[:4], kit)
    rounds = [one_round(plans, kit) for _ in range(args.rounds)]
    result: dict[str, Any] = {
        name: round(statistics.median(one[name] for one in rounds), 1) for name in rounds[0]
    }
    result |= {
        "profile": args.profile,
        "messages": args.messages,
        "python": platform.python_version(),
    }
    print(
        f"{args.worlds} worlds of {args.messages} messages, profile {args.profile}, checks and digest on"
    )
    print(
        f"  machine events a CPU-second  {result['events_per_cpu_s']:>10,.0f}   aim {AIM_EVENTS:,}"
    )
    print(f"  worlds a CPU-second          {result['worlds_per_cpu_s']:>10,.1f}   aim {AIM_WORLDS}")
    print(f"  simulated over real time     {result['simulated_over_real']:>10,.0f}")
    print(
        f"  events and steps a world     {result['events_per_world']:>10,.0f}   {result['steps_per_world']:,.0f}"
    )
    if args.where:
        result["where"] = {place: round(share, 3) for place, share in where(plans, kit).items()}
        print("  where the time goes")
        for place, share in result["where"].items():
            print(f"    {place:<24} {100 * share:5.1f} %")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
