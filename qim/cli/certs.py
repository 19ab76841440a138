"""`qim certs dev`: a certificate chain to develop and test with; `qim serve` reads the variables it prints."""

import argparse
from pathlib import Path
from typing import Final

from qim.cli.arguments import UsageError, count
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json, say

DEFAULT_DAYS: Final = 365
DAYS_MAX: Final = 3_650
EXAMPLES: Final = """\
  qim certs dev --out certs                          # three CAs, a leaf for every role, certs/<role>.env and .toml
  env $(cat certs/writer.env) qim serve writer       # a process with its variables
  env $(cat certs/admin.env) qim shard bump --cluster --apply    # what changes a cluster
  env $(cat certs/client.env) QIM_AUTH_SECRET=… qim send --server localhost:7000 --user 1 --to 2 "hello"
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "certs",
        _run,
        summary="make TLS certificates for development",
        examples=EXAMPLES,
        more="\nKeys are readable by their owner alone and never written over. The CAs' keys are thrown away: for one"
        "\nmore certificate make a new chain.",
    )
    parser.add_argument("kind", choices=["dev"], help="dev: a chain of its own, for one machine")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a folder that is new or empty"
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="a DNS name or IP address clients call the gateway by, besides localhost (may be repeated)",
    )
    parser.add_argument(
        "--days",
        type=count,
        default=DEFAULT_DAYS,
        help=f"how long they are valid (default: {DEFAULT_DAYS}, at most {DAYS_MAX})",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave a chain alone that is in DIR already, status 0"
    )
    parser.add_argument("--json", action="store_true", help="one object instead of lines")


def _run(args: argparse.Namespace) -> int:
    if args.days > DAYS_MAX:
        raise UsageError(f"--days is {args.days}, at most {DAYS_MAX}")
    try:
        # Only here: `qim up` and everything beside it works without this library.
        from qim.adapters.tls.dev_chain import write_dev_chain
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{error.name} is not installed; it comes with: pip install 'qim[cluster]'"
        ) from None
    if args.keep and (args.out / "admin.env").exists():
        say(f"{args.out} has a chain already: kept")
        return int(Exit.DONE)
    try:
        chain = write_dev_chain(args.out, days=args.days, names=tuple(args.name))
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    if len(str(chain.folder).split()) > 1:
        say("the folder's path has a blank: in place of env $(cat FILE), set -a; . FILE; set +a")
    if args.json:
        print_json(
            {
                "folder": str(chain.folder),
                "not_after": chain.not_after.isoformat(),
                "sha256": chain.fingerprints,
                "environment": chain.environment,
            }
        )
        return int(Exit.DONE)
    print(f"# {chain.folder}, valid until {chain.not_after:%Y-%m-%d}")
    for role, digest in chain.fingerprints.items():
        print(f"# {digest}  {role}")
    print("# every process:")
    for name, value in chain.shared.items():
        print(f"{name}={value}")
    for owner, variables in chain.environment.items():
        print(f"# {owner}, all of it in {owner}.env:")
        for name, value in variables.items():
            if name not in chain.shared:
                print(f"{name}={value}")
    return int(Exit.DONE)
