"""`qim`: the command line. Each command is a file of this package; what it decides stands in the packages below."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from qim.cli import (
    archive,
    audit,
    certs,
    config,
    doctor,
    group,
    history,
    load,
    mailbox,
    mending,
    overlay,
    prewarm,
    send,
    serve,
    sessions,
    state,
    token,
    topics,
    up,
)
from qim.cli.chat import add_parser as add_chat_parser
from qim.cli.command import run_command
from qim.cli.exit_codes import exit_lines
from qim.cli.smoke import add_parser as add_smoke_parser

SIM_SUMMARY = "run, replay and audit simulated worlds"
DESCRIPTION = """\
Q-IM: an instant-messaging backend. `qim up` runs a whole one in this process; the other commands speak to it, or to
any server of the protocol qim/1."""
EPILOG = """\
a first session:
  qim up &                                  # prints one JSON line when ready
  qim send --user 1 --to 2 "hello"          # the ack, as one JSON object
  qim pull --user 2                         # syncs to now, prints what is new
  qim list --user 2                         # conversations, unread
  qim read --user 2 --with 1                # mark as read
  qim chat --user 2 --to 1                  # interactive
  qim audit                                 # verdict: CLEAN

where commands connect:
  --data DIR beside an embedded server ($QIM_DATA, default .qim/data), or --server HOST:PORT --token TOKEN ($QIM_TOKEN);
  in TLS where $QIM_TLS_CA names a CA file, or says "system" ($QIM_TLS_SNI: the server's name, if not the host)

JSON on standard output: ids are hexadecimal, every u64 is a string. Remarks go to standard error.

exit status:
"""


class _Version(argparse.Action):
    """Looked up when it is asked for: every other command need not wait for that."""

    def __call__(self, asking: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"qim {version('qim')}")
        asking.exit()


def parser(*, with_sim: bool = False) -> argparse.ArgumentParser:
    """All commands. The simulator's own arguments only where asked for: the others don't wait for its modules."""
    found = argparse.ArgumentParser(
        prog="qim",
        description=DESCRIPTION,
        epilog=EPILOG + "\n".join(exit_lines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    found.add_argument("--version", action=_Version, nargs=0, help="say which one this is")
    commands = found.add_subparsers(title="commands", metavar="COMMAND", required=True)
    up.add_parser(commands)
    serve.add_parser(commands)
    config.add_parser(commands)
    certs.add_parser(commands)
    token.add_parser(commands)
    send.add_parser(commands)
    mailbox.add_parsers(commands)
    group.add_parser(commands)
    sessions.add_parsers(commands)
    history.add_parser(commands)
    overlay.add_parsers(commands)
    state.add_parser(commands)
    add_chat_parser(commands)
    add_smoke_parser(commands)
    load.add_parser(commands)
    prewarm.add_parser(commands)
    audit.add_parser(commands)
    doctor.add_parser(commands)
    mending.add_parsers(commands)
    archive.add_parser(commands)
    topics.add_parser(commands)
    if with_sim:
        from qim.cli import sim

        sim.add_parser(commands)
    else:
        commands.add_parser("sim", help=SIM_SUMMARY)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status of the command; see exit_codes.py. SystemExit (2) on wrong usage, as argparse has it."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command(parser(with_sim=words[:1] == ["sim"]).parse_args(words))
