"""`qim recall` and `qim delete`: take a message back for everyone, or out of one's own sight; the ack as JSON."""

import argparse
from collections.abc import Awaitable, Callable

from qim.cli.arguments import count
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.conversation import add_conversation_arguments, conversation_of
from qim.cli.output import print_json, sent_as_json
from qim.cli.send import status_of
from qim.cli.target import add_client_arguments, connected, target_of
from qim.client import Client, Sent

RECALL_EXAMPLES = """\
  qim recall --user 1 --with 2 41       # the message of conversation_seq 41
  qim recall --user 1 --group ID 41
"""
RECALL_MORE = """
For everyone, who is offline too: what remains is that something stood there. The own messages within the recall window
(24 hours), or any message of a group by its creator. A message that quotes it stays. Prints the ack as `qim send` does."""
DELETE_EXAMPLES = """\
  qim delete --user 2 --with 1 41
"""
DELETE_MORE = """
From the sight of this user alone, on all devices and in history. Prints the ack as `qim send` does."""

Act = Callable[[Client, bytes, argparse.Namespace], Awaitable[Sent]]


def add_parsers(subparsers: Subparsers) -> None:
    """Register both commands."""
    _add(
        subparsers, "recall", _recall, "recall a message for everyone", RECALL_EXAMPLES, RECALL_MORE
    )
    _add(
        subparsers, "delete", _delete, "delete a message for oneself", DELETE_EXAMPLES, DELETE_MORE
    )


def _add(
    subparsers: Subparsers, name: str, act: Act, summary: str, examples: str, more: str
) -> None:
    async def run(args: argparse.Namespace) -> int:
        target = target_of(args)
        async with connected(target) as client:
            sent = await act(client, conversation_of(target, args), args)
            print_json(sent_as_json(sent))
            return status_of(name, client, sent, target)

    parser = add_command(
        subparsers, name, asynchronous(run), summary=summary, examples=examples, more=more
    )
    add_conversation_arguments(parser)
    parser.add_argument("seq", type=count, metavar="SEQ", help="its conversation_seq")
    add_client_arguments(parser)


async def _recall(client: Client, conversation_id: bytes, args: argparse.Namespace) -> Sent:
    return await client.recall(conversation_id, args.seq, timeout=args.timeout)


async def _delete(client: Client, conversation_id: bytes, args: argparse.Namespace) -> Sent:
    return await client.delete_for_me(conversation_id, args.seq, timeout=args.timeout)
