"""The data directory of an embedded server: one holder at a time, one place for every path, the secret.

The lock is an flock on a file that is never removed: the kernel lets go of it when its holder dies, however it dies,
and no child inherits it (Python opens files close-on-exec), so a store process that outlives its parent doesn't hold
the directory. The pid inside is for the message only and never decides.
"""

import fcntl
import os
import secrets
from pathlib import Path
from types import TracebackType

SECRET_BYTES = 32
OPERATOR_KEY_BYTES = 32


class DataDirectoryHeld(Exception):
    """Another process holds the directory; ``pid`` is what it wrote, None if it has not got so far."""

    def __init__(self, root: Path, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{root} is held by {holder}: stop it first, or choose another directory")
        self.pid = pid


class DataDirectoryDamaged(Exception):
    """A file in the directory is not what this program wrote."""


class DataDirectory:
    """The layout below ``root``; ``hold`` is needed before anything in it is written."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.lock = self.root / "lock"
        self.secret_file = self.root / "secret"
        self.operator_key_file = self.root / "operator.key"
        self.log_database = self.root / "log.sqlite"
        self.registry_database = self.root / "registry.sqlite"
        self.archive_database = self.root / "archive.sqlite"
        self.store = self.root / "store"
        self._lock_file: int | None = None

    def hold(self) -> "DataDirectory":
        """Create what is missing and take the lock until ``release`` or the end of the process.

        Raises DataDirectoryHeld at once, without waiting; OSError where the directory can't be made.
        """
        assert self._lock_file is None, "held already"
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_file = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(lock_file)
            os.close(lock_file)
            raise DataDirectoryHeld(self.root, pid) from None
        os.ftruncate(lock_file, 0)
        os.pwrite(lock_file, b"%d\n" % os.getpid(), 0)
        self._lock_file = lock_file
        self.store.mkdir(mode=0o700, exist_ok=True)
        return self

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock_file is not None

    def release(self) -> None:
        """Let the next process in."""
        if self._lock_file is not None:
            os.ftruncate(self._lock_file, 0)
            os.close(self._lock_file)
            self._lock_file = None

    def holder(self) -> int | None:
        """The pid of the process that holds the directory, None where nobody does (or it has not told)."""
        try:
            lock_file = os.open(self.lock, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _pid_in(lock_file)
        else:
            return None
        finally:
            os.close(lock_file)

    def secret(self) -> bytes:
        """The 32 random bytes that sign tokens and cursors of this server, made at the first call.

        Raises DataDirectoryDamaged where the file is there with another length: a new secret would
        silently invalidate everything signed.
        """
        try:
            found = self.secret_file.read_bytes()
        except FileNotFoundError:
            assert self.held, "only the holder makes a secret"
            return self._new_secret()
        if len(found) != SECRET_BYTES:
            raise DataDirectoryDamaged(
                f"{self.secret_file}: {len(found)} bytes, not {SECRET_BYTES}"
            )
        return found

    def _new_secret(self) -> bytes:
        made = secrets.token_bytes(SECRET_BYTES)
        self._write_private(self.secret_file, made)
        return made

    def new_operator_key(self) -> str:
        """What orders to this run of the server must carry (decision 0025): in a file that its owner alone can read."""
        assert self.held, "only the holder takes orders"
        made = secrets.token_hex(OPERATOR_KEY_BYTES)
        self._write_private(self.operator_key_file, made.encode() + b"\n")
        return made

    def operator_key(self) -> str:
        """The key of the run that is under way. Raises OSError: there is none, or it isn't ours to read."""
        return self.operator_key_file.read_text(encoding="ascii").strip()

    def _write_private(self, path: Path, content: bytes) -> None:
        # whole or absent, also when the machine stops in between
        unfinished = path.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, content)
            os.fsync(file)
        finally:
            os.close(file)
        unfinished.rename(path)
        _sync_directory(self.root)

    def __enter__(self) -> "DataDirectory":
        return self if self.held else self.hold()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _pid_in(lock_file: int) -> int | None:
    text = os.pread(lock_file, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
