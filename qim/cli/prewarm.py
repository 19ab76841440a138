"""`qim prewarm`: grow a store's key table before a load, so that no doubling falls into it."""

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

from qim.adapters.start_refused import StartRefused
from qim.cli.arguments import UsageError, count, default_data
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json, say

KEYS = 2_200_000
LEFT = "; keys that were made are gone after 4 hours, or with `qim prewarm --clear`"
EXAMPLES = """\
  qim prewarm --redis 127.0.0.1:6379            # 2.2 million keys, above 2^21: about 200 MB, gone after 4 hours
  qim prewarm --redis 127.0.0.1:6379 --clear    # takes them away
  qim prewarm --data .qim/data --keys 1100000   # the private store of `qim up`
"""
MORE = """
A store keeps one key a message for the dedupe window (2 h). At 2^20 and 2^21 keys its table doubles, and every command is
slower while it moves. Nothing of Q-IM reads the keys made here. bench/prewarm.py measures what it gains."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "prewarm",
        asynchronous(_run),
        summary="grow a store's key table before a load",
        examples=EXAMPLES,
        more=MORE,
    )
    parser.add_argument("--redis", metavar="ADDR", help="the store (default: $QIM_REDIS_ADDR)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of a running embedded server")
    parser.add_argument("--keys", type=count, default=KEYS, help=f"how many in all ({KEYS})")
    parser.add_argument("--clear", action="store_true", help="take them away")
    parser.add_argument("--json", action="store_true", help="keys before, after, changed")


async def _run(args: argparse.Namespace) -> int:
    from qim.adapters.redis.address import StoreAddress
    from qim.adapters.redis.outcomes import CallFailed, ServerError
    from qim.adapters.redis.prewarm import Prewarmer

    left = ""
    try:
        address = StoreAddress.parse(_where(args))
        with _bar() as bar:
            task = bar.add_task("clearing" if args.clear else "filling", total=None)
            async with Prewarmer(address) as prewarmer:
                before = await prewarmer.size()
                left = LEFT

                def told(done: int, total: int) -> None:
                    bar.update(task, completed=done, total=total)

                work = prewarmer.clear(told) if args.clear else prewarmer.fill(args.keys, told)
                changed = await work
                after = await prewarmer.size()
    except StartRefused as refusal:
        raise UsageError(str(refusal)) from None
    except ServerError as refusal:
        say(f"qim prewarm: the store refused: {refusal}{left}")
        return int(Exit.FAILED)
    except CallFailed as error:
        say(f"qim prewarm: {error}{left}")
        return int(Exit.UNREACHABLE)
    if args.json:
        print_json({"before": before, "after": after, "changed": changed})
    else:
        print(f"{before} keys before, {after} now ({'-' if args.clear else '+'}{changed})")
    return int(Exit.DONE)


def _where(args: argparse.Namespace) -> str:
    if args.redis:
        return str(args.redis)
    if args.data is None and os.environ.get("QIM_REDIS_ADDR"):
        return os.environ["QIM_REDIS_ADDR"]
    from qim.adapters.embedded.data_directory import DataDirectory
    from qim.adapters.embedded.stale_server import read_record

    data = args.data or default_data()
    record = read_record(DataDirectory(data).store)
    if record is None:
        raise UsageError(f"no store runs on {data}; --redis ADDR names another")
    return f"unix:{record.socket}"


def _bar() -> Progress:
    return Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not os.isatty(2),
    )
