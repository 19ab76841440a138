"""The release gate: a bed of its own, all checks and tests, smoke, load, hardship, invariants, audit; and one verdict.

    QIM_LOAD_RATE=300 make acceptance                             # messages a second that this machine must hold
    QIM_LOAD_RATE=300 python -m acceptance --json > report.json
    QIM_LOAD_RATE=20 python -m acceptance --seconds 10 --steps bed start smoke steady audit stop    # a trial: never ACCEPTED

Servers and processes run on free loopback ports in a folder of this run (kept when it is not accepted, or with --keep) and
are ended by pid. Whatever was not looked at, not told or not finished makes the run INCOMPLETE; docs/acceptance.md says
what each step proves.

Exit status (make itself says 2 for all but 0): 0 ACCEPTED, 1 REJECTED: a promise is broken, 2 wrong usage or QIM_LOAD_RATE not set, 4 not ACCEPTED for want
of proof: INCOMPLETE, or PARTIAL, which is all that a shortened run can be; 130 interrupted.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from acceptance.commands import ROOT, Commands, tail
from acceptance.judgement import (
    ACK_P99_MS,
    END_TO_END_P99_MS,
    HEAVY_SECONDS,
    STEADY_SECONDS,
    STEPS,
    Status,
    StepResult,
    Verdict,
    shortened_by,
    verdict_of,
)
from acceptance.steps import Plan, Steps, forget_settings

RATE_VARIABLE: Final = "QIM_LOAD_RATE"
EXITS: Final = {
    Verdict.ACCEPTED: 0,
    Verdict.REJECTED: 1,
    Verdict.INCOMPLETE: 4,
    Verdict.PARTIAL: 4,
}
USAGE: Final = 2
INTERRUPTED: Final = 130
BEFORE_THE_BED: Final = ("bed", "check", "test", "integration", "start")
"""After one of these did not pass nothing else is tried: it would cost an hour and prove nothing."""
TOLD_TO_PEOPLE: Final = ("check", "test", "integration")
"""The others' standard output is a report of JSON: it is in the folder."""
WHY_SHOWN_MAX: Final = 12


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def rate_of(text: str | None) -> float:
    """Of $QIM_LOAD_RATE. Raises ValueError with what to do."""
    if not text:
        raise ValueError(
            f"{RATE_VARIABLE} is not set: it is the rate in messages a second that this deployment has to hold, "
            f"and nobody can guess it. For instance: {RATE_VARIABLE}=300 make acceptance"
        )
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"{RATE_VARIABLE}={text!r} is no rate: messages a second above 0")
    return rate


def run(steps: Steps, plan: Plan, *, keep_going: bool) -> list[StepResult]:
    """Every step in order; one that raises is incomplete, never passed."""
    results: list[StepResult] = []
    ended_early = False
    for number, name in enumerate(STEPS, 1):
        if name not in plan.steps or ended_early:
            why = "not reached" if name in plan.steps else "not asked for"
            results.append(StepResult(name=name, status=Status.SKIPPED, seconds=0.0, why=(why,)))
            continue
        say(f"[{number:>2}/{len(STEPS)}] {name} …")
        result = carried_out(steps, name)
        results.append(result)
        say(f"        {result.status} after {result.seconds:.0f} s")
        for why in result.why[:WHY_SHOWN_MAX]:
            say(f"        - {why}")
        if result.status is not Status.PASSED:
            show_log(steps.folder / f"{name}.log")
            if name in TOLD_TO_PEOPLE:
                show_log(steps.folder / f"{name}.out")
            ended_early = name in BEFORE_THE_BED and not keep_going
    return results


def carried_out(steps: Steps, name: str) -> StepResult:
    """One step, whatever happens in it."""
    began = time.monotonic()
    try:
        judged = steps.by_name[name]()
        return StepResult(
            name=name,
            status=judged.status,
            seconds=time.monotonic() - began,
            why=judged.failed + judged.incomplete,
            figures=judged.figures,
        )
    except Exception as error:
        why = f"could not be carried out: {type(error).__name__}: {str(error)[:2_000]}"
        return StepResult(
            name=name, status=Status.INCOMPLETE, seconds=time.monotonic() - began, why=(why,)
        )


def show_log(log: Path) -> None:
    """The end of what a step's command wrote."""
    if text := tail(log):
        say(f"        … the end of {log}:")
        say("\n".join(f"        | {line[:300]}" for line in text.splitlines()))


def told_of(
    results: Sequence[StepResult], plan: Plan, verdict: Verdict, *, shortened: bool
) -> dict[str, Any]:
    """The report."""
    return {
        "verdict": str(verdict),
        "shortened": shortened,
        "plan": msgspec.to_builtins(plan),
        "objectives_ms": {"ack_p99": ACK_P99_MS, "end_to_end_p99": END_TO_END_P99_MS},
        "tree": tree(),
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg(), "python": sys.version},
        "steps": [msgspec.to_builtins(result) for result in results],
    }


def tree() -> str:
    """What was judged: the commit, and whether the tree is the commit."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "no checkout"
    return told.stdout.strip()


def lines_of(told: dict[str, Any]) -> list[str]:
    """The report for people."""
    lines = [f"{told['tree']}, {told['plan']['rate']:g} messages a second"]
    for step in told["steps"]:
        if step["status"] == Status.SKIPPED:
            lines.append(f"  {step['status']:<11}{step['name']:<13}({', '.join(step['why'])})")
            continue
        lines.append(f"  {step['status']:<11}{step['name']:<13}{step['seconds']:>7.0f} s")
        lines += [f"    - {why}" for why in step["why"][:WHY_SHOWN_MAX]]
        latency = step["figures"].get("latency_ms", {})
        for stage, row in latency.items():
            lines.append(
                f"      {stage:<11} P50 {row['p50']:>8.1f}  P99 {row['p99']:>8.1f}  max {row['max']:>8.1f} ms"
            )
    lines.append(f"{told['verdict']}" + (" (shortened)" if told["shortened"] else ""))
    return lines


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m acceptance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        default=list(STEPS),
        choices=STEPS,
        metavar="STEP",
        help=f"these alone, of {', '.join(STEPS)}",
    )
    parser.add_argument(
        "--seconds", type=float, default=STEADY_SECONDS, help=f"of steady load ({STEADY_SECONDS:g})"
    )
    parser.add_argument(
        "--heavy-seconds", type=float, default=None, help=f"of hardship ({HEAVY_SECONDS:g})"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="of each role (1)")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3), help="of Kafka (1)")
    parser.add_argument("--plain", action="store_true", help="no TLS, inside or outside")
    parser.add_argument("--keep-going", action="store_true", help="also after a failed test run")
    parser.add_argument(
        "--keep", action="store_true", help="leave the folder: logs, reports, disks"
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    args = parser.parse_args()
    if args.seconds <= 0 or (args.heavy_seconds or 1) <= 0 or args.processes < 1:
        parser.error("seconds and processes are above 0")
    return args


def main() -> int:
    """Exit status."""
    args = arguments()
    try:
        rate = rate_of(os.environ.get(RATE_VARIABLE))
    except ValueError as error:
        say(f"acceptance: {error}")
        return USAGE
    if taken := forget_settings():
        say(f"not passed on: {', '.join(sorted(set(taken) - {RATE_VARIABLE})) or 'nothing else'}")
    shorter = args.seconds / STEADY_SECONDS
    heavy = args.heavy_seconds or HEAVY_SECONDS * min(1.0, shorter)
    plan = Plan(
        rate=rate,
        steps=tuple(name for name in STEPS if name in args.steps),
        steady_seconds=args.seconds,
        heavy_seconds=heavy,
        processes_each=args.processes,
        brokers=args.brokers,
        plain=args.plain,
    )
    shortened = shortened_by(plan.steps, plan.steady_seconds, plan.heavy_seconds)
    folder = Path(tempfile.mkdtemp(prefix="qim-acceptance-"))
    say(f"in {folder}" + (": a shortened run, PARTIAL at best" if shortened else ""))
    return judged(args, plan, folder, shortened=shortened)


def judged(args: argparse.Namespace, plan: Plan, folder: Path, *, shortened: bool) -> int:
    """All steps, the report, the folder's end."""
    signal.signal(signal.SIGTERM, interrupted)
    commands = Commands(folder, lambda seconds: say(f"        … {seconds:.0f} s"))
    steps = Steps(plan, folder, commands)
    keep = True
    try:
        results = run(steps, plan, keep_going=args.keep_going)
        verdict = verdict_of(results, shortened=shortened)
        told = told_of(results, plan, verdict, shortened=shortened)
        (folder / "report.json").write_text(json.dumps(told, indent=2))
        print(json.dumps(told) if args.json else "\n".join(lines_of(told)))
        keep = args.keep or verdict not in (Verdict.ACCEPTED, Verdict.PARTIAL)
        return EXITS[verdict]
    except KeyboardInterrupt:
        say("acceptance: interrupted; nothing was judged")
        return INTERRUPTED
    finally:
        steps.close()
        if keep:
            say(f"logs, reports and disks are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def interrupted(*_: object) -> NoReturn:
    """SIGTERM ends the run as Ctrl-C does: with everything it started."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
