"""`qim token`: an access token, signed with the secret of an embedded server or of a cluster. The only command that prints one."""

import argparse
import os
import time
from pathlib import Path

from qim.cli.arguments import UsageError, default_data, device_name, seconds, tenant_name, user_id
from qim.cli.command import Subparsers, add_command
from qim.cli.data_files import secret_of
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json
from qim.core.contract.ids import DEFAULT_TENANT_ID
from qim.core.contract.params import HOUR_MS
from qim.core.contract.tokens import AccessToken, sign_token

CLUSTER_VARIABLES = ("QIM_AUTH_SECRET", "QIM_CONFIG")
DEFAULT_TTL_HOURS = 24.0
EXAMPLES = """\
  qim token --data .qim/data --user 7
  QIM_TOKEN=$(qim token --data .qim/data --user 7 --ttl-hours 1) qim pull --server 127.0.0.1:7000
  QIM_AUTH_SECRET=… qim token --user 7             # of a cluster; or --config FILE, as `qim serve` reads it
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "token",
        _run,
        summary="sign an access token with the secret of a data directory or a cluster",
        examples=EXAMPLES,
        more="\nWhoever has it is that user until it ends: keep it out of logs and process lists ($QIM_TOKEN).",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory (default: $QIM_DATA or .qim/data)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a cluster's configuration: its auth_secret signs (without --data, QIM_AUTH_SECRET or QIM_CONFIG do so too)",
    )
    parser.add_argument(
        "--user", type=user_id, required=True, metavar="ID", help="whom it speaks for"
    )
    parser.add_argument(
        "--device",
        type=device_name,
        metavar="NAME",
        help="good for this device alone (default: every device)",
    )
    parser.add_argument(
        "--tenant",
        type=tenant_name,
        default=DEFAULT_TENANT_ID,
        help=f"default: {DEFAULT_TENANT_ID}",
    )
    parser.add_argument(
        "--ttl-hours",
        type=seconds,
        default=DEFAULT_TTL_HOURS,
        metavar="HOURS",
        help=f"how long it is good (default: {DEFAULT_TTL_HOURS:g})",
    )
    parser.add_argument(
        "--json", action="store_true", help="token, user_id, expires_at as one object"
    )


def _run(args: argparse.Namespace) -> int:
    expires_at = time.time_ns() // 1_000_000 + int(args.ttl_hours * HOUR_MS)
    claims = AccessToken(
        tenant_id=args.tenant,
        user_id=args.user,
        device_id=None if args.device is None else args.device.encode(),
        expires_at=expires_at,
    )
    try:
        token = sign_token(claims, _secret(args))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.json:
        print_json({"token": token, "user_id": str(args.user), "expires_at": expires_at})
    else:
        print(token)
    return int(Exit.DONE)


def _secret(args: argparse.Namespace) -> bytes:
    """Of the named data directory; else of the cluster that file or environment tell of; else of the default directory."""
    told = args.config is not None or any(os.environ.get(name) for name in CLUSTER_VARIABLES)
    if args.data is not None or not told:
        return secret_of(args.data or default_data())
    from qim.adapters.start_refused import StartRefused
    from qim.services.settings import read_settings

    try:
        return read_settings(os.environ, args.config).require().secret()
    except StartRefused as error:
        raise UsageError(str(error)) from None
