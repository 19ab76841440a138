"""`qim config check|print|share`: what `qim serve` would be told and refuse; and the numbers all processes share."""

import argparse
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qim.adapters.start_refused import StartRefused
from qim.cli.admin import proved
from qim.cli.arguments import UsageError
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json, say
from qim.cli.serve import ROLES
from qim.services.roles import ServiceRole
from qim.services.settings import Reading, check_settings, read_settings, warnings
from qim.services.settings.table import VARIABLES, Variable

EXAMPLES = """\
  qim config check --config /etc/qim.toml               # every fault, for every role; status 2 if there is one
  qim config check --role writer
  qim config print --role gateway --json                # each value and where it came from; secrets as digests
  qim config share                                      # what the registry has otherwise than this configuration: status 1
  env $(cat certs/admin.env) qim config share --apply   # make it the deployment's, while no process is at work
"""
UNREACHABLE = "etcd_unreachable"


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "config",
        _run,
        summary="check, print or share what `qim serve` is told",
        examples=EXAMPLES,
        more="\nReads --config or $QIM_CONFIG and the environment, as `qim serve` does; docs/configuration.md has all names.",
    )
    parser.add_argument(
        "what",
        choices=("check", "print", "share"),
        help="check: faults; print: values; share: the numbers that all processes share, compared with the registry",
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help="of share: write them (default: say what would be); needs an admin's QIM_INTERNAL_TLS_CERT and _KEY",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML (default: $QIM_CONFIG)")
    parser.add_argument("--role", choices=ROLES, help="for this role alone (default: all of them)")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _run(args: argparse.Namespace) -> int:
    reading = read_settings(os.environ, args.config)
    roles = [ServiceRole(args.role)] if args.role else list(ServiceRole)
    if args.what == "share":
        return _share(reading, apply=args.apply, as_json=args.json)
    if args.what == "print":
        return _print(reading, roles, as_json=args.json)
    return _check(reading, roles, as_json=args.json)


# ------------------------------------------------------------ check


def _check(reading: Reading, roles: Iterable[ServiceRole], *, as_json: bool) -> int:
    roles = list(roles)
    faults = list(_faults(reading, roles))
    warned = list(dict.fromkeys(one for role in roles for one in warnings(reading.settings, role)))
    if as_json:
        told = [_fault(refused, named) for refused, named in faults]
        remarks = [*reading.remarks, *warned]
        print_json({"ok": not faults, "faults": told, "remarks": remarks})
    else:
        for refused, named in faults:
            print(f"{', '.join(named) or 'every role'}: {refused}")
        for remark in (*reading.remarks, *warned):
            say(remark)
        if not faults:
            print("nothing to refuse in the configuration; files and servers are checked at start")
    return int(Exit.USAGE if faults else Exit.DONE)


def _faults(
    reading: Reading, roles: Iterable[ServiceRole]
) -> Iterator[tuple[StartRefused, list[str]]]:
    """Each fault once, with the roles it concerns; those of the reading concern all."""
    for refused in reading.faults:
        yield refused, []
    found: dict[str, tuple[StartRefused, list[str]]] = {}
    for role in roles:
        for refused in check_settings(reading.settings, role):
            same = str(refused).replace(f" for {role}", "")
            found.setdefault(same, (refused, []))[1].append(role.value)
    yield from found.values()


def _fault(refused: StartRefused, roles: list[str]) -> dict[str, object]:
    return {
        "code": refused.code,
        "what": refused.what,
        "got": refused.got,
        "expected": refused.expected,
        "command": refused.command,
        "roles": roles,
    }


# ------------------------------------------------------------ print


def _print(reading: Reading, roles: list[ServiceRole], *, as_json: bool) -> int:
    rows = [_row(variable, reading) for variable in VARIABLES]
    missing = {
        variable.name: [role.value for role in roles if role in variable.needed_by]
        for variable in VARIABLES
        if getattr(reading.settings, variable.key) is None
    }
    for row in rows:
        row["needed_by"] = missing.get(row["name"], [])
    if as_json:
        print_json({"values": rows})
    else:
        for row in rows:
            needed = f" needed by {', '.join(row['needed_by'])}" if row["needed_by"] else ""
            value = "" if row["value"] is None else row["value"]
            print(f"{row['name']}={value}  # {row['source']}{needed}")
    for refused in reading.faults:
        say(str(refused))
    return int(Exit.USAGE if reading.faults else Exit.DONE)


def _row(variable: Variable, reading: Reading) -> dict[str, Any]:
    value = getattr(reading.settings, variable.key)
    source = reading.sources.get(variable.name)
    return {
        "name": variable.name,
        "value": shown(variable, value),
        "source": source or ("default" if value not in (None, ()) else "not set"),
    }


def shown(variable: Variable, value: Any) -> str | None:
    """As it would stand in the environment; a digest in place of what is secret of it."""
    if value is None:
        return None
    text = variable.kind.show(value)
    return text if variable.conceal is None else variable.conceal(text)


# ------------------------------------------------------------ share


def _share(reading: Reading, *, apply: bool, as_json: bool) -> int:
    # Here: the other two need no server and none of their clients.
    from qim.services.cluster.shared import share

    try:
        settings = reading.require()
        if apply:
            # No process is at work then that could be asked: the command judges by itself who starts it.
            proved(settings, "config share")
        found = share(settings, apply=apply)
    except StartRefused as error:
        if error.code != UNREACHABLE:
            raise UsageError(str(error)) from None
        say(str(error))
        return int(Exit.UNREACHABLE)
    left = bool(found.differences) and not found.applied
    status = int(Exit.FAILED if left else Exit.DONE)
    if as_json:
        told = {name: {"stored": a, "told": b} for name, (a, b) in found.differences.items()}
        print_json({"differences": told, "applied": found.applied})
        return status
    for name, (stored, told_value) in found.differences.items():
        print(f"{name}: {stored or 'not stored'} -> {told_value}")
    if not found.differences:
        print("the registry has the same")
    elif left:
        say("nothing was written; --apply does, while no process is at work")
    return status
