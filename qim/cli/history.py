"""`qim history`: a conversation's messages, read from the server page by page."""

import argparse

from qim.cli.arguments import count
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.conversation import add_conversation_arguments, conversation_of
from qim.cli.exit_codes import Exit
from qim.cli.output import message_as_json, message_line, print_json, say
from qim.cli.target import add_client_arguments, connected, target_of
from qim.client import Client
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.params import DEFAULT
from qim.core.ports.local_store import LocalMessage

DEFAULT_LIMIT = 50
EXAMPLES = """\
  qim history --user 2 --with 1
  qim history --user 2 --group ID --limit 200 --json
  qim history --user 2 --with 1 --before 41    # older than conversation_seq 41
  qim history --user 2 --with 1 --after 41     # newer than it
  qim history --user 2 --with 1 --around 41    # it and its neighbours
"""
MORE = """
Each with its conversation_seq. Read from the server, recent or archived, page by page. Recalled messages show as such;
deleted ones don't show."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "history",
        asynchronous(_run),
        summary="print a conversation, oldest first",
        examples=EXAMPLES,
        more=MORE,
    )
    add_conversation_arguments(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--before", type=count, metavar="SEQ", help="older than this conversation_seq"
    )
    place.add_argument("--after", type=count, metavar="SEQ", help="newer than it, oldest first")
    place.add_argument("--around", type=count, metavar="SEQ", help="it and its neighbours")
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
        messages, more = await _pages(client, conversation_of(target, args), args)
    for message in messages:
        if args.json:
            print_json(message_as_json(message, target.user_id))
        else:
            # The number is what recall, delete, read and --before ask for.
            line = message_line(message, target.user_id)
            print(f"{message.conversation_seq:>4}  {line}", flush=True)
    if not args.json and not messages:
        say("nothing there, or not visible to this user")
    elif not args.json and more:
        after = args.after is not None
        seq = messages[-1 if after else 0].conversation_seq
        say(f"newer ones: --after {seq}" if after else f"older ones: --before {seq}")
    return int(Exit.DONE)


async def _pages(
    client: Client, conversation_id: bytes, args: argparse.Namespace
) -> tuple[list[LocalMessage], bool]:
    """At most --limit messages, rising, and whether more are there in the direction asked."""
    found: list[LocalMessage] = []
    direction, anchor = HistoryDirection.OLDER, args.before or 0
    if args.after is not None:
        direction, anchor = HistoryDirection.NEWER, args.after
    elif args.around is not None:
        direction, anchor = HistoryDirection.AROUND, args.around
    newer = direction is HistoryDirection.NEWER
    while True:
        page = await client.history(
            conversation_id,
            anchor=anchor,
            direction=direction,
            limit=min(args.limit - len(found), DEFAULT.page_max),
            timeout=args.timeout,
        )
        found = [*found, *page.messages] if newer else [*page.messages, *found]
        whole = direction is HistoryDirection.AROUND or len(found) >= args.limit
        if whole or not page.has_more or not page.messages:
            return found, page.has_more
        anchor = page.messages[-1 if newer else 0].conversation_seq
        if not args.json:
            say(f"{len(found)} of {args.limit} …")
