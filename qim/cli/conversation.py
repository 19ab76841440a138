"""Which conversation a command means: --with USER or --group ID."""

import argparse

from qim.cli.arguments import id16, user_id
from qim.cli.target import Target
from qim.core.contract.ids import single_conversation_id


def add_conversation_arguments(parser: argparse.ArgumentParser) -> None:
    """Exactly one of the two."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--with", type=user_id, dest="peer", metavar="USER", help="a single chat")
    which.add_argument("--group", type=id16, metavar="ID", help="a conversation_id")


def conversation_of(target: Target, args: argparse.Namespace) -> bytes:
    """The conversation that --with or --group names."""
    if args.group is not None:
        group: bytes = args.group
        return group
    return single_conversation_id(target.tenant_id, target.user_id, args.peer)
