"""The command's arguments and its run."""

import argparse

from qim.cli.arguments import id16, user_id
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.exit_codes import Exit
from qim.cli.target import Target, add_client_arguments, connected, target_of
from qim.core.contract.ids import single_conversation_id

EXAMPLES = """\
  qim chat --user 1 --to 2
  qim chat --user 2                 # answers the first who writes
  qim chat --user 1 --group ID
"""
MORE = """
Type and press Enter; what comes is shown while you type. Marks: ⋯ on its way (kept here, also across restarts), ✓ durable
on the server, ✗ refused. It begins with what is unread; what is shown of the conversation one is in counts as read.
Commands begin with /: /to, /group, /new, /add, /remove, /leave, /members, /history, /recall, /delete, /list, /pin, /mute,
/hide, /help, /quit. Without a terminal it reads lines and writes lines."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "chat",
        asynchronous(_run),
        summary="write and read, interactively",
        examples=EXAMPLES,
        more=MORE,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--to", type=user_id, metavar="USER", help="a single chat to begin with")
    where.add_argument("--group", type=id16, metavar="ID", help="a group to begin with")
    add_client_arguments(parser)


async def _run(args: argparse.Namespace) -> int:
    from qim.cli.chat.screen import opened_screen
    from qim.cli.chat.session import Room, Session

    target = target_of(args)
    room = None
    if args.to is not None:
        room = Room(conversation_id=_single(target, args.to), peer=args.to)
    elif args.group is not None:
        room = Room(conversation_id=args.group)
    async with connected(target) as client, opened_screen() as screen:
        await Session(client, screen, target.user_id, target.tenant_id).run(room)
    return int(Exit.DONE)


def _single(target: Target, peer: int) -> bytes:
    return single_conversation_id(target.tenant_id, target.user_id, peer)
