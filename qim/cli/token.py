"""`qim token`: an access token, signed with an embedded server's secret. The only command that prints one."""

import argparse
import time
from pathlib import Path

from qim.cli.arguments import UsageError, default_data, seconds, user_id
from qim.cli.command import Subparsers, add_command
from qim.cli.data_files import secret_of
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json
from qim.core.contract.ids import DEFAULT_TENANT_ID
from qim.core.contract.params import HOUR_MS
from qim.core.contract.tokens import AccessToken, sign_token

DEFAULT_TTL_HOURS = 24.0
EXAMPLES = """\
  qim token --data .qim/data --user 7
  QIM_TOKEN=$(qim token --data .qim/data --user 7 --ttl-hours 1) qim pull --server 127.0.0.1:7000
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "token",
        _run,
        summary="sign an access token with the secret of a data directory",
        examples=EXAMPLES,
        more="\nWhoever has it is that user until it ends: keep it out of logs and process lists ($QIM_TOKEN).",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory (default: $QIM_DATA or .qim/data)"
    )
    parser.add_argument(
        "--user", type=user_id, required=True, metavar="ID", help="whom it speaks for"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="good for this device alone (default: every device)"
    )
    parser.add_argument("--tenant", default=DEFAULT_TENANT_ID, help=f"default: {DEFAULT_TENANT_ID}")
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
        token = sign_token(claims, secret_of(args.data or default_data()))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if args.json:
        print_json({"token": token, "user_id": str(args.user), "expires_at": expires_at})
    else:
        print(token)
    return int(Exit.DONE)
