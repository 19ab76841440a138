"""A store process left over from a killed parent: found, proved to be ours, ended before the next start.

Two servers on one append-only file would corrupt it, and an old one would answer on the socket the new one needs. A
pid in a file proves nothing (pids are reused), so a process is ended only if the kernel says that it is a server
program whose working directory is this very store directory, or that it listens on the recorded socket there.
"""

import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from qim.adapters.redis.blocking import BlockingConnection, parse_info

RECORD_NAME = "server.json"
PID_FILE_NAME = "server.pid"
TERMINATE_TIMEOUT_MS = 10_000
KILL_TIMEOUT_MS = 10_000
ASK_TIMEOUT_S = 0.5

_PROC = Path("/proc")
_POLL_MS = 20


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a start leaves in the store directory for the next one."""

    pid: int
    socket: str
    socket_directory: str | None
    run_id: str


class StaleServerRemains(Exception):
    """A left-over store process did not end even when killed: starting beside it could corrupt its data."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"the old store process {pid} does not end; end it before starting again")
        self.pid = pid


def read_record(store: Path) -> ServerRecord | None:
    """The last start's record, None where there is none or it can't be read (it decides nothing alone)."""
    try:
        return msgspec.json.decode((store / RECORD_NAME).read_bytes(), type=ServerRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_record(store: Path, record: ServerRecord) -> None:
    """Whole or not at all."""
    unfinished = store / (RECORD_NAME + ".new")
    unfinished.write_bytes(msgspec.json.encode(record))
    unfinished.rename(store / RECORD_NAME)


def end_stale_server(store: Path) -> int | None:
    """End what a killed parent left in ``store``; its pid, or None. Raises StaleServerRemains.

    First SIGTERM, so that it writes its tail to disk; SIGKILL after ``TERMINATE_TIMEOUT_MS``.
    """
    ended: int | None = None
    record = read_record(store)
    for pid in _candidates(store, record):
        if pid != os.getpid() and _is_ours(pid, store, record):
            _end(pid)
            ended = pid
    return ended


def _candidates(store: Path, record: ServerRecord | None) -> Iterator[int]:
    """Pids worth a look, each once: as recorded, as the server itself wrote, as the socket's owner."""
    seen = dict.fromkeys([_pid_file(store)])
    if record is not None:
        seen[record.pid] = None
        seen[_listener(Path(record.socket))] = None
    yield from (pid for pid in seen if pid is not None and pid > 1)


def _pid_file(store: Path) -> int | None:
    # the server writes it itself, so it is there even if the parent died before it wrote its record
    try:
        text = (store / PID_FILE_NAME).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _listener(path: Path) -> int | None:
    """The process that listens on a Unix socket, as the kernel says (Linux)."""
    peer_credentials = getattr(socket, "SO_PEERCRED", None)
    if peer_credentials is None:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ASK_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        packed = probe.getsockopt(socket.SOL_SOCKET, peer_credentials, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", packed)[0]
    return pid


def _is_ours(pid: int, store: Path, record: ServerRecord | None) -> bool:
    command = command_line(pid)
    if "valkey-server" not in command and "redis-server" not in command:
        return False
    if _PROC.is_dir():
        try:
            return os.path.samefile(_PROC / str(pid) / "cwd", store)
        except OSError:
            return False
    return record is not None and _says_it_is(pid, record)


def _says_it_is(pid: int, record: ServerRecord) -> bool:
    """Without /proc: the server on the recorded socket must itself name this pid and the recorded run."""
    try:
        with BlockingConnection(Path(record.socket), timeout_s=ASK_TIMEOUT_S) as connection:
            said: Any = connection.ask(b"INFO", b"server")
    except OSError:
        return False
    fields = parse_info(said) if isinstance(said, bytes) else {}
    return fields.get("run_id") == record.run_id and fields.get("process_id") == str(pid)


def command_line(pid: int) -> str:
    """What the process was started as (or calls itself); "" where it is gone or a zombie."""
    if _PROC.is_dir():
        try:
            raw = (_PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            return ""
        return raw.replace(b"\0", b" ").decode("utf-8", "replace")
    listed = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.strip()


def _end(pid: int) -> None:
    for how, timeout_ms in (
        (signal.SIGTERM, TERMINATE_TIMEOUT_MS),
        (signal.SIGKILL, KILL_TIMEOUT_MS),
    ):
        try:
            with _Watched(pid) as watched:
                os.kill(pid, how)
                if watched.gone_within(timeout_ms):
                    return
        except ProcessLookupError:
            return
    raise StaleServerRemains(pid)


class _Watched:
    """Waits for the end of a process that is not our child; the descriptor keeps its pid from meaning another."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._file = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None

    def __enter__(self) -> "_Watched":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def gone_within(self, timeout_ms: int) -> bool:
        if self._file is not None:
            poller = select.poll()
            poller.register(self._file, select.POLLIN)
            return bool(poller.poll(timeout_ms))
        for _ in range(timeout_ms // _POLL_MS):
            if not command_line(self._pid):
                return True
            select.select([], [], [], _POLL_MS / 1000)
        return False
