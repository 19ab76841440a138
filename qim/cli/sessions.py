"""`qim list`, `qim read` and `qim readers`: conversations with their unread, read marks, and who has read."""

import argparse

from qim.cli.arguments import count
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.conversation import add_conversation_arguments, conversation_of
from qim.cli.exit_codes import Exit
from qim.cli.output import conversation_as_json, conversation_line, print_json, say
from qim.cli.target import add_client_arguments, connected, target_of

LIST_EXAMPLES = """\
  qim list --user 2
  qim list --user 2 --unread --json | jq -r '.unread, .preview.text'
  qim list --user 2 --hidden           # hidden ones too
"""
LIST_MORE = """
Pinned ones first, then the latest activity first: unread, the other user or the group's id, time and text of the newest
message. `3+` means at least 3, `200+` 200 or more. Marks: * pinned, - muted, ! marked unread, h hidden.
With --json one object a line: conversation_id, conversation, peer_user_id, unread, unread_exact, read_seq, newest_seq,
last_activity_id, preview, pinned, muted, muted_until, hidden, marked_unread, draft (ids hexadecimal, u64 as strings).
The badge, on standard error, is the sum of unread without muted conversations."""
READ_EXAMPLES = """\
  qim read --user 2 --with 1                # everything that is here
  qim read --user 2 --with 1 --up-to 41     # up to conversation_seq 41
  qim read --user 2 --group ID
"""
READ_MORE = """
The mark moves forward only and holds on all of the user's devices. Prints one JSON object: conversation_id, read_seq,
unread, status `done`, or `kept` (exit status 3): then it is sent with the device's next command."""
READERS_EXAMPLES = """\
  qim readers --user 1 --group ID 41
"""


def add_parsers(subparsers: Subparsers) -> None:
    """Register the commands."""
    listing = add_command(
        subparsers,
        "list",
        asynchronous(_list),
        summary="list conversations with their unread messages",
        examples=LIST_EXAMPLES,
        more=LIST_MORE,
    )
    listing.add_argument("--unread", action="store_true", help="only those with something unread")
    listing.add_argument("--hidden", action="store_true", help="hidden ones too")
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    add_client_arguments(listing)
    read = add_command(
        subparsers,
        "read",
        asynchronous(_read),
        summary="mark a conversation as read",
        examples=READ_EXAMPLES,
        more=READ_MORE,
    )
    add_conversation_arguments(read)
    read.add_argument(
        "--up-to", type=count, metavar="SEQ", help="a conversation_seq (default: the newest)"
    )
    add_client_arguments(read)
    readers = add_command(
        subparsers,
        "readers",
        asynchronous(_readers),
        summary="who has read up to a message",
        examples=READERS_EXAMPLES,
    )
    add_conversation_arguments(readers)
    readers.add_argument("seq", type=count, metavar="SEQ", help="a conversation_seq")
    add_client_arguments(readers)


async def _list(args: argparse.Namespace) -> int:
    target = target_of(args)
    async with connected(target) as client:
        await client.sync(args.timeout)
        await client.listed(args.timeout)
        rows = await client.conversations(hidden=args.hidden)
        badge = await client.unread()
    shown = [row for row in rows if not args.unread or row.unread or row.marked_unread]
    for row in shown:
        if args.json:
            print_json(conversation_as_json(row, target.user_id))
        else:
            print(conversation_line(row, target.user_id), flush=True)
    if not args.json:
        plus = "" if badge.exact else "+"
        what = "conversation" if len(shown) == 1 else "conversations"
        say(f"{len(shown)} {what}, {badge.count}{plus} unread")
    return int(Exit.DONE)


async def _read(args: argparse.Namespace) -> int:
    target = target_of(args)
    conversation_id = conversation_of(target, args)
    async with connected(target) as client:
        await client.sync(args.timeout)
        await client.listed(args.timeout)
        done = await client.mark_read(conversation_id, args.up_to, timeout=args.timeout)
        row = await client.conversation(conversation_id)
    read_seq = row.read_seq if row else args.up_to or 0
    print_json(
        {
            "conversation_id": conversation_id.hex(),
            "read_seq": str(read_seq),
            "unread": row.unread if row else 0,
            "unread_exact": row.unread_exact if row else True,
            "status": "done" if done else "kept",
        }
    )
    return int(Exit.DONE if done else Exit.UNREACHABLE)


async def _readers(args: argparse.Namespace) -> int:
    target = target_of(args)
    async with connected(target) as client:
        await client.online(args.timeout)
        told = await client.read_by(conversation_of(target, args), args.seq, timeout=args.timeout)
    print_json(
        {
            "conversation_id": told.conversation_id.hex(),
            "conversation_seq": str(told.conversation_seq),
            "users": [str(user) for user in told.users],
            "has_more": told.has_more,
        }
    )
    return int(Exit.DONE)
