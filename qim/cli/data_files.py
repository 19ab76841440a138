"""What a command reads of an embedded server's data directory: its secret, and where it serves."""

import os
from pathlib import Path

import msgspec

from qim.adapters.embedded.data_directory import DataDirectory, DataDirectoryDamaged
from qim.cli.arguments import UsageError

SERVER_FILE = "server.json"


class NotRunning(Exception):
    """No server serves this data directory now."""

    def __init__(self, data: Path) -> None:
        super().__init__(
            f"no server runs on {data}: start one with `qim up --data {data}`, or name another with --data or --server"
        )


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """What `qim up` writes beside its data when it is ready."""

    tcp: str
    metrics: str
    pid: int


def running_server(data: Path) -> ServerFile:
    """The server that says it serves ``data``. Raises NotRunning, also where the one that said so is dead."""
    try:
        found = msgspec.json.decode((data / SERVER_FILE).read_bytes(), type=ServerFile)
        os.kill(found.pid, 0)
    except PermissionError:
        return found  # another user's process: it is there
    except (OSError, msgspec.DecodeError, OverflowError):
        raise NotRunning(data) from None
    return found


def secret_of(data: Path) -> bytes:
    """The key that signs tokens of this server. Raises UsageError where there is none, or it can't be read."""
    directory = DataDirectory(data)
    if not directory.secret_file.exists():
        raise UsageError(
            f"{data} has no secret: it is made by the first `qim up --data {data}`; "
            "elsewhere give --server HOST:PORT --token TOKEN"
        )
    try:
        return directory.secret()
    except (OSError, DataDirectoryDamaged) as error:
        raise UsageError(str(error)) from None
