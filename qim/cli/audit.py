"""`qim audit`: the orphan audit of an embedded server, running or stopped, or of a cluster by its auditor."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from qim.adapters.embedded.data_directory import DataDirectory, DataDirectoryHeld
from qim.cli.arguments import UsageError, default_data, seconds, server
from qim.cli.command import Subparsers, add_command
from qim.cli.data_files import NotRunning, running_server
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json, say
from qim.client import NotConnected

DEFAULT_TIMEOUT_SECONDS = 320.0
LOOK_SECONDS = 0.2
EXAMPLES = """\
  qim audit --data .qim/data
  qim audit --data .qim/data --json | jq .verdict
  qim audit --auditor 127.0.0.1:9108      # of a cluster: the metrics address of its `qim serve auditor`
"""
MORE = """
Walks the outbox log from its start to where it ended when the audit began, recomputes from the frozen membership which
mailboxes each record must be in, and looks there. A running server is asked; of a stopped one the store and logs are
opened, and nothing else. JSON: verdict (CLEAN, ORPHANS, INCOMPLETE), covered, orphans, in_flight, incomplete."""


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
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory (default: $QIM_DATA or .qim/data)"
    )
    parser.add_argument(
        "--auditor",
        type=server,
        metavar="HOST:PORT",
        help="ask this auditor of a cluster instead of a data directory's server",
    )
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

    report = _of_cluster(args) if args.auditor else _of_directory(args)
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
    if args.data is not None:
        raise UsageError("--data and --auditor: one of them")
    try:
        return _asked(args.auditor, args.timeout)
    except ConnectionError as error:
        raise NotConnected(f"no auditor at {args.auditor}: {error}") from None


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
            return _asked(running_server(data).metrics, deadline - time.monotonic())
        except (NotRunning, ConnectionError):
            pass
        try:
            return report_as_json(audit_stopped(data))
        except DataDirectoryHeld as held:
            if time.monotonic() > deadline:
                raise UsageError(str(held)) from None
        except REFUSALS as error:
            raise UsageError(str(error)) from None
        time.sleep(LOOK_SECONDS)


def _asked(metrics: str, timeout: float) -> dict[str, Any]:
    """POST /audit. Raises ConnectionError where nobody listens, TimeoutError."""
    import urllib.error
    import urllib.request

    say(f"auditing the running server at {metrics}")
    request = urllib.request.Request(f"http://{metrics}/audit", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=max(timeout, 1.0)) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        raise UsageError(
            f"the server at {metrics} can't audit: {error.code} {error.reason}"
        ) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise TimeoutError from None
        raise ConnectionError(str(error.reason)) from None
