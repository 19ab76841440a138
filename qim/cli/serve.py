"""`qim serve ROLE`: one service of a cluster in this process."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit

CLIENTS = ("aetcd", "aiokafka", "cassandra", "cryptography")
"""What the extra `cluster` brings: said at once where it is missing, not when the first server is spoken to."""
ROLES = ("gateway", "writer", "fanout", "mailbox", "session", "archiver", "auditor")
EXAMPLES = """\
  qim serve writer --config /etc/qim.toml
  QIM_REDPANDA_BROKERS=127.0.0.1:9092 QIM_OUTBOX_TOPIC=qim.outbox … qim serve gateway
  qim config check --role writer --config /etc/qim.toml    # what would be refused, and why
"""
MORE = """
Runs one role over real servers: Redis or Valkey, Kafka or Redpanda, etcd, and Scylla or Cassandra as the archive. Any
number of processes a role share its work by leases. Checks everything first and refuses what would lose messages; prints
one JSON line when it serves: {"ready": true, "role": "writer", "pid": 4711, "metrics": "127.0.0.1:9101", …}
Logs go to standard error. SIGTERM or Ctrl-C drains, gives its leases back and ends it."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "serve",
        _run,
        summary="run one service of a cluster in this process",
        examples=EXAMPLES,
        more=MORE,
    )
    parser.add_argument("role", choices=ROLES, help="what this process is")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML (default: $QIM_CONFIG); the environment goes before it, docs/configuration.md has all names",
    )


def _run(args: argparse.Namespace) -> int:
    from qim.adapters.start_refused import StartRefused
    from qim.services.cluster.process import run_serve
    from qim.services.refused_line import line_of, refused_line
    from qim.services.roles import ServiceRole
    from qim.services.settings import read_settings, require

    role = ServiceRole(args.role)
    reading = read_settings(os.environ, args.config)
    as_json, command = reading.settings.log_format == "json", f"qim serve {role}"
    try:
        missing = [client for client in CLIENTS if not _installed(client)]
        if missing:
            raise ModuleNotFoundError(f"no {' and no '.join(missing)}")
        settings = reading.require()
        require(settings, role)
        for remark in reading.remarks:
            line = line_of("warning", role, "setting ignored", {"what": remark})
            print(line if as_json else f"{command}: {remark}", file=sys.stderr)
        return run_serve(settings, role)
    except (StartRefused, OSError) as error:
        refused: Exception = error
    except ModuleNotFoundError as error:
        advice = "install the servers' clients with pip install 'qim[cluster]'"
        refused = ModuleNotFoundError(f"{error}: {advice}")
    print(refused_line(command, role, refused, as_json=as_json), file=sys.stderr)
    return int(Exit.USAGE)


def _installed(name: str) -> bool:
    """There, without the time it takes to import it."""
    try:
        return find_spec(name) is not None
    except ValueError:  # it is in sys.modules as None: blocked
        return False
