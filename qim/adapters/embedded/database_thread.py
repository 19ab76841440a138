"""One SQLite connection on one thread of its own, fed with jobs that share a commit.

The event loop must never wait for an fsync, and one commit a batch is what makes SQLite a fast log (components.md): jobs
that arrive while a commit is under way ride together in the next one. A job that raises rolls back alone (savepoint).

What became of a job is never guessed: its exception and everything that was refused before it ran are surely not
applied, a commit that failed may still be found durable after a crash (its frames may stand whole in the WAL).
"""

import contextlib
import queue
import sqlite3
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from qim.adapters import breakage
from qim.adapters.embedded.data_directory import DataDirectoryDamaged
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
    """``work`` runs in a transaction on the database thread, ``done`` on the event loop with its result or exception.

    A ``shared`` work takes the items of all jobs that follow each other with it, and gives a result for each.
    """

    work: Callable[..., Any]
    done: Callable[[object], None]
    item: object = None
    shared: bool = False


class DatabaseThread:
    """Owns the connection; ``submit`` and ``close`` from the event loop only."""

    def __init__(
        self, path: Path, loop: AbstractEventLoop, *, schema: str, name: str, reads: bool = False
    ) -> None:
        self._loop = loop
        self._path = path
        # A thread that only reads must not take the write lock from the one that writes the same file.
        self._begin = "BEGIN DEFERRED" if reads else "BEGIN IMMEDIATE"
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting = 0
        self._stopped = False
        self._broken = ""
        self.commits = 0
        self.busy_us = 0
        """Time inside transactions, waiting for the disk included: near the wall's, this thread is the limit."""
        self._connection = open_database(path, schema)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs submitted and not yet answered."""
        return self._waiting

    def at_start(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``work`` at once on the caller's thread, all or nothing; only before the first ``submit``.

        Raises DataDirectoryDamaged where a page of the file is: its head was whole, or it had not been opened. The thread ends.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                work(self._connection)
            except BaseException:
                if (
                    self._connection.in_transaction
                ):  # SQLite ends it by itself where the disk is full
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._stopped = True
            self._jobs.put(None)
            raise DataDirectoryDamaged(f"{self._path}: {error}") from error

    def submit(
        self, work: Callable[[sqlite3.Connection], object], done: Callable[[object], None]
    ) -> None:
        """Run ``work`` in order with the others; ``done`` gets its result once it is durable, or an exception."""
        self._submit(Job(work=work, done=done))

    def submit_together(
        self,
        work: Callable[[sqlite3.Connection, list[Any]], Sequence[object]],
        item: object,
        done: Callable[[object], None],
    ) -> None:
        """As ``submit``, but ONE call of ``work`` takes the items of all that wait in a row; they succeed or fail alike."""
        self._submit(Job(work=work, done=done, item=item, shared=True))

    def _submit(self, job: Job) -> None:
        if self._stopped:
            self._loop.call_soon(job.done, DatabaseStopped("the database is closed"))
            return
        if self._waiting >= JOBS_MAX:
            busy = DatabaseBusy(f"{self._waiting} jobs wait, at most {JOBS_MAX}")
            self._loop.call_soon(job.done, busy)
            return
        self._waiting += 1
        self._jobs.put(job)

    async def close(self) -> None:
        """Finish and answer what was submitted, close the file and end the thread."""
        if not self._stopped:
            # On the loop, like submit: a job can't slip in behind the end mark and wait for ever.
            self._stopped = True
            self._jobs.put(None)
        await self._loop.run_in_executor(None, self._thread.join, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._work_off()
        except BaseException as error:
            # Nobody would be answered any more.
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(breakage.tell, self._loop, self._thread.name, error)

    def _work_off(self) -> None:
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
                begun = time.perf_counter_ns()
                results = self._commit(batch)
                self.commits += 1
                self.busy_us += (time.perf_counter_ns() - begun) // 1_000
                self._answer(batch, results)
        self._connection.close()

    def _commit(self, batch: list[Job]) -> list[object]:
        if self._broken:
            return [DatabaseStopped(self._broken)] * len(batch)
        connection = self._connection
        try:
            connection.execute(self._begin)
        except sqlite3.Error as error:
            return [DatabaseBusy(str(error))] * len(batch)
        runs = _runs(batch)
        results: list[object] = []
        try:
            if len(runs) == 1:
                # Nothing else rides in this transaction: it is its own savepoint.
                try:
                    results = _results(connection, batch)
                except Exception as error:
                    if connection.in_transaction:  # SQLite ends it by itself where the disk is full
                        connection.execute("ROLLBACK")
                    return [error] * len(batch)
            else:
                for run in runs:
                    results += self._beside_others(run)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            return [CommitUncertain(str(error))] * len(batch)
        return results

    def _beside_others(self, run: list[Job]) -> list[object]:
        connection = self._connection
        connection.execute("SAVEPOINT job")
        try:
            results = _results(connection, run)
        except Exception as error:  # one bad job never spoils the rest of its batch
            connection.execute("ROLLBACK TO job")
            results = [error] * len(run)
        connection.execute("RELEASE job")
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
                breakage.tell(self._loop, f"{self._thread.name}: the taking of an answer", error)


def _runs(batch: list[Job]) -> list[list[Job]]:
    """Jobs that run as one: each by itself, those with the same shared work in a row together."""
    runs: list[list[Job]] = []
    for job in batch:
        if job.shared and runs and runs[-1][0].shared and runs[-1][0].work is job.work:
            runs[-1].append(job)
        else:
            runs.append([job])
    return runs


def _results(connection: sqlite3.Connection, run: list[Job]) -> list[object]:
    first = run[0]
    if not first.shared:
        return [first.work(connection)]
    results = list(first.work(connection, [job.item for job in run]))
    assert len(results) == len(run), first.work
    return results


def mishap(op: int, result: object) -> Failed | Unknown:
    """The completion for what came instead of a result: only a failed commit leaves open what became of it."""
    if isinstance(result, CommitUncertain):
        return Unknown(op=op)
    if isinstance(result, DatabaseBusy | DatabaseStopped):
        return Failed(op=op, why=FailReason.OVERLOADED)
    return Failed(op=op, why=FailReason.UNREACHABLE)


def open_database(path: Path, schema: str) -> sqlite3.Connection:
    """WAL and synchronous=FULL (on macOS a full fsync): an answered commit survives a power cut.

    Raises DataDirectoryDamaged for a file that SQLite can't open or read.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=ON")
            connection.execute("PRAGMA busy_timeout=5000")
            connection.executescript(schema)
        except sqlite3.Error:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise DataDirectoryDamaged(f"{path}: {error}") from error
    return connection
