"""`qim doctor`: looks at a deployment, explains what it finds, and says what to do; writes nothing."""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qim.adapters.embedded.data_directory import DataDirectory
from qim.cli.arguments import UsageError, default_data, server
from qim.cli.command import Subparsers, add_command
from qim.cli.data_files import NotRunning, running_server
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json
from qim.cli.serve import ROLES

if TYPE_CHECKING:
    from qim.services.doctor.findings import Finding

EXAMPLES = """\
  qim doctor --data .qim/data                  # an embedded server, running or stopped
  qim doctor --config /etc/qim.toml            # a cluster, from the configuration of its processes
  qim doctor --cluster --process writer=10.0.0.7:9101 --process writer=10.0.0.8:9101 --json
"""
MORE = """
Of a cluster: the configuration for every role, each server's start-up checks, the shared parameters, clocks, who holds the
leases, how far each consumer is behind, each process's /livez, /readyz and /metrics, and certificates. Metrics are looked for
where the configuration puts them; --process names others. --deep also compares positions with logs and lists dead letters: it
reads every receipt. Each finding that isn't ok says what to do and names its page of docs/alarms/.
Status 0: nothing fails (warnings may be there); 1: something does."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "doctor",
        _run,
        summary="look at a whole deployment and explain it",
        examples=EXAMPLES,
        more=MORE,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory (default: $QIM_DATA or .qim/data)"
    )
    where.add_argument("--config", type=Path, metavar="FILE", help="a cluster, by its TOML")
    where.add_argument("--cluster", action="store_true", help="a cluster, by the environment")
    parser.add_argument(
        "--process",
        action="append",
        default=[],
        type=_process,
        metavar="ROLE=HOST:PORT",
        help="where a process has its metrics; may be repeated",
    )
    parser.add_argument("--deep", action="store_true", help="also read every receipt")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _process(text: str) -> tuple[str, str]:
    role, equals, place = text.partition("=")
    if not equals or role not in ROLES:
        roles = ", ".join(ROLES)
        raise argparse.ArgumentTypeError(f"expected ROLE=HOST:PORT, ROLE of {roles}; got {text!r}")
    return role, server(place)


def _run(args: argparse.Namespace) -> int:
    from qim.services.doctor.findings import State, as_json, as_text, worst

    found = _cluster(args) if args.config or args.cluster else _embedded(args)
    if args.json:
        print_json(as_json(found))
    else:
        for line in as_text(found):
            print(line)
    return int(Exit.FAILED if worst(found) is State.FAIL else Exit.DONE)


def _cluster(args: argparse.Namespace) -> "list[Finding]":
    from qim.services.doctor.cluster import examined
    from qim.services.doctor.findings import refused
    from qim.services.settings import read_settings

    reading = read_settings(os.environ, args.config)
    if reading.faults:
        return [refused("configuration", fault) for fault in reading.faults]
    for remark in reading.remarks:
        print(f"qim doctor: {remark}", file=sys.stderr)
    named: dict[str, list[str]] = {}
    for role, address in args.process:
        named.setdefault(role, []).append(address)
    try:
        return asyncio.run(examined(reading.settings, named, deep=args.deep))
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error}: install the servers' clients with pip install 'qim[cluster]'"
        ) from None


def _embedded(args: argparse.Namespace) -> "list[Finding]":
    from qim.cli.refusals import REFUSALS
    from qim.services.doctor import embedded

    data = args.data or default_data()
    if not DataDirectory(data).registry_database.exists():
        raise UsageError(
            f"{data} is no data directory of a server; a cluster is named by --config FILE or --cluster"
        )
    try:
        return embedded.running(running_server(data).metrics)
    except NotRunning:
        pass
    try:
        return embedded.stopped(data)
    except REFUSALS as error:
        raise UsageError(str(error)) from None
