"""`qim load`: open-loop load at a given rate, latencies from the due time, and the proof that nothing acked was lost."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from qim.cli.arguments import UsageError, count, default_data, rate, seconds, server, tenant_name
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.data_files import running_server, secret_of
from qim.cli.exit_codes import Exit
from qim.cli.output import say
from qim.client import NotConnected
from qim.client.tls import client_tls_from_environment

if TYPE_CHECKING:
    from qim.client.load.run import LoadPlan

EXAMPLES = """\
  qim load --rate 500 --seconds 60                              # against `qim up` here
  qim load --server 10.0.0.5:7000 --users 2000 --rate 3000 --json > load.json
  qim load --users 1000 --groups 2 --group-size 1000 --group-share 0.01 --reconnects 20 --slow 5
"""
MORE = """
Sends leave when they are due, whatever is still unanswered; latency counts from then (no coordinated omission). Every
send is repeated under its own client_message_id until it is acked or refused for good, and at the end every acked
message must have been pulled once by each recipient, in order of conversation_seq.

Exit status 1: something acked was lost, doubled or out of order; or the server refused users or groups, and nothing was
sent. 4: nothing acked was lost, but the run is incomplete (sends without an outcome, refused ones, or a generator that could
not keep the rate), so its figures prove nothing.

The secret that signs the users' tokens is $QIM_AUTH_SECRET, or the one of the data directory. $QIM_TLS_CA and
$QIM_TLS_SNI make the connections TLS."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "load",
        asynchronous(_run),
        summary="send at a given rate and prove that all of it arrives",
        examples=EXAMPLES,
        more=MORE,
    )
    where = parser.add_argument_group("where")
    where.add_argument("--data", type=Path, metavar="DIR", help="of an embedded server")
    where.add_argument(
        "--server", type=server, action="append", metavar="HOST:PORT", help="a gateway; repeatable"
    )
    where.add_argument(
        "--tenant", type=tenant_name, default="default", help="of all users (default)"
    )
    what = parser.add_argument_group("what")
    what.add_argument("--rate", type=rate, default=100.0, help="messages a second (100)")
    what.add_argument("--seconds", type=seconds, default=30.0, help="measured (30)")
    what.add_argument("--warmup", type=float, default=3.0, help="seconds before that (3)")
    what.add_argument(
        "--settle", type=seconds, default=60.0, help="seconds to wait afterwards (60)"
    )
    what.add_argument("--users", type=count, default=100, help="one device each (100)")
    what.add_argument(
        "--first-user", type=count, default=1_000_001, metavar="ID", help="and those behind it"
    )
    what.add_argument("--body", type=count, default=200, metavar="BYTES", help="of a message (200)")
    what.add_argument("--groups", type=int, default=0, metavar="N", help="made before the load (0)")
    what.add_argument(
        "--group-size", type=int, default=10, metavar="N", help="members of each (10)"
    )
    what.add_argument("--group-share", type=float, default=0.0, help="of the messages, 0 to 1")
    heavy = parser.add_argument_group("hardship")
    heavy.add_argument("--reconnects", type=float, default=0.0, help="streams cut a second")
    heavy.add_argument("--storms", type=int, default=0, help="times that all are cut at once")
    heavy.add_argument("--slow", type=int, default=0, help="devices that stop reading at times")
    heavy.add_argument(
        "--slow-seconds", type=seconds, default=5.0, help="each time for so long (5)"
    )
    heavy.add_argument(
        "--late-ms",
        type=seconds,
        metavar="MS",
        help="how late the generator may be at P99 (20); more, and latencies prove nothing",
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")


async def _run(args: argparse.Namespace) -> int:
    from qim.client.load.run import LoadRun, NotBegun

    plan = _plan(args)
    if faults := plan.faults():
        raise UsageError("; ".join(faults))
    with _Bar() as bar:
        run = LoadRun(plan, progress=bar.at, tls=client_tls_from_environment(os.environ))
        try:
            report = await run.run()
        except NotBegun as why:
            raise NotConnected(f"{why}; nothing was sent", refused=why.refused) from None
    told = msgspec.to_builtins(report)
    print(json.dumps(told) if args.json else _table(told))
    if not report.holds:
        say(f"qim load: what was acked did not arrive as promised: {told['verdict']}")
        return int(Exit.FAILED)
    if not report.complete:
        say("qim load: incomplete: " + "; ".join(report.incomplete_because))
        return int(Exit.INCOMPLETE)
    return int(Exit.DONE)


def _plan(args: argparse.Namespace) -> "LoadPlan":
    from qim.client.load.run import GENERATOR_LATE_MS, LoadPlan

    servers, secret = _target(args)
    return LoadPlan(
        servers=servers,
        secret=secret,
        tenant_id=args.tenant,
        users=args.users,
        first_user=args.first_user,
        rate=args.rate,
        seconds=args.seconds,
        warmup=args.warmup,
        settle=args.settle,
        group_size=args.group_size if args.groups else 0,
        group_count=args.groups,
        group_share=args.group_share,
        body_bytes=args.body,
        reconnects=args.reconnects,
        storms=args.storms,
        late_ms=args.late_ms or GENERATOR_LATE_MS,
        slow=args.slow,
        slow_seconds=args.slow_seconds,
    )


def _target(args: argparse.Namespace) -> tuple[tuple[str, ...], bytes]:
    secret = os.environ.get("QIM_AUTH_SECRET", "").encode()
    if args.server:
        if not secret and args.data is None:
            raise UsageError(
                "--server needs $QIM_AUTH_SECRET, or --data DIR beside an embedded server"
            )
        return tuple(args.server), secret or secret_of(args.data)
    data = args.data or default_data()
    return (running_server(data).tcp,), secret_of(data)


class _Bar:
    """A progress bar on standard error, one task a phase; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not os.isatty(2),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def at(self, phase: str, share: float) -> None:
        """``phase`` stands at ``share`` of 1."""
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=1.0)
        self._progress.update(self._tasks[phase], completed=share)


def _table(told: dict[str, Any]) -> str:
    lines = [
        (
            f"offered {told['offered_per_s']:.0f}/s, acked {told['acked_per_s']:.0f}/s, "
            f"delivered {told['delivered_per_s']:.0f}/s over {told['seconds']:.1f} s"
        ),
        "  ".join(f"{name} {value}" for name, value in told["verdict"].items()),
        f"{'ms':>12}{'count':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'p99.9':>10}{'max':>10}",
    ]
    for stage, row in told["latency_ms"].items():
        cells = "".join(f"{row[name]:>10.2f}" for name in ("p50", "p90", "p99", "p99.9", "max"))
        lines.append(f"{stage:>12}{int(row['count']):>10}{cells}")
    for kind in ("errors", "counts"):
        told_kind = "  ".join(f"{name} {value}" for name, value in sorted(told[kind].items()))
        lines.append(f"{kind}: {told_kind or 'none'}")
    return "\n".join(lines)
