"""How a command is run: its coroutine to the end, and every expected failure as one line and an exit status."""

import argparse
import asyncio
import errno
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

from qim.cli.arguments import UsageError
from qim.cli.data_files import NotRunning
from qim.cli.exit_codes import Exit
from qim.cli.output import printable, say
from qim.client import (
    ClientTlsUnusable,
    LocalStoreUnusable,
    NotConnected,
    SendFailed,
    StillPending,
)
from qim.core.contract.errors import ERROR_MEANINGS, ErrorCode

CLUSTER_LIBRARIES = ("aetcd", "aiohttp", "aiokafka", "cassandra", "cryptography", "grpc", "hdrh")
"""What the extra `cluster` brings."""
_PATH_ERRORS: Final = frozenset(
    (
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOTDIR,
        errno.EROFS,
    )
)
Run = Callable[[argparse.Namespace], int]
Subparsers = Any
"""argparse's own type of it is private."""


def add_command(
    subparsers: Subparsers, name: str, run: Run, *, summary: str, examples: str = "", more: str = ""
) -> argparse.ArgumentParser:
    """A subcommand whose --help says what it is for, and shows it."""
    described = f"{summary[0].upper()}{summary[1:]}.\n{more}".strip()
    epilog = f"examples:\n{examples}" if examples else None
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=described,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # Not ``name``: commands have options of that name.
    parser.set_defaults(run=run, command=name, called=parser.prog)
    return parser


def asynchronous(work: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]) -> Run:
    """A coroutine as a command."""
    return lambda args: asyncio.run(work(args))


def run_command(args: argparse.Namespace) -> int:
    """The exit status; what is expected to go wrong is one line on standard error, anything else a traceback."""
    try:
        return int(args.run(args))
    except (UsageError, ClientTlsUnusable) as error:
        return _told(args, str(error), Exit.USAGE)
    except SendFailed as error:
        return _told(args, f"refused: {refusal(error.code, error.message)}", Exit.FAILED)
    except LocalStoreUnusable as error:
        return _told(args, str(error), Exit.FAILED)
    except NotRunning as error:
        return _told(args, str(error), Exit.UNREACHABLE)
    except NotConnected as error:
        return _told(args, str(error), Exit.FAILED if error.refused else Exit.UNREACHABLE)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in CLUSTER_LIBRARIES:
            raise
        text = f"{error}: install the servers' clients with pip install 'qim[cluster]'"
        return _told(args, text, Exit.USAGE)
    except StillPending as error:
        return _told(args, f"{error}; it goes out with the next command", Exit.UNREACHABLE)
    except TimeoutError:
        text = "no answer in time; what was asked for may have been done, or be done later"
        return _told(args, text, Exit.UNREACHABLE)
    except KeyboardInterrupt:
        return int(Exit.INTERRUPTED)
    except BrokenPipeError:
        # the reader has gone (`qim history | head`); nothing more can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.DONE)
    except OSError as error:
        # A path that was named and can't be one, or isn't ours to read: the operating system says it best.
        if error.errno not in _PATH_ERRORS or error.filename is None:
            raise
        return _told(args, f"{error.filename}: {error.strerror}", Exit.USAGE)


def refusal(code: int, words: str = "") -> str:
    """An error code with its meaning and the server's words."""
    told = f": {printable(words)}" if words else ""
    try:
        known = ErrorCode(code)
    except ValueError:
        return f"error {code}, which this version doesn't know{told}"
    meaning = ERROR_MEANINGS[known]
    hope = " (trying again can help)" if meaning.retry else ""
    return f"{known.name}: {meaning.meaning}{hope}{told}"


def _told(args: argparse.Namespace, text: str, status: Exit) -> int:
    say(f"{args.called}: {text}")
    return int(status)
