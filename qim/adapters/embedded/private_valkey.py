"""The embedded hot store: a private Valkey (or Redis) process over a Unix socket inside the data directory.

It must neither outlive its parent nor lose what it could have kept:

- On Linux the kernel sends it SIGTERM when the parent dies (PR_SET_PDEATHSIG, set between fork and exec). Chosen over a
  watchdog on a pipe, because a watchdog is one more process that can itself be killed, and because SIGTERM lets the
  server write its tail to disk although the parent fell to SIGKILL. Its trap: the signal is bound to the THREAD that
  forked, so ``start`` refuses to run on any other than the main thread.
- Whatever is left nevertheless (other systems, a signal lost, a server killed together with its parent halfway) is found
  and ended by the next start before it opens the files (stale_server.py).
- It runs in a session of its own: Ctrl-C in a terminal reaches the parent alone, which drains and then stops the store.

Settings: append-only file with ``appendfsync`` as asked, no snapshots, noeviction (a store that drops keys breaks every
rule of the pipeline), LC_ALL=C so that Lua's own comparison collates by bytes, no TCP port.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import hiredis

from qim.adapters.embedded.data_directory import DataDirectory
from qim.adapters.embedded.server_binary import ServerBinary, find_server_binary
from qim.adapters.embedded.stale_server import (
    PID_FILE_NAME,
    RECORD_NAME,
    ServerRecord,
    end_stale_server,
    read_record,
    write_record,
)
from qim.adapters.redis.blocking import BlockingConnection, parse_info

Fsync = Literal["everysec", "always", "no"]

SOCKET_PATH_BYTES_MAX = 100
"""sun_path holds 104 bytes on macOS and 108 on Linux, the terminating zero included."""
SOCKET_NAME = "s"
LOG_NAME = "server.log"
START_TIMEOUT_MS = 60_000
STOP_TIMEOUT_MS = 10_000
CLIENTS_MAX = 256
LOG_TAIL_BYTES = 2_000
STARTS_MAX = 3
"""A server killed twice, the second time while it began its file anew, ends at one or two starts and serves at the next."""

_ASK_TIMEOUT_S = 1.0
_RETRY_S = 0.003
_TORN_BEFORE_NEWEST = "truncated file is not the last file"
_PR_SET_PDEATHSIG = 1
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/+=@-]+")


class PrivateValkeyFailed(Exception):
    """The store process ended, or was not ready in time; the message holds the end of its log."""


class TornFileMended(PrivateValkeyFailed):
    """It ended because an earlier file than the newest was torn; it has cut that file, and the next start serves."""


class PrivateValkey:
    """A running store process; ``socket_path`` and ``run_id`` are what a connection needs."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        binary: ServerBinary,
        store: Path,
        record: ServerRecord,
    ) -> None:
        self._process = process
        self._store = store
        self._record = record
        self.binary = binary
        self.pid = process.pid
        self.socket_path = Path(record.socket)
        self.run_id = record.run_id

    @classmethod
    def start(
        cls,
        directory: DataDirectory,
        *,
        fsync: Fsync = "everysec",
        binary: ServerBinary | None = None,
        start_timeout_ms: int = START_TIMEOUT_MS,
        settings: Mapping[str, str] | None = None,
    ) -> "PrivateValkey":
        """Start the server of a held data directory and wait, blocking, until it has loaded its file.

        ``settings`` are further server options by name. Raises NoServerBinary, StaleServerRemains,
        PrivateValkeyFailed; nothing is left running then.
        """
        assert directory.held, "two servers on one append-only file would corrupt it"
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("the store would be ended with the thread that started it")
        store = directory.store
        binary = binary or find_server_binary()
        end_stale_server(store)
        socket_path, socket_directory = _socket_place(store)
        socket_path.unlink(missing_ok=True)
        words = _options(fsync, settings or {})
        for starts_left in reversed(range(STARTS_MAX)):
            process = _spawn(binary, store, socket_path, words)
            try:
                info = _wait_loaded(process, socket_path, store, start_timeout_ms)
                record = ServerRecord(
                    pid=process.pid,
                    socket=str(socket_path),
                    socket_directory=socket_directory,
                    run_id=info["run_id"],
                )
                write_record(store, record)
            except BaseException as error:
                _end_child(process, 0)
                socket_path.unlink(missing_ok=True)
                if starts_left and isinstance(error, TornFileMended):
                    continue
                raise
            return cls(process, binary=binary, store=store, record=record)
        raise AssertionError("every start returned or raised")

    def exit_code(self) -> int | None:
        """None while it runs; the machinery around must treat an end as the loss of the store."""
        return self._process.poll()

    def stop(self, *, stop_timeout_ms: int = STOP_TIMEOUT_MS) -> int:
        """SIGTERM (the server writes its file and syncs it), SIGKILL after the time-out; its exit code."""
        code = _end_child(self._process, stop_timeout_ms)
        (self._store / RECORD_NAME).unlink(missing_ok=True)
        self.socket_path.unlink(missing_ok=True)
        if self._record.socket_directory is not None:
            shutil.rmtree(self._record.socket_directory, ignore_errors=True)
        return code


def _socket_place(store: Path) -> tuple[Path, str | None]:
    """Where the socket goes; a private directory elsewhere if the path is too long or has odd letters."""
    path = store / SOCKET_NAME
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX and _PLAIN_PATH.fullmatch(str(path)):
        return path, None
    record = read_record(store)
    directory = record.socket_directory if record is not None else None
    if directory is None or not _is_private(Path(directory)):
        directory = tempfile.mkdtemp(prefix="qim-")  # 0700
    return Path(directory) / SOCKET_NAME, directory


def _is_private(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return directory.is_dir() and status.st_uid == os.getuid() and status.st_mode & 0o777 == 0o700


def _options(fsync: Fsync, settings: Mapping[str, str]) -> list[str]:
    options = {
        "port": "0",
        "unixsocketperm": "700",
        "daemonize": "no",
        "pidfile": PID_FILE_NAME,
        "save": "",
        "appendonly": "yes",
        "appendfsync": fsync,
        "aof-load-truncated": "yes",
        "maxmemory-policy": "noeviction",
        "maxclients": str(CLIENTS_MAX),
        **settings,
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def _spawn(
    binary: ServerBinary, store: Path, socket_path: Path, options: list[str]
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "LC_ALL": "C"}
    log = store / LOG_NAME
    if log.exists():
        log.rename(
            log.with_suffix(".log.before")
        )  # of this and the last run, so it can't grow for ever
    try:
        with log.open("wb") as said:
            return subprocess.Popen(
                [binary.path, "--unixsocket", str(socket_path), *options],
                cwd=store,  # the server keeps its files where it runs, and is recognised by that
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
    except OSError as error:
        raise PrivateValkeyFailed(f"{binary.path} can't be started: {error}") from error


def _die_with_parent() -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork: no locks after it
    parent = os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died between fork and prctl: no signal would ever come
            os._exit(1)

    return in_child


def _wait_loaded(
    process: subprocess.Popen[bytes], socket_path: Path, store: Path, timeout_ms: int
) -> Mapping[str, str]:
    """INFO of the server once it answers PING and is this very process."""
    end = time.monotonic() + timeout_ms / 1000
    while True:
        code = process.poll()
        if code is not None:
            said = _log_tail(store)
            failed = TornFileMended if _TORN_BEFORE_NEWEST in said else PrivateValkeyFailed
            raise failed(f"the store process ended with {code}: {said}")
        info = _info_if_loaded(socket_path)
        if info is not None and info.get("process_id") == str(process.pid):
            return info
        if time.monotonic() >= end:
            raise PrivateValkeyFailed(f"not ready in {timeout_ms} ms: {_log_tail(store)}")
        time.sleep(_RETRY_S)


def _info_if_loaded(socket_path: Path) -> Mapping[str, str] | None:
    try:
        with BlockingConnection(socket_path, timeout_s=_ASK_TIMEOUT_S) as connection:
            # PING is answered by an error while the file is being loaded
            if isinstance(connection.ask(b"PING"), hiredis.ReplyError):
                return None
            said: Any = connection.ask(b"INFO", b"server")
    except OSError:
        return None
    return parse_info(said) if isinstance(said, bytes) else None


def _end_child(process: subprocess.Popen[bytes], timeout_ms: int) -> int:
    process.terminate()
    try:
        return process.wait(timeout_ms / 1000)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _log_tail(store: Path) -> str:
    try:
        return (store / LOG_NAME).read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
    except OSError:
        return "no log"
