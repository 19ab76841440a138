"""`qim up`: the embedded server in this process."""

import argparse
import os
import sys
from pathlib import Path

from qim.cli.arguments import UsageError, address, count, default_data, tenant_days
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit

LOG_FORMAT_VARIABLE = "QIM_LOG_FORMAT"
SERVED_ALONE = {
    "QIM_WEBHOOK_BEFORE_SEND_URL": "`qim serve writer` asks hooks",
    "QIM_WEBHOOK_AFTER_SEND_URL": "`qim serve writer` tells hooks",
    "QIM_TLS_CERT": "`qim serve gateway` speaks TLS",
    "QIM_TLS_KEY": "`qim serve gateway` speaks TLS",
}
"""What would be believed to hold and doesn't: messages that nobody judged, clients in plaintext."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EXAMPLES = """\
  qim up
  qim up --data ./data --tcp 127.0.0.1:7000 --metrics 127.0.0.1:9100
  qim up --tcp 127.0.0.1:0 --metrics 127.0.0.1:0    # free ports, told in the ready line
"""
MORE = """
Runs all machines in one process over a private Valkey and a SQLite log; prints one JSON line when it serves:
{"ready": true, "tcp": "127.0.0.1:7000", "metrics": "127.0.0.1:9100", "pid": 4711}
Logs go to standard error. SIGTERM or Ctrl-C drains and ends it; a kill -9 loses nothing that was acknowledged.
A second one on the same data directory is refused and names the pid that holds it."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "up",
        _run,
        summary="run a whole Q-IM in this process",
        examples=EXAMPLES,
        more=MORE,
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory (default: $QIM_DATA or .qim/data)"
    )
    parser.add_argument(
        "--tcp",
        type=address,
        metavar="HOST:PORT",
        help="where clients connect (default: 127.0.0.1:7000)",
    )
    parser.add_argument(
        "--metrics",
        type=address,
        metavar="HOST:PORT",
        help="/metrics /healthz /readyz /livez (default: 127.0.0.1:9100)",
    )
    parser.add_argument(
        "--fsync",
        choices=("everysec", "always"),
        help="the private store's appendfsync (default: everysec; the logs are always synced)",
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append the log here (default: standard error)"
    )
    log_format = os.environ.get(LOG_FORMAT_VARIABLE) or "json"
    told = f"how log lines look (default: ${LOG_FORMAT_VARIABLE}, else json)"
    parser.add_argument("--log-format", choices=("json", "text"), default=log_format, help=told)
    parser.add_argument(
        "--no-stages", action="store_true", help="don't log each stage of each message"
    )
    _add_fixed_arguments(parser)


def _add_fixed_arguments(parser: argparse.ArgumentParser) -> None:
    """How history is kept and data laid out: fixed at the first start, most of it."""
    parser.add_argument(
        "--message-store-backend",
        choices=("tiered", "redis", "scylla"),
        help="tiered: old history moves into an archive (default); redis: all of it stays hot; fixed at the first start",
    )
    parser.add_argument(
        "--hot-window",
        type=count,
        metavar="HOURS",
        help="how long history stays in the hot store (default: 168); fixed at the first start",
    )
    parser.add_argument(
        "--retention",
        type=count,
        metavar="DAYS",
        help="how long messages are kept, 1..3650 (default: 30); fixed at the first start",
    )
    parser.add_argument(
        "--tenant-retention",
        type=tenant_days,
        action="append",
        default=[],
        metavar="TENANT=DAYS",
        help="the same for messages that ask for their tenant's own retention; may be repeated",
    )
    parser.add_argument(
        "--shards", type=count, metavar="N", help="mailbox shards, fixed at the first start"
    )
    parser.add_argument(
        "--partitions", type=count, metavar="N", help="outbox partitions, fixed at the first start"
    )


def _run(args: argparse.Namespace) -> int:
    from qim.cli.refusals import REFUSALS
    from qim.services.config import UpConfig
    from qim.services.refused_line import refused_line
    from qim.services.up import run_up

    told = {
        "tcp": args.tcp,
        "metrics": args.metrics,
        "fsync": args.fsync,
        "log_path": args.log,
        "shard_count": args.shards,
        "outbox_partition_count": args.partitions,
        "message_store_backend": args.message_store_backend,
        "hot_window_ms": args.hot_window and args.hot_window * HOUR_MS,
        "default_retention_ms": args.retention and args.retention * DAY_MS,
    }
    for name, who in SERVED_ALONE.items():
        if os.environ.get(name):
            raise UsageError(f"{name} is set, and `qim up` would not heed it ({who}): unset it")
    if args.log_format not in ("json", "text"):
        raise UsageError(f"{LOG_FORMAT_VARIABLE} is {args.log_format!r}, expected json or text")
    config = UpConfig(
        data=args.data or default_data(),
        log_json=args.log_format != "text",
        stage_logs=not args.no_stages,
        tenant_retention_ms=tuple(
            [(tenant, days * DAY_MS) for tenant, days in args.tenant_retention]
        ),
        **{name: value for name, value in told.items() if value is not None},
    )
    try:
        return run_up(config)
    except REFUSALS as error:
        print(refused_line("qim up", "up", error, as_json=config.log_json), file=sys.stderr)
        return int(Exit.USAGE)
