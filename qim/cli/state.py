"""`qim state pin|mute|hide …`: the user's own switches on a conversation, the same on every device."""

import argparse
import time
from typing import Any

from qim.cli.arguments import seconds
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.conversation import add_conversation_arguments, conversation_of
from qim.cli.exit_codes import Exit
from qim.cli.output import conversation_as_json, print_json
from qim.cli.target import add_client_arguments, connected, target_of

EXAMPLES = """\
  qim state pin    --user 2 --with 1
  qim state mute   --user 2 --group ID --for 3600   # an hour; without --for until unmuted
  qim state hide   --user 2 --with 1                # until something newer comes
  qim state unread --user 2 --with 1                # a reminder, no unread message
  qim state draft  --user 2 --with 1 --text "to be"
  qim state show   --user 2 --with 1
  qim state devices --user 2                        # how far each own device has the mailbox
"""
MORE = """
Each prints one JSON object: the conversation as `qim list --json` shows it, and status `done`, or `kept` (exit status 3):
then the change is sent with the device's next command. Muted conversations count for no badge."""
ACTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "pin": ("to the top of the list", {"pinned": True}),
    "unpin": ("back among the others", {"pinned": False}),
    "mute": ("no badge for it", {"muted": True}),
    "unmute": ("badge again", {"muted": False}),
    "hide": ("out of the list until something newer comes", {"hidden": True}),
    "unhide": ("back into the list", {"hidden": False}),
    "unread": ("mark it unread", {"marked_unread": True}),
    "seen": ("take that mark away", {"marked_unread": False}),
    "draft": ("keep a text that is not sent yet", {}),
    "show": ("print it", {}),
}


def add_parser(subparsers: Subparsers) -> None:
    """Register the commands."""
    parser = add_command(
        subparsers,
        "state",
        lambda args: 0,
        summary="pin, mute or hide a conversation",
        examples=EXAMPLES,
        more=MORE,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, (summary, _) in ACTIONS.items():
        action = add_command(actions, name, asynchronous(_run), summary=summary)
        action.set_defaults(name=f"state {name}", action=name)
        add_conversation_arguments(action)
        if name == "mute":
            action.add_argument(
                "--for",
                type=seconds,
                dest="duration",
                metavar="SECONDS",
                help="ends by itself (default: until unmuted)",
            )
        if name == "draft":
            action.add_argument("--text", required=True, help="the draft; empty: none")
        add_client_arguments(action)
    devices = add_command(
        actions,
        "devices",
        asynchronous(_devices),
        summary="how far each of the user's devices has the mailbox",
    )
    devices.set_defaults(name="state devices")
    devices.add_argument("--json", action="store_true", help="one JSON object")
    add_client_arguments(devices)


async def _devices(args: argparse.Namespace) -> int:
    target = target_of(args)
    async with connected(target) as client:
        await client.sync(args.timeout)
        await client.listed(args.timeout)
        told = sorted(client.devices().items())
    if args.json:
        rows = [
            {"device_id": device_text(device_id), "delivered_through": str(seq)}
            for device_id, seq in told
        ]
        print_json({"devices": rows})
    else:
        for device_id, seq in told:
            print(f"{device_text(device_id)}  {seq}")
    return int(Exit.DONE)


async def _run(args: argparse.Namespace) -> int:
    target = target_of(args)
    conversation_id = conversation_of(target, args)
    async with connected(target) as client:
        await client.sync(args.timeout)
        await client.listed(args.timeout)
        done = True
        if args.action != "show":
            done = await client.set_state(conversation_id, **_change(args), timeout=args.timeout)
        row = await client.conversation(conversation_id)
    shown: dict[str, Any] = {"conversation_id": conversation_id.hex()}
    if row is not None:
        shown = conversation_as_json(row, target.user_id)
    print_json({**shown, "status": "done" if done else "kept"})
    return int(Exit.DONE if done else Exit.UNREACHABLE)


def _change(args: argparse.Namespace) -> dict[str, Any]:
    if args.action == "draft":
        return {"draft": args.text}
    change = dict(ACTIONS[args.action][1])
    if args.action == "mute" and args.duration:
        change["mute_until"] = time.time_ns() // 1_000_000 + int(args.duration * 1000)
    return change


def device_text(device_id: bytes) -> str:
    """As `--device` takes it; what a terminal might obey as hexadecimal digits."""
    text = device_id.decode(errors="replace")
    return text if text.isprintable() and text.encode() == device_id else f"hex:{device_id.hex()}"
