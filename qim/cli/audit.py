"""`qim audit`: the orphan audit of an embedded server, running or stopped, or of a cluster by its auditor."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from qim.adapters.embedded.data_directory import DataDirectory, DataDirectoryHeld
from qim.cli import data_files
from qim.cli.admin import add_auditor, ordered
from qim.cli.arguments import UsageError, default_data, seconds
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json

DEFAULT_TIMEOUT_SECONDS = 320.0
LOOK_SECONDS = 0.2
EXAMPLES = """\
  qim audit --data .qim/data
  qim audit --data .qim/data --json | jq .verdict
  env $(cat certs/admin.env) qim audit --auditor 10.0.0.9:7008    # of a cluster: its `qim serve auditor`
"""
MORE = """
Walks the outbox log from its start to where it ended when the audit began, recomputes from the frozen membership which
mailboxes each record must be in, and looks there. A running server is asked; of a stopped one the store and logs are
opened, and nothing else. Of a cluster (--config FILE, --cluster or --auditor) its auditor is asked, by Admin mTLS: with
QIM_INTERNAL_TLS_CERT and _KEY of an admin. JSON: verdict (CLEAN, ORPHANS, INCOMPLETE), covered, orphans, in_flight, incomplete."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "audit",
        _run,
        summary="find every message that is not where it must be",
        examples=EXAMPLES,
        more=MORE,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory (default: $QIM_DATA or .qim/data)"
    )
    where.add_argument("--config", type=Path, metavar="FILE", help="a cluster, by its TOML")
    where.add_argument("--cluster", action="store_true", help="a cluster, by the environment")
    add_auditor(parser)
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"how long it may take (default: {DEFAULT_TIMEOUT_SECONDS:g})",
    )


def _run(args: argparse.Namespace) -> int:
    # Here and below: the commands of a client don't wait for what only an audit needs.
    from qim.core.audit import Verdict
    from qim.services.audit_report import report_as_text

    cluster = args.auditor or args.config or args.cluster
    report = _of_cluster(args) if cluster else _of_directory(args)
    if args.json:
        print_json(report)
    else:
        for line in report_as_text(report):
            print(line)
    verdict = Verdict(report["verdict"])
    if verdict is Verdict.CLEAN:
        return int(Exit.DONE)
    return int(Exit.FAILED if verdict is Verdict.ORPHANS else Exit.INCOMPLETE)


def _of_cluster(args: argparse.Namespace) -> dict[str, Any]:
    from qim.adapters.start_refused import StartRefused
    from qim.core.contract.rpc_admin import AdminOrder
    from qim.services.cluster.admin import RID
    from qim.services.settings import read_settings

    if args.data is not None:
        raise UsageError("--data and --auditor: one of them")
    try:
        settings = read_settings(os.environ, args.config).require()
    except StartRefused as refused:
        raise UsageError(str(refused)) from None
    return ordered(settings, args.auditor, AdminOrder(rid=RID, what="audit"), args.timeout)


def _of_directory(args: argparse.Namespace) -> dict[str, Any]:
    data = args.data or default_data()
    if not DataDirectory(data).registry_database.exists():
        raise UsageError(f"{data} is no data directory of a server: nothing there to audit")
    return _report(data, args.timeout)


def _report(data: Path, timeout: float) -> dict[str, Any]:
    """From the server where one runs, else from its files; one that is just starting or stopping is waited for."""
    from qim.cli.refusals import REFUSALS
    from qim.services.audit_report import report_as_json
    from qim.services.up import audit_stopped

    deadline = time.monotonic() + timeout
    while True:
        try:
            return data_files.order(data, "/audit", b"", deadline - time.monotonic())
        except (data_files.NotRunning, ConnectionError):
            pass
        try:
            return report_as_json(audit_stopped(data))
        except DataDirectoryHeld as held:
            if time.monotonic() > deadline:
                raise UsageError(str(held)) from None
        except REFUSALS as error:
            raise UsageError(str(error)) from None
        time.sleep(LOOK_SECONDS)
