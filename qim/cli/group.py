"""`qim group create|add|remove|leave|show`: membership, one JSON object each."""

import argparse
from collections.abc import Awaitable, Callable

from qim.cli.arguments import UsageError, id16, user_ids, utf8
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.exit_codes import Exit
from qim.cli.output import group_as_json, members_as_json, print_json
from qim.cli.target import add_client_arguments, connected, target_of
from qim.client import Client, GroupResult

EXAMPLES = """\
  qim group create --user 1 --members 2,3 --name "The team"
  qim group add    --user 1 --group ID --members 4 5
  qim group remove --user 1 --group ID --members 3
  qim group leave  --user 2 --group ID
  qim group show   --user 1 --group ID
"""
MORE = """
Each prints one JSON object: conversation_id, version, control_seq (the conversation_seq of the control message), noop;
`show` prints conversation_id, name, creator, version, members. u64 numbers are strings. A change that changes nothing
is a `noop`. At most 1,000 members."""

Change = Callable[[Client, argparse.Namespace], Awaitable[GroupResult]]


def add_parser(subparsers: Subparsers) -> None:
    """Register the commands."""
    parser = add_command(
        subparsers,
        "group",
        lambda args: 0,
        summary="create a group, change or show its members",
        examples=EXAMPLES,
        more=MORE,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    create = _action(actions, "create", _create, "a new group of you and these users")
    create.add_argument("--name", type=utf8, default="", help="what it is called")
    _add_members(create, required=False)
    for name, change, summary in (
        ("add", _add, "add users"),
        ("remove", _remove, "remove users"),
        ("leave", _leave, "leave a group"),
    ):
        action = _action(actions, name, change, summary)
        _add_group(action)
        if name != "leave":
            _add_members(action, required=True)
    show = add_command(actions, "show", asynchronous(_show), summary="who is in a group")
    show.set_defaults(name="group show")
    _add_group(show)
    add_client_arguments(show)


def _action(
    actions: Subparsers, name: str, change: Change, summary: str
) -> argparse.ArgumentParser:
    async def run(args: argparse.Namespace) -> int:
        async with connected(target_of(args)) as client:
            print_json(group_as_json(await change(client, args)))
        return int(Exit.DONE)

    parser = add_command(actions, name, asynchronous(run), summary=summary)
    parser.set_defaults(name=f"group {name}")
    add_client_arguments(parser)
    return parser


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group", type=id16, required=True, metavar="ID", help="the group's conversation_id"
    )


def _add_members(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--members",
        type=user_ids,
        nargs="+",
        required=required,
        default=[],
        metavar="USER",
        help="users, separated by blanks or commas",
    )


def _members(args: argparse.Namespace) -> tuple[int, ...]:
    """Each user once, in the order given."""
    found = tuple(dict.fromkeys(user for part in args.members for user in part))
    if args.members and not found:
        raise UsageError("--members names no user")
    return found


async def _create(client: Client, args: argparse.Namespace) -> GroupResult:
    return await client.create_group(_members(args), args.name, timeout=args.timeout)


async def _add(client: Client, args: argparse.Namespace) -> GroupResult:
    return await client.add_members(args.group, _members(args), timeout=args.timeout)


async def _remove(client: Client, args: argparse.Namespace) -> GroupResult:
    return await client.remove_members(args.group, _members(args), timeout=args.timeout)


async def _leave(client: Client, args: argparse.Namespace) -> GroupResult:
    return await client.leave(args.group, timeout=args.timeout)


async def _show(args: argparse.Namespace) -> int:
    async with connected(target_of(args)) as client:
        await client.online(args.timeout)
        print_json(members_as_json(await client.members(args.group, timeout=args.timeout)))
    return int(Exit.DONE)
