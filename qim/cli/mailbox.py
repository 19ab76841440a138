"""`qim pull` and `qim tail`: what is new in the mailbox, once; the cursor stays in the device's local store."""

import argparse
import asyncio
import contextlib
import signal

from qim.cli.arguments import count, seconds
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.exit_codes import Exit
from qim.cli.output import message_as_json, message_line, print_json, say
from qim.cli.target import Target, add_client_arguments, connected, target_of
from qim.client import Client, NotConnected
from qim.client.results import state_text
from qim.core.client.vocabulary import ClientState
from qim.core.ports.local_store import LocalMessage

PULL_EXAMPLES = """\
  qim pull --user 2
  qim pull --user 2 --json | jq -r .text
  qim pull --user 2 --wait 5          # wait up to 5 s where nothing is new yet
  qim pull --user 2 --device phone    # another device has a cursor of its own
"""
PULL_MORE = """
Syncs to now and prints each message this device has not printed before, in order of arrival, the user's own ones too
(`own`). A new device reads back 7 days. With --json one object a line: text, sender_id, conversation_id,
conversation_seq, message_id, … (ids hexadecimal, u64 numbers as strings)."""
TAIL_EXAMPLES = """\
  qim tail --user 2
  qim tail --user 2 --json --count 10
"""


def add_parsers(subparsers: Subparsers) -> None:
    """Register both commands."""
    pull = add_command(
        subparsers,
        "pull",
        asynchronous(_pull),
        summary="sync to now and print what is new",
        examples=PULL_EXAMPLES,
        more=PULL_MORE,
    )
    pull.add_argument("--json", action="store_true", help="one JSON object a line")
    pull.add_argument(
        "--wait", type=seconds, metavar="SECONDS", help="wait so long for the first new message"
    )
    add_client_arguments(pull)
    tail = add_command(
        subparsers,
        "tail",
        asynchronous(_tail),
        summary="print what is new, and go on as it comes, until Ctrl-C",
        examples=TAIL_EXAMPLES,
    )
    tail.add_argument("--json", action="store_true", help="one JSON object a line")
    tail.add_argument("--count", type=count, metavar="N", help="end after N messages")
    add_client_arguments(tail)


async def _pull(args: argparse.Namespace) -> int:
    target = target_of(args)
    printer = Printer(as_json=args.json, user=target.user_id)
    async with connected(target) as client:
        await _sync(client, printer, args.timeout)
        if printer.printed == 0 and args.wait:
            await _print_what_comes(client, printer, args.wait)
    if not args.json:
        say(f"{printer.printed} new" if printer.printed else "nothing new")
    return int(Exit.DONE)


async def _sync(client: Client, printer: "Printer", timeout: float) -> None:
    """To now, printing as it comes; the time-out is one without progress."""
    printing = asyncio.ensure_future(printer.follow(client))
    try:
        while True:
            before = printer.printed
            try:
                await client.sync(timeout)
                break
            except NotConnected as error:
                if error.refused or printer.printed == before:
                    raise
    finally:
        printing.cancel()
        await asyncio.gather(printing, return_exceptions=True)
    await printer.print_all(client)


async def _print_what_comes(client: Client, printer: "Printer", wait: float) -> None:
    """The first new message within ``wait`` seconds, and what came with it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait):
            await printer.follow(client, 1)
    await printer.print_all(client)


async def _tail(args: argparse.Namespace) -> int:
    target = target_of(args)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with connected(target) as client:
        tasks = [
            loop.create_task(_follow(client, args, target)),
            loop.create_task(_stopped(client)),
            loop.create_task(stop.wait()),
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for task in done:
            task.result()
    return int(Exit.DONE)


async def _follow(client: Client, args: argparse.Namespace, target: Target) -> None:
    await client.online(args.timeout)
    say(f"following the mailbox of user {target.user_id}; Ctrl-C ends it")
    await Printer(as_json=args.json, user=target.user_id).follow(client, args.count)


async def _stopped(client: Client) -> None:
    """Ends when the connection is over for good. Raises NotConnected then."""
    while client.state.state != ClientState.STOPPED:
        await client.next_state()
    raise NotConnected(state_text(client.state), refused=True)


class Printer:
    """Messages as this command prints them, counted."""

    def __init__(self, *, as_json: bool, user: int) -> None:
        self._as_json = as_json
        self._user = user
        self.printed = 0

    async def print_all(self, client: Client) -> None:
        """What is here."""
        async for message in client.messages(follow=False):
            self._print(message)

    async def follow(self, client: Client, most: int | None = None) -> None:
        """What is here and what comes, to the client's end or after ``most``."""
        left = most
        async for message in client.messages():
            self._print(message)
            if left is not None:
                left -= 1
                if left == 0:
                    return

    def _print(self, message: LocalMessage) -> None:
        self.printed += 1
        if self._as_json:
            print_json(message_as_json(message, self._user))
        else:
            print(message_line(message, self._user), flush=True)
