"""One SQLite connection on one thread of its own, fed with jobs that share a commit.

The event loop must never wait for an fsync, and one commit a batch is what makes SQLite a fast log (components.md): jobs
that arrive while a commit is under way ride together in the next one. A job that raises rolls back alone (savepoint).

What became of a job is never guessed: its exception and everything that was refused before it ran are surely not
applied, a commit that failed may still be found durable after a crash (its frames may stand whole in the WAL).
"""

import queue
import sqlite3
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from qim.core.ports.completion import Failed, FailReason, Unknown

JOBS_MAX: Final = 10_000
JOBS_PER_COMMIT_MAX: Final = 512
CLOSE_TIMEOUT_S: Final = 30.0


class DatabaseStopped(Exception):
    """The thread was stopped before the job ran: surely not applied."""


class DatabaseBusy(Exception):
    """More than ``JOBS_MAX`` jobs wait, or the file could not be locked: surely not applied."""


class CommitUncertain(Exception):
    """The commit itself failed: the job may or may not be durable."""


class Job(Struct):
    """``work`` runs in a transaction on the database thread, ``done`` on the event loop with its result or exception."""

    work: Callable[[sqlite3.Connection], object]
    done: Callable[[object], None]


class DatabaseThread:
    """Owns the connection; ``submit`` and ``close`` from the event loop only."""

    def __init__(self, path: Path, loop: AbstractEventLoop, *, schema: str, name: str) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting = 0
        self._stopped = False
        self._broken = ""
        self._connection = open_database(path, schema)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs submitted and not yet answered."""
        return self._waiting

    def at_start(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``work`` at once on the caller's thread, all or nothing; only before the first ``submit``."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            work(self._connection)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def submit(
        self, work: Callable[[sqlite3.Connection], object], done: Callable[[object], None]
    ) -> None:
        """Run ``work`` in order with the others; ``done`` gets its result once it is durable, or an exception."""
        if self._stopped:
            self._loop.call_soon(done, DatabaseStopped("the database is closed"))
            return
        if self._waiting >= JOBS_MAX:
            busy = DatabaseBusy(f"{self._waiting} jobs wait, at most {JOBS_MAX}")
            self._loop.call_soon(done, busy)
            return
        self._waiting += 1
        self._jobs.put(Job(work=work, done=done))

    async def close(self) -> None:
        """Finish and answer what was submitted, close the file and end the thread."""
        if not self._stopped:
            # On the loop, like submit: a job can't slip in behind the end mark and wait for ever.
            self._stopped = True
            self._jobs.put(None)
        await self._loop.run_in_executor(None, self._thread.join, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        ended = False
        while not ended:
            batch: list[Job] = []
            job = self._jobs.get()
            while job is not None:
                batch.append(job)
                if len(batch) >= JOBS_PER_COMMIT_MAX:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            ended = job is None
            if batch:
                self._answer(batch, self._commit(batch))
        self._connection.close()

    def _commit(self, batch: list[Job]) -> list[object]:
        if self._broken:
            return [DatabaseStopped(self._broken)] * len(batch)
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            return [DatabaseBusy(str(error))] * len(batch)
        results: list[object] = []
        try:
            for job in batch:
                connection.execute("SAVEPOINT job")
                try:
                    results.append(job.work(connection))
                except Exception as error:  # one bad job never spoils the rest of its batch
                    connection.execute("ROLLBACK TO job")
                    results.append(error)
                connection.execute("RELEASE job")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            return [CommitUncertain(str(error))] * len(batch)
        return results

    def _roll_back(self) -> None:
        """SQLite rolls back some failures by itself; where it neither did nor can, nothing more is written here."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            self._broken = f"a failed commit could not be rolled back: {error}"

    def _answer(self, batch: list[Job], results: list[object]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch, results)
        except RuntimeError:
            return  # the loop is closed: nobody is left to be answered

    def _deliver(self, batch: list[Job], results: list[object]) -> None:
        self._waiting -= len(batch)
        for job, result in zip(batch, results, strict=True):
            try:
                job.done(result)
            except (
                Exception
            ) as error:  # our own bug; the others of the commit are owed their answers
                self._loop.call_exception_handler(
                    {"message": f"{self._thread.name}: an answer was not taken", "exception": error}
                )


def mishap(op: int, result: object) -> Failed | Unknown:
    """The completion for what came instead of a result: only a failed commit leaves open what became of it."""
    if isinstance(result, CommitUncertain):
        return Unknown(op=op)
    if isinstance(result, DatabaseBusy | DatabaseStopped):
        return Failed(op=op, why=FailReason.OVERLOADED)
    return Failed(op=op, why=FailReason.UNREACHABLE)


def open_database(path: Path, schema: str) -> sqlite3.Connection:
    """WAL and synchronous=FULL (on macOS a full fsync): an answered commit survives a power cut."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA fullfsync=ON")
    connection.execute("PRAGMA busy_timeout=5000")
    connection.executescript(schema)
    return connection
