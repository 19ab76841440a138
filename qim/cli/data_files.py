"""What a command reads of an embedded server's data directory: its secret, and where it serves."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from qim.adapters.embedded.data_directory import DataDirectory, DataDirectoryDamaged
from qim.cli.arguments import UsageError
from qim.cli.output import say

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


def order(data: Path, path: str, body: bytes, timeout: float) -> dict[str, Any]:
    """POST to the running server with the key in ``data``.

    Raises NotRunning, UsageError, ConnectionRefusedError (nothing was asked), and where it may have been carried out
    ConnectionError (the answer was cut) or TimeoutError.
    """
    import http.client
    import urllib.error
    import urllib.request

    where = running_server(data).metrics
    say(f"asking the running server at {where}")
    try:
        key = DataDirectory(data).operator_key()
    except FileNotFoundError:
        raise NotRunning(data) from None
    except OSError as error:
        raise UsageError(f"only its owner may order the server on {data}: {error}") from None
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://{where}{path}", body, headers, method="POST")
    try:
        # By no proxy that the environment names: the key is for the server on this machine alone.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=max(timeout, 1.0)) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except (http.client.HTTPException, json.JSONDecodeError) as error:
        raise ConnectionError(f"{where} ended within its answer ({error})") from None
    except urllib.error.HTTPError as error:
        told = error.read().decode(errors="replace").strip()
        raise UsageError(f"the server at {where} can't do that: {error.code} {told}") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise TimeoutError from None
        refused = isinstance(error.reason, ConnectionRefusedError)
        raise (ConnectionRefusedError if refused else ConnectionError)(str(error.reason)) from None


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
