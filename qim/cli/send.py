"""`qim send`: one message, its ack as one JSON object."""

import argparse
import os
import sys

from qim.cli.arguments import UsageError, id16, user_id, utf8
from qim.cli.command import Subparsers, add_command, asynchronous, refusal
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json, say, sent_as_json
from qim.cli.target import Target, add_client_arguments, connected, target_of
from qim.client import Client, SendStatus, Sent
from qim.client.results import state_text
from qim.core.client.vocabulary import ClientState
from qim.core.contract.entities import MessageKind, RetentionClass
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frame_fields import BODY_BYTES_MAX

EXAMPLES = """\
  qim send --user 1 --to 2 "hello"
  qim send --user 1 --group 6ec0bd7f11c0bc1fa2a3b6f5c5ed2b2d "hello, all"
  git log -1 | qim send --user 1 --to 2 -
  qim send --server im.example.org:7000 --token TOKEN --to 2 "hello"
"""
MORE = """
Prints ONE JSON object: status, client_message_id and, once acked, message_id, conversation_id, conversation_seq,
last_activity_id, sent_at. Ids are hexadecimal; u64 numbers are strings. `acked` means durable on the server.

The message is stored here before it is transmitted. Without an answer in time its status is `pending` (exit status 3):
it goes out with the device's next command, under the same client_message_id, so it commits once whatever happened."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "send",
        asynchronous(_run),
        summary="send one message and print its ack",
        examples=EXAMPLES,
        more=MORE,
    )
    parser.add_argument("text", metavar="TEXT", help="the message; - reads standard input")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", type=user_id, metavar="USER", help="the other user of a single chat")
    where.add_argument("--group", type=id16, metavar="ID", help="a conversation_id")
    parser.add_argument(
        "--client-message-id",
        type=id16,
        metavar="HEX",
        help="the key under which it commits once; given again it repeats the ack (default: a random one)",
    )
    parser.add_argument(
        "--custom-type", type=utf8, default="", metavar="TYPE", help="a type of your own"
    )
    parser.add_argument("--ephemeral", action="store_true", help="keep it a day only")
    add_client_arguments(parser)


async def _run(args: argparse.Namespace) -> int:
    body = sys.stdin.buffer.read() if args.text == "-" else os.fsencode(args.text)
    if len(body) > BODY_BYTES_MAX:
        raise UsageError(f"a message has at most {BODY_BYTES_MAX} bytes, this one {len(body)}")
    target = target_of(args)
    key = args.client_message_id or os.urandom(16)
    async with connected(target) as client:
        sent = await client.settled(key, timeout=args.timeout) if args.client_message_id else None
        if sent is None:
            sent = await _send(args, client, key, body)
        print_json(sent_as_json(sent))
        return status_of("send", client, sent, target)


async def _send(args: argparse.Namespace, client: Client, key: bytes, body: bytes) -> Sent:
    return await client.send(
        body,
        to=args.to,
        conversation_id=args.group,
        client_message_id=key,
        kind=MessageKind.CUSTOM if args.custom_type else MessageKind.TEXT,
        custom_type=args.custom_type,
        retention_class=RetentionClass.EPHEMERAL if args.ephemeral else RetentionClass.DEFAULT,
        timeout=args.timeout,
    )


def status_of(name: str, client: Client, sent: Sent, target: Target) -> int:
    """The exit status of what became a pending row; what isn't acked is explained."""
    if sent.status is SendStatus.ACKED:
        return int(Exit.DONE)
    if sent.status is SendStatus.FAILED:
        known = sent.code in ErrorCode.__members__
        why = refusal(ErrorCode[sent.code], sent.message) if known else sent.code
        say(f"qim {name}: refused: {why}")
        return int(Exit.FAILED)
    where = f"{target.address}: {state_text(client.state)}"
    if client.state.state == ClientState.STOPPED:
        say(f"qim {name}: kept here, not sent: {where}")
        return int(Exit.FAILED)
    say(f"qim {name}: kept here, no ack in time ({where}); it goes out with the next command")
    return int(Exit.UNREACHABLE)
