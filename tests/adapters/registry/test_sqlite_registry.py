"""What only the SQLite registry can be asked: kill -9, commits that fail, bounds, the shared numbers."""

import asyncio
import resource as limits
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qim.adapters.embedded import database_thread
from qim.adapters.embedded.sqlite_registry import (
    SharedNumbersDiffer,
    SqliteRegistry,
    lease_clock,
    shared_numbers,
)
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.registry import Granted, RaiseEpoch, ReadLease, RegisterBarrier
from tests.adapters.registry.registries import OTHER, SHARD, Asker, SqliteAsked

CHILD = Path(__file__).with_name("acquire_until_killed.py")


@contextmanager
def failing_commits(sqlite: SqliteAsked) -> Iterator[None]:
    """Whoever writes beyond the present end of the write-ahead log is refused by the kernel."""
    wal = sqlite.path.with_name("registry.sqlite-wal")
    soft, hard = limits.getrlimit(limits.RLIMIT_FSIZE)
    limits.setrlimit(limits.RLIMIT_FSIZE, (wal.stat().st_size, hard))
    try:
        yield
    finally:
        limits.setrlimit(limits.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def jobs_waiting(sqlite: SqliteAsked, count: int) -> Iterator[None]:
    """``count`` jobs wait behind one that keeps the database thread."""
    release = threading.Event()
    database = sqlite.registry._database
    database.submit(lambda _: release.wait(60), lambda _: None)
    for _ in range(count - 2):
        database.submit(lambda _: None, lambda _: None)
    last: asyncio.Future[object] = sqlite.loop.create_future()
    database.submit(lambda _: None, last.set_result)
    try:
        yield
    finally:
        release.set()
        sqlite.loop.run_until_complete(last)


# ------------------------------------------------------------ epochs that nobody may reuse


def test_no_epoch_that_was_told_is_granted_again_after_kill_nine(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    child = subprocess.Popen([sys.executable, str(CHILD), str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    told: list[bytes] = []
    for line in child.stdout:
        told.append(line)
        if len(told) == 30:
            child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    epochs = [int(line) for line in told if line.endswith(b"\n")]
    assert epochs == sorted(set(epochs))
    reopened = SqliteAsked(path)
    try:
        # the dead child's lease is nobody's: the directory's lock proved that it is dead
        assert Asker(reopened).granted("successor") > epochs[-1]
    finally:
        reopened.close()


@pytest.mark.parametrize("reopened", [False, True])
def test_an_epoch_whose_commit_failed_was_told_to_nobody(
    sqlite: SqliteAsked, reopened: bool
) -> None:
    asker = Asker(sqlite)
    first = asker.granted("a")
    with failing_commits(sqlite):
        lost = asker.acquisition("a")
        assert sqlite.ask(lost) == Unknown(op=lost.op)
        raised = RaiseEpoch(op=asker.op(), resource=SHARD, above=first + 1)
        assert sqlite.ask(raised) == Unknown(op=raised.op)
    told = asker.read().epoch
    assert told >= first
    if reopened:
        sqlite.reopen()
        told = first  # what the other process was shown of a failed commit died with it
        assert asker.read().epoch >= told
    assert asker.granted("a") > told
    assert asker.granted("a") > told + 1


def test_the_epoch_is_durable_before_it_is_told(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    epoch = asker.granted("a")
    asker.raise_epoch(90, OTHER)
    reader = sqlite3.connect(f"file:{sqlite.path}?mode=ro", uri=True)
    rows = dict(reader.execute("SELECT resource, epoch FROM lease"))
    reader.close()
    assert rows == {"writer/3": epoch, "writer/4": 90}


def test_two_that_ask_at_once_get_two_answers_and_one_lease(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    first, second = sqlite.start(asker.acquisition("a")), sqlite.start(asker.acquisition("b"))
    granted, denied = sqlite.loop.run_until_complete(asyncio.gather(first, second))
    assert isinstance(granted, Granted)
    assert denied.owner == "a"


# ------------------------------------------------------------ bounds


def test_what_never_ran_is_failed_and_blocks_nobody(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    with jobs_waiting(sqlite, database_thread.JOBS_MAX):
        refused = asker.acquisition("a")
        assert sqlite.ask(refused) == Failed(op=refused.op, why=FailReason.OVERLOADED)
        for request in (
            RaiseEpoch(op=asker.op(), resource=OTHER, above=3),
            RegisterBarrier(op=asker.op(), resource=OTHER, epoch=1, offset=1),
        ):
            assert sqlite.ask(request) == Failed(op=request.op, why=FailReason.OVERLOADED)
        read = ReadLease(op=asker.op(), resource=OTHER)
        assert sqlite.ask(read) == Failed(op=read.op, why=FailReason.UNREACHABLE)
    assert asker.read().owner == "", "a was granted nothing"
    assert asker.granted("b") > 0
    assert sqlite.registry.waiting == 0


def test_closing_refuses_what_comes_later(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    sqlite.loop.run_until_complete(sqlite.registry.close())
    late = asker.acquisition("a")
    assert sqlite.ask(late) == Failed(op=late.op, why=FailReason.OVERLOADED)


# ------------------------------------------------------------ shared numbers and clock


def test_shared_numbers_are_written_once_and_refused_when_they_differ(
    sqlite: SqliteAsked,
) -> None:
    assert shared_numbers(sqlite.path.with_name("absent.sqlite")) == {}
    numbers = {"shard_count": "4", "outbox_partition_count": "2"}
    sqlite.registry.fix_shared(numbers)
    sqlite.reopen()
    sqlite.registry.fix_shared(numbers)
    sqlite.reopen()
    with pytest.raises(SharedNumbersDiffer, match=r"shard_count.*'4'.*'8'"):
        sqlite.registry.fix_shared({"shard_count": "8"})
    assert shared_numbers(sqlite.path) == numbers


def test_a_refused_start_leaves_the_numbers_as_they_were(sqlite: SqliteAsked) -> None:
    sqlite.registry.fix_shared({"shard_count": "4"})
    sqlite.reopen()
    with pytest.raises(SharedNumbersDiffer):
        sqlite.registry.fix_shared({"another": "1", "shard_count": "5"})
    assert shared_numbers(sqlite.path) == {"shard_count": "4"}


def test_leases_run_on_a_clock_that_only_rises(tmp_path: Path) -> None:
    before = lease_clock()
    assert lease_clock() >= before
    registry = SqliteAsked(tmp_path / "other.sqlite")
    try:
        registry.loop.run_until_complete(registry.registry.close())
        registry.registry = SqliteRegistry(registry.path, registry.loop)  # the default clock
        assert Asker(registry).granted("a") > 0
    finally:
        registry.close()
