"""`qim sim run`: a campaign. The only place that owns processes, clocks and a progress bar."""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from qim.cli.arguments import UsageError
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.sim.plans import add_profile, save_plan
from qim.sim.campaign import Campaign, Outcome, outcome_of
from qim.sim.generate import generate
from qim.sim.run import run
from qim.sim.scene import Kit

CHUNK_SEEDS: Final = 10
SEEDS_SHOWN_MAX: Final = 8
EXAMPLES = """\
  qim sim run --seeds 500
  qim sim run --seeds 2000 --start 10000 --profile store -j 2 --json | jq .violations
"""
MORE = """
Exit status: 0 when every world ended clean, 1 with violations, 2 for wrong usage. --json prints one object: profile,
seeds, violations (seed, check, role, detail, repro), events, cpu_s, sim_s, digest (the same for any -j), census. The
plans of failing seeds are saved under .qim/sim/."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "run",
        _run,
        summary="a campaign: many seeds, failures grouped by (check, role)",
        examples=EXAMPLES,
        more=MORE,
    )
    parser.set_defaults(name="sim run")
    parser.add_argument(
        "--seeds", type=int, default=100, metavar="N", help="how many (default: 100)"
    )
    parser.add_argument(
        "--start", type=int, default=None, metavar="SEED", help="first seed (default: a fresh one)"
    )
    add_profile(parser)
    parser.add_argument("-j", dest="jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run_seeds(profile: str, seeds: range) -> list[Outcome]:
    """What one worker does with one chunk."""
    kit = Kit()
    outcomes: list[Outcome] = []
    for seed in seeds:
        begun = time.process_time()
        report = run(generate(seed, profile), kit)
        outcomes.append(outcome_of(report, time.process_time() - begun))
    return outcomes


def begin() -> None:
    """Once a process, before its first world: what stands now is no longer walked at every collection.

    At each chunk it would take what is left of the worlds before, and keep it for ever: worlds are cycles.
    """
    gc.freeze()


def campaign(profile: str, seeds: range, jobs: int) -> Iterator[list[Outcome]]:
    """Outcomes chunk by chunk, in the order of seeds."""
    chunks = [seeds[i : i + CHUNK_SEEDS] for i in range(0, len(seeds), CHUNK_SEEDS)]
    if jobs <= 1:
        begin()
        for chunk in chunks:
            yield run_seeds(profile, chunk)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=begin) as pool:
        yield from pool.map(run_seeds, [profile] * len(chunks), chunks)


def _run(args: argparse.Namespace) -> int:
    if args.seeds < 1 or args.jobs < 1:
        raise UsageError("--seeds and -j must be at least 1")
    start = args.start if args.start is not None else time.time_ns() // 1_000_000 % 10**9 * 1_000
    if start < 0:
        raise UsageError("--start must not be negative")
    seeds = range(start, start + args.seeds)
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        console = Console(stderr=True)
        bar = Progress(
            "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, disable=args.json or not sys.stderr.isatty(),
        )  # fmt: skip
        stack.enter_context(bar)
        task = bar.add_task(f"{args.profile} from {start}", total=len(seeds))
        for part in campaign(args.profile, seeds, args.jobs):
            outcomes += part
            bad = sum(1 for outcome in outcomes if outcome.violations)
            text = f"{args.profile} from {start}" + (f", {bad} not clean" if bad else "")
            bar.update(task, completed=len(outcomes), description=text)
    result = Campaign(profile=args.profile, outcomes=tuple(outcomes))
    for outcome in result.outcomes:
        if outcome.violations:
            save_plan(generate(outcome.seed, args.profile))
    if args.json:
        print(json.dumps(result.as_json()))
    else:
        _tell(result, start)
    return int(Exit.DONE if result.clean else Exit.FAILED)


def _tell(result: Campaign, start: int) -> None:
    seeds = len(result.outcomes)
    events = sum(outcome.events for outcome in result.outcomes)
    cpu_s = sum(outcome.cpu_s for outcome in result.outcomes) or 1e-9
    sim_s = sum(outcome.sim_ms for outcome in result.outcomes) / 1000
    bad = sum(1 for outcome in result.outcomes if outcome.violations)
    print(
        f"{seeds} worlds of profile {result.profile} from seed {start}: {seeds - bad} clean, {bad} not"
    )
    print(
        f"{events:,} machine events, {sim_s:,.0f} simulated s in {cpu_s:.1f} CPU-s"
        f" ({events / cpu_s:,.0f} events and {seeds / cpu_s:.1f} worlds a CPU-s)"
    )
    print(f"digest {result.digest()}")
    for check, role, failed, detail in result.groups():
        shown = ", ".join(str(seed) for seed in failed[:SEEDS_SHOWN_MAX])
        more = f" and {len(failed) - SEEDS_SHOWN_MAX} more" if len(failed) > SEEDS_SHOWN_MAX else ""
        print(f"\n{check} ({role}): {len(failed)} seeds: {shown}{more}")
        print(f"  {detail}")
        print(f"  qim sim replay {failed[0]} --profile {result.profile}")
