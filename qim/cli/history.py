"""`qim history`: a conversation's messages, read from the server page by page."""

import argparse

from qim.cli.arguments import count, id16, user_id
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.exit_codes import Exit
from qim.cli.output import message_as_json, message_line, print_json, say
from qim.cli.target import Target, add_client_arguments, connected, target_of
from qim.client import Client
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.params import DEFAULT
from qim.core.ports.local_store import LocalMessage

DEFAULT_LIMIT = 50
EXAMPLES = """\
  qim history --user 2 --with 1
  qim history --user 2 --group ID --limit 200 --json
  qim history --user 2 --with 1 --before 41    # older than conversation_seq 41
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "history",
        asynchronous(_run),
        summary="print a conversation, oldest first",
        examples=EXAMPLES,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--with", type=user_id, dest="peer", metavar="USER", help="a single chat")
    which.add_argument("--group", type=id16, metavar="ID", help="a conversation_id")
    parser.add_argument(
        "--before", type=count, metavar="SEQ", help="older than this conversation_seq"
    )
    parser.add_argument(
        "--limit",
        type=count,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"the newest N of these (default: {DEFAULT_LIMIT})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_client_arguments(parser)


async def _run(args: argparse.Namespace) -> int:
    target = target_of(args)
    async with connected(target) as client:
        await client.online(args.timeout)
        messages, more = await _newest(client, conversation_of(target, args), args)
    for message in messages:
        if args.json:
            print_json(message_as_json(message, target.user_id))
        else:
            print(message_line(message, target.user_id), flush=True)
    if not args.json and not messages:
        say("nothing there, or not visible to this user")
    elif not args.json and more:
        say(f"older ones: --before {messages[0].conversation_seq}")
    return int(Exit.DONE)


def conversation_of(target: Target, args: argparse.Namespace) -> bytes:
    """The conversation that --with or --group names."""
    if args.group is not None:
        group: bytes = args.group
        return group
    return single_conversation_id(target.tenant_id, target.user_id, args.peer)


async def _newest(
    client: Client, conversation_id: bytes, args: argparse.Namespace
) -> tuple[list[LocalMessage], bool]:
    """At most --limit messages, rising, and whether older ones are there."""
    found: list[LocalMessage] = []
    anchor = args.before or 0
    while True:
        page = await client.history(
            conversation_id,
            anchor=anchor,
            direction=HistoryDirection.OLDER,
            limit=min(args.limit - len(found), DEFAULT.page_max),
            timeout=args.timeout,
        )
        found = [*page.messages, *found]
        if not page.has_more or not page.messages or len(found) >= args.limit:
            return found, page.has_more
        anchor = page.messages[0].conversation_seq
        if not args.json:
            say(f"{len(found)} of {args.limit} …")
