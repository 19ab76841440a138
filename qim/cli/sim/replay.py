"""`qim sim replay`: the readable story of one world."""

import argparse
import json

import msgspec

from qim.cli.arguments import UsageError
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.sim.plans import add_seed_or_plan, plan_of
from qim.sim.run import run
from qim.sim.scene import Kit
from qim.sim.story import Story, render

EXAMPLES = """\
  qim sim replay 17
  qim sim replay 17 --node writer-1 --until 3000
  qim sim replay 17 --follow 018bd4de4b9100000001000100000000
"""
MORE = """
One line for each fact a process heard (→) and each order it gave (←), with faults (⚡ to ✓) and violations (✗) in their
places; the time is the world's, in ms. --follow shows what names a message_id or client_message_id (32 hex digits), also
inside of frames and log values. Exit status: 0 clean, 1 violations, 2 wrong usage."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "replay",
        _run,
        summary="tell what happened in one world",
        examples=EXAMPLES,
        more=MORE,
    )
    parser.set_defaults(name="sim replay")
    add_seed_or_plan(parser)
    parser.add_argument("--until", type=int, metavar="MS", help="stop there")
    parser.add_argument("--follow", default="", metavar="MESSAGE_ID", help="only what names it")
    parser.add_argument(
        "--node", default="", metavar="NAME", help="only this process (writer-1, …)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object with all lines")


def _run(args: argparse.Namespace) -> int:
    try:
        follow = bytes.fromhex(args.follow)
    except ValueError:
        raise UsageError("--follow takes the hex digits of an id") from None
    plan = plan_of(args)
    story = Story(follow=follow, node=args.node)
    report = run(plan, Kit(), observe=story.observer(), until=args.until)
    lines = story.told(plan, report.violations, report.sim_ms)
    if args.json:
        told = {
            "seed": plan.seed,
            "profile": plan.profile,
            "digest": report.digest,
            "ledger": report.ledger,
            "lines": msgspec.to_builtins(lines),
        }
        print(json.dumps(told))
    else:
        for line in lines:
            print(render(line))
        ledger = ", ".join(f"{name} {count}" for name, count in report.ledger.items())
        print(f"\nseed {plan.seed}, profile {plan.profile}: {report.sim_ms} ms, {ledger}")
        print(f"digest {report.digest}")
        for check, role in report.identities():
            print(f"violated: {check} ({role})")
    return int(Exit.DONE if report.clean else Exit.FAILED)
