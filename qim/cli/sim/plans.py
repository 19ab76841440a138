"""SEED_OR_PLAN on the command line, and where plans of failing seeds are kept."""

import argparse
from pathlib import Path
from typing import Final

import msgspec

from qim.cli.arguments import UsageError
from qim.sim.generate import generate
from qim.sim.plan import PROFILES, Plan, decode_plan, encode_plan

PLANS_FOLDER: Final = Path(".qim/sim")


def add_profile(parser: argparse.ArgumentParser) -> None:
    """--profile."""
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default="swarm",
        help="which faults a seed may draw (default: swarm)",
    )


def add_seed_or_plan(parser: argparse.ArgumentParser) -> None:
    """The world to look at."""
    parser.add_argument(
        "world", metavar="SEED_OR_PLAN", help="a seed, or a saved plan (a JSON file)"
    )
    add_profile(parser)


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan named by the arguments. Raises UsageError."""
    text: str = args.world
    if text.isdecimal():
        return generate(int(text), args.profile)
    try:
        return decode_plan(Path(text).read_bytes())
    except OSError as error:
        raise UsageError(f"{text} is neither a seed nor a plan that can be read: {error}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{text} is no plan of this version: {error}") from None


def save_plan(plan: Plan) -> Path:
    """Keep it under .qim/sim/; the file's name says the seed."""
    PLANS_FOLDER.mkdir(parents=True, exist_ok=True)
    file = PLANS_FOLDER / f"{plan.profile}-{plan.seed}.json"
    file.write_bytes(encode_plan(plan))
    return file
