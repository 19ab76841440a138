"""`qim deadletter`, `qim repair`, `qim shard`: what a person mends; a dry run unless --apply is said (pipeline.md §§2, 7)."""

import argparse
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from qim.adapters.embedded.data_directory import DataDirectory, DataDirectoryHeld
from qim.cli import data_files
from qim.cli.admin import add_auditor, ordered, proved
from qim.cli.arguments import UsageError, default_data, seconds
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json, say
from qim.client import NotConnected
from qim.core.contract.sequences import U64_MAX

if TYPE_CHECKING:
    from qim.core.contract.rpc_admin import AdminOrder
    from qim.services.mending import MendOrder

DEFAULT_TIMEOUT_SECONDS = 320.0
LOOK_SECONDS = 0.2
OLDER = (
    "the auditor or server that carried this out is of an older version than this command, and doesn't say what became of each: "
    "status 1 tells nothing then. Bring it up to this version, or use the command of its own"
)
MAYBE_DONE = "the order may have been carried out: a dry run says what is left"
WHERE = """
Works on the data of an embedded server (--data), running or stopped, or on a cluster (--config FILE or --cluster: the
servers that the QIM_ variables name, as `qim serve` reads them). Without a number all partitions or shards are gone through: one
that is refused is told and the others go on; where a server is away, those that come after are not tried. Status 0: nothing is left
to do; 1: something is left, was refused or not tried; run it again then.

Of a cluster a dry run looks itself, with the servers' own passwords. --apply is ordered of the auditor, by Admin mTLS: with
QIM_INTERNAL_TLS_CERT and _KEY of an admin (env $(cat certs/admin.env) qim …). Where no auditor can start,
--without-auditor carries it out here, once the same certificate and key have been judged here."""

DEADLETTER_EXAMPLES = """\
  qim deadletter list --data .qim/data
  qim deadletter redrive                       # what would be dispatched
  qim deadletter redrive --apply --partition 1 --offset 4711
"""
DEADLETTER_MORE = f"""
Dead letters are bytes in the outbox that the fanout of their day could not decode. `list` says what each is to this version:
undecodable, newer_format, readable, nothing to deliver (barrier, ineffective), too old to tell (barrier_unknown), or resolved.
It also names the record before which fanout stands still, as a later version wrote it: halting. `redrive` dispatches the readable ones to the audience
frozen in them; who has a message already gets no second one.
{WHERE}"""
REPAIR_EXAMPLES = """\
  qim repair dispatch                          # what the audit misses in the dispatch log
  qim repair dispatch --apply
  qim repair outbox --config /etc/qim.toml --partition 3 --apply    # its writer, fanout and archiver are stopped
  qim repair states --config /etc/qim.toml --apply                  # sessions are stopped
"""
REPAIR_MORE = f"""
dispatch: runs the audit and dispatches again what the dispatch log lost, also while everything runs.
outbox: compares the log with the facts of the hot store, fills it up to where it stood, publishes again what it lost and
puts fanout and archiver behind what was delivered. It takes the partition's leases: stop who holds them.
states: fills a user-state log up to where it had been applied and has all of it applied again. Read marks and states stay as the
store has them, and an older value that the log has left is published anew by the newer one. It takes the sessions' leases.
{WHERE}"""
SHARD_EXAMPLES = """\
  qim shard bump --shard 3                     # what would be done
  qim shard bump --shard 3 --apply             # its mailbox and session processes are stopped
"""
SHARD_MORE = f"""
For a mailbox shard whose dispatch log was lost or made anew. Raises its shard_epoch, so that no mailbox_seq is used twice;
fanout dispatches again what no mailbox had, devices of the shard sync anew from history. A shard whose position is in its
log is refused (--force all the same).
{WHERE}"""


def add_parsers(subparsers: Subparsers) -> None:
    """Register the three commands."""
    letters = _command(subparsers, "deadletter", DEADLETTER_EXAMPLES, DEADLETTER_MORE)
    letters.add_argument("action", choices=("list", "redrive"), help="look, or dispatch after all")
    letters.add_argument("--partition", type=_number, metavar="N", help="of this outbox alone")
    letters.add_argument("--offset", type=_number, metavar="N", help="this one alone")
    repair = _command(subparsers, "repair", REPAIR_EXAMPLES, REPAIR_MORE)
    actions = ("dispatch", "outbox", "states")
    repair.add_argument("action", choices=actions, help="which log lost something")
    repair.add_argument("--partition", type=_number, metavar="N", help="of this outbox alone")
    repair.add_argument("--shard", type=_number, metavar="N", help="states of this shard alone")
    shard = _command(subparsers, "shard", SHARD_EXAMPLES, SHARD_MORE)
    shard.add_argument("action", choices=("bump",), help="raise its shard_epoch")
    shard.add_argument("--shard", type=_number, metavar="N", help="this one alone")
    shard.add_argument("--force", action="store_true", help="also where nothing is to be mended")


SUMMARIES = {
    "deadletter": "list dead letters, dispatch them after all",
    "repair": "put back what a log lost",
    "shard": "begin a mailbox shard anew whose dispatch log is lost",
}


def _command(
    subparsers: Subparsers, name: str, examples: str, more: str
) -> argparse.ArgumentParser:
    parser = add_command(
        subparsers, name, _run, summary=SUMMARIES[name], examples=examples, more=more
    )
    parser.add_argument("--apply", action="store_true", help="do it; without, a dry run")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--data", type=Path, metavar="DIR", help="data directory (default: $QIM_DATA or .qim/data)"
    )
    where.add_argument("--config", type=Path, metavar="FILE", help="a cluster, by its TOML")
    where.add_argument("--cluster", action="store_true", help="a cluster, by the environment")
    add_auditor(parser)
    parser.add_argument(
        "--without-auditor",
        action="store_true",
        help="with --apply: carry it out here, as no auditor can live; needs the admin's pair all the same",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"how long a running server may take (default: {DEFAULT_TIMEOUT_SECONDS:g})",
    )
    return parser


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > U64_MAX:
        raise argparse.ArgumentTypeError(f"a number from 0 to {U64_MAX}, not {text!r}")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    order = _order(args)
    cluster = args.config or args.cluster or args.auditor
    if args.without_auditor and not (cluster and order.apply and not args.auditor):
        raise UsageError("--without-auditor belongs to --apply on a cluster, and not to --auditor")
    if args.data is not None and args.auditor:
        raise UsageError("--data and --auditor: one of them")
    report = _on_cluster(args, order) if cluster else _on_data(args, order)
    left = [one for one in report["found"] if _is_left(one)]
    status = Exit.FAILED if left or "refused" in report else Exit.DONE
    status = Exit.USAGE if report.get("misasked") else status
    if any(_is_untold(one) for one in report["found"]):
        say(OLDER)
    if args.json:
        print_json(report)
        return int(status)
    for line in _text(report, order.apply, left):
        print(line)
    return int(status)


def _order(args: argparse.Namespace) -> "MendOrder":
    from qim.services.mending import MendOrder

    what = {
        ("deadletter", "list"): "deadletters",
        ("deadletter", "redrive"): "redrive",
        ("repair", "dispatch"): "dispatches",
        ("repair", "outbox"): "outbox",
        ("repair", "states"): "states",
        ("shard", "bump"): "bump",
    }[args.command, args.action]
    if what == "deadletters" and args.apply:
        raise UsageError("`qim deadletter list` only looks; --apply belongs to redrive")
    if (
        args.command == "repair"
        and (args.partition if what == "states" else args.shard) is not None
    ):
        raise UsageError("--partition is of dispatch and outbox, --shard of states")
    return MendOrder(
        what=what,  # type: ignore[arg-type]
        apply=args.apply,
        partition=getattr(args, "partition", None),
        offset=getattr(args, "offset", None),
        shard=getattr(args, "shard", None),
        force=getattr(args, "force", False),
    )


# ------------------------------------------------------------ where


def _on_cluster(args: argparse.Namespace, order: "MendOrder") -> dict[str, Any]:
    from qim.adapters.start_refused import StartRefused
    from qim.services.cluster.tools import mend_cluster
    from qim.services.roles import ServiceRole
    from qim.services.settings import read_settings, require

    try:
        settings = read_settings(os.environ, args.config).require()
        if order.apply and not args.without_auditor:
            return ordered(settings, args.auditor, _admin_order(order), args.timeout)
        if order.apply:
            proved(settings, " ".join((args.command, args.action)))
        require(settings, ServiceRole.AUDITOR)
        return mend_cluster(settings, order)
    except StartRefused as refused:
        raise UsageError(str(refused)) from None


def _admin_order(order: "MendOrder") -> "AdminOrder":
    from qim.core.contract.rpc_admin import AdminOrder
    from qim.services.cluster.admin import RID

    return AdminOrder(
        rid=RID,
        what=order.what,
        partition=order.partition,
        offset=order.offset,
        shard=order.shard,
        force=order.force,
    )


def _on_data(args: argparse.Namespace, order: "MendOrder") -> dict[str, Any]:
    """At the server where one runs, else beside its files; one that is just starting or stopping is waited for."""
    from qim.cli.refusals import REFUSALS
    from qim.services.up import mend_stopped

    data = args.data or default_data()
    if not DataDirectory(data).registry_database.exists():
        raise UsageError(f"{data} is no data directory of a server: nothing there to mend")
    deadline = time.monotonic() + args.timeout
    while True:
        try:
            body = msgspec.json.encode(order)
            return data_files.order(data, "/mend", body, deadline - time.monotonic())
        except (data_files.NotRunning, ConnectionRefusedError):
            pass
        except ConnectionError as error:
            if order.apply:  # asked twice it might be done twice
                raise NotConnected(f"the server on {data}: {error}; {MAYBE_DONE}") from None
        try:
            return mend_stopped(data, order)
        except DataDirectoryHeld as held:
            if time.monotonic() > deadline:
                raise UsageError(str(held)) from None
        except REFUSALS as error:
            raise UsageError(str(error)) from None
        time.sleep(LOOK_SECONDS)


# ------------------------------------------------------------ what is said

_SETTLED = ("resolved", "barrier", "ineffective", "dispatched")
_DONE = ("done", "whole", "nothing_yet")
_NOT_DONE = ("refused", "not_tried")


def _is_left(one: dict[str, Any]) -> bool:
    """Something that still wants a person, or --apply."""
    if "state" in one or "outcome" in one:
        return one.get("state", one.get("outcome")) not in _SETTLED
    return one.get("result") not in _DONE or bool(one.get("unreadable"))


def _is_untold(one: dict[str, Any]) -> bool:
    """Of a partition or shard, from before each had its result."""
    return not {"state", "outcome", "result"} & one.keys()


def _is_doable(one: dict[str, Any]) -> bool:
    """--apply would settle it, or has tried to."""
    if "outcome" in one:
        return bool(one["outcome"] == "would_dispatch")
    return "applied_repair" not in one or not one["unreadable"]


def _text(report: dict[str, Any], apply: bool, left: list[dict[str, Any]]) -> Iterator[str]:
    yield from _lines(report["found"])
    refused = [one for one in left if one.get("result") in _NOT_DONE]
    if "refused" in report and len(refused) != 1:
        yield f"refused: {report['refused']}"
    elif not report["found"]:
        yield "nothing found"
    if report["what"] == "deadletters":
        return
    others = [one for one in left if one not in refused]
    doable = sum(_is_doable(one) for one in others)
    if doable and not apply:
        yield f"a dry run: {doable} to do; --apply does it"
    if stuck := len(others) - doable:
        yield f"{stuck} wait for something else: --apply can't do them"


def _lines(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    for one in found:
        if one.get("result") in (*_NOT_DONE, "nothing_yet"):
            yield _undone_line(one)
        elif "new_shard_epoch" in one:
            yield from _bump_lines(one)
        elif "applied_repair" in one:
            yield _outbox_line(one)
        elif "applied_to" in one:
            yield _states_line(one)
        else:
            yield _record_line(one)


def _undone_line(one: dict[str, Any]) -> str:
    where = f"shard {one['shard']}" if "shard" in one else f"outbox {one['partition']}"
    where += f" offset {one['offset']}" if "offset" in one else ""
    match one["result"]:
        case "refused":
            return f"{where}: refused: {one['why']}"
        case "not_tried":
            return f"{where}: not tried"
        case _:
            return f"{where}: {one['why']}"


def _record_line(one: dict[str, Any]) -> str:
    what = one.get("state") or one.get("outcome")
    told = f"outbox {one['partition']} offset {one['offset']}: {what}"
    message = f", message {one['message_id']}" if one["message_id"] else ""
    shards = one.get("shards")
    to = f", {one['recipients']} recipients in shards {shards}" if shards else ""
    return told + message + to + (f" ({one['detail']})" if one["detail"] else "")


def _bump_lines(one: dict[str, Any]) -> Iterator[str]:
    shard, old, new = one["shard"], one["shard_epoch"], one["new_shard_epoch"]
    if old == new:
        done = "begins" if one["applied"] else "has not begun"
        yield f"shard {shard}: its session {done} under shard_epoch {new}, as its mailbox did"
    elif one["applied"]:
        yield f"shard {shard}: shard_epoch {old} -> {new}, {one['voided_claims']} claims void"
    elif one["whole"]:
        yield f"shard {shard}: offset {one['watermark_offset']} is in its log, nothing to do"
    else:
        where = f"[{one['log_start']}, {one['log_end']})"
        stands = (
            f"mailbox at offset {one['watermark_offset']}, session at {one['projected_offset']}"
        )
        yield f"shard {shard}: {stands}, its log holds {where}: would become shard_epoch {new}"
    for partition, checkpoint, first in one["redo"] if one["applied"] or not one["whole"] else ():
        if first != checkpoint:
            yield f"  outbox {partition}: fanout dispatches again from {first} (it had come to {checkpoint})"


def _states_line(one: dict[str, Any]) -> str:
    where = f"user_state {one['shard']} [{one['log_start']}, {one['log_end']})"
    if one["whole"]:
        return f"{where}: whole"
    stood = f"{where}: applied to {one['applied_to']}"
    if one["applied"]:
        return f"{stood}, filled up by {one['padding']}; its session applies all of it again"
    return f"{stood}, which is not in it: {one['padding']} to be filled up"


def _outbox_line(one: dict[str, Any]) -> str:
    where = f"outbox {one['partition']} [{one['log_start']}, {one['log_end']})"
    lost = one["lost_dispatched"] + one["lost_undispatched"]
    gone = f"; {len(one['unreadable'])} more are no longer hot: {', '.join(one['unreadable'][:5])}"
    tail = gone if one["unreadable"] else ""
    if one["applied_repair"]:
        return (
            f"{where}: {one['republished']} published again, {one['redispatched']} dispatched{tail}"
        )
    if not (lost or one["padding"]) and one["trusted"]:
        return f"{where}: nothing lost{tail}"
    return (
        f"{where}: differs from offset {one['differs_from']} on, lacks {lost} committed messages "
        f"({one['lost_undispatched']} of them not dispatched), ends {one['padding']} below where it stood"
        f"{_unarchived(one)}{tail}"
    )


def _unarchived(one: dict[str, Any]) -> str:
    count = one.get("unarchived", 0)
    return (
        f"; {count} stand where the archiver had read others, and no archive has them"
        if count
        else ""
    )
