"""`qim archive schema`: make, judge or print the tables of an archive on Cassandra or ScyllaDB."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qim.adapters.start_refused import StartRefused
from qim.cli.arguments import UsageError, count
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json, say
from qim.services.settings import read_settings
from qim.services.settings.reading import FILE_VARIABLE

EXAMPLES = """\
  qim archive schema create --config /etc/qim.toml     # keyspace and tables that are missing, then as check
  export QIM_SCYLLA_HOSTS=10.0.0.1,10.0.0.2,10.0.0.3 QIM_SCYLLA_KEYSPACE=qim QIM_SCYLLA_DC=dc1
  qim archive schema check       # exit 2 and the command to run, where something is not as it must be
  qim archive schema print       # the CQL, for whoever may create and we may not
"""
MORE = """
The cluster is named by QIM_SCYLLA_HOSTS, QIM_SCYLLA_KEYSPACE, QIM_SCYLLA_DC and QIM_SCYLLA_RF in the environment or in the file
that `qim serve` reads (--config or $QIM_CONFIG), or by the options, which go before both. At least
three replicas in the data centre, Tablets disabled; QIM_SCYLLA_ALLOW_UNSAFE_DEV=1 waives the replicas on loopback."""
OPTIONS = ("hosts", "keyspace", "dc", "rf", "consistency")


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "archive",
        help="the archive's schema on Cassandra or ScyllaDB",
        epilog=f"examples:\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups = parser.add_subparsers(title="what", metavar="WHAT", required=True)
    schema = add_command(
        groups,
        "schema",
        _run,
        summary="make, judge or print the archive's tables",
        examples=EXAMPLES,
        more=MORE,
    )
    schema.add_argument(
        "action",
        choices=("create", "check", "print"),
        help="make what is missing, judge, or print the CQL",
    )
    schema.add_argument("--config", type=Path, metavar="FILE", help="TOML (default: $QIM_CONFIG)")
    schema.add_argument("--hosts", metavar="HOST[:PORT],…", help="contact points")
    schema.add_argument("--keyspace", metavar="NAME", help="where the tables are")
    schema.add_argument("--dc", metavar="NAME", help="the local data centre")
    schema.add_argument("--rf", type=count, metavar="N", help="replicas in it (default: 3)")
    schema.add_argument("--consistency", metavar="LEVEL", help="LOCAL_QUORUM (default) or stronger")


def _run(args: argparse.Namespace) -> int:
    try:
        return _carry_out(args)
    except StartRefused as refusal:
        raise UsageError(str(refusal)) from None


def _carry_out(args: argparse.Namespace) -> int:
    """Raises StartRefused."""
    # The other commands neither need the driver nor wait for it.
    from qim.adapters.cassandra import durability, schema
    from qim.adapters.cassandra.session import DriverException, open_session, unreachable
    from qim.adapters.cassandra.settings import settings_from

    settings = settings_from({**_configured(args.config), **_told(args)})
    if args.action == "print":
        print("-- on ScyllaDB the keyspace needs also: AND tablets = {'enabled': false}")
        for statement in schema.statements(settings):
            print(f"{statement};")
        return int(Exit.DONE)
    cluster, session = open_session(settings)
    try:
        if args.action == "create":
            schema.create(session, settings)
        for found, do in durability.judge(session, settings, schema.check(session, settings)):
            say(f"{found}; {do}")
    except DriverException as error:
        raise unreachable(settings, error) from None
    finally:
        cluster.shutdown()
    done: dict[str, Any] = {"keyspace": settings.keyspace, "schema_version": schema.SCHEMA_VERSION}
    print_json(done)
    return int(Exit.DONE)


def _configured(file: Path | None) -> Mapping[str, str]:
    """The environment, and what a file of `qim serve` says of the archive where one is named. Raises StartRefused."""
    if file is None and not os.environ.get(FILE_VARIABLE):
        return os.environ
    told = read_settings(os.environ, file).require().told()
    return {name: value for name, value in told.items() if name.startswith("QIM_SCYLLA_")}


def _told(args: argparse.Namespace) -> dict[str, str]:
    """What the options say, in the words of the environment."""
    told = {name: getattr(args, name) for name in OPTIONS}
    return {f"QIM_SCYLLA_{name.upper()}": str(value) for name, value in told.items() if value}
