"""What only the SQLite archive can be asked: kill -9, a full disk, reads beside a writer."""

import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from qim.core.ports.archive import ArchiveWritten
from qim.core.ports.completion import Failed, FailReason, Unknown
from tests.adapters.archive.archives import Asker, SqliteAsked
from tests.adapters.archive.records import CHAT, message

CHILD = Path(__file__).with_name("write_until_killed.py")
ROOT = Path(__file__).resolve().parents[3]
LINES_BEFORE_THE_KILL = (1, 30, 120)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteAsked]:
    chosen = SqliteAsked(tmp_path / "archive.sqlite")
    yield chosen
    chosen.close()


@contextmanager
def no_more_bytes_in(path: Path) -> Iterator[None]:
    """Whoever writes beyond the present end of ``path`` is refused by the kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("lines", LINES_BEFORE_THE_KILL)
def test_what_was_confirmed_is_there_after_kill_nine(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "archive.sqlite"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.adapters.archive.write_until_killed", str(path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert child.stdout is not None
    told: list[bytes] = []
    for line in child.stdout:
        told.append(line)
        if len(told) == lines:
            child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    confirmed = max(int(line) for line in told if line.endswith(b"\n"))
    archive = SqliteAsked(path)
    asker = Asker(archive)
    seqs = asker.seqs(CHAT, limit=100_000)
    assert seqs == list(range(1, len(seqs) + 1)) and len(seqs) % 3 == 0, "whole batches, in order"
    assert len(seqs) >= 3 * confirmed
    read = asker.conversations()
    assert (read.position, read.conversations[0].greatest_seq) == (len(seqs) + 1, len(seqs))
    archive.close()


def test_a_full_disk_never_confirms(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    asker.written(message(1), through=2)
    big = message(2, body=b"x" * 300_000)
    with no_more_bytes_in(Path(f"{sqlite.path}-wal")):
        reply = asker.write(big, through=3)
        assert isinstance(reply, Unknown | Failed), reply
        assert asker.seqs(CHAT) == [1], "reading goes on"
    assert asker.written(big, through=3) == ()
    assert (asker.seqs(CHAT), asker.conversations().position) == ([1, 2], 3)


def test_a_reader_does_not_wait_for_a_writer(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    asker.written(message(1))
    begun, release = threading.Event(), threading.Event()

    def hold(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM history")
        begun.set()
        release.wait(60)
        connection.execute("SELECT 1")
        raise sqlite3.DataError("not after all")

    sqlite.archive._writes.submit(hold, lambda _: None)
    begun.wait(60)
    try:
        assert asker.seqs(CHAT) == [1]
    finally:
        release.set()
    assert isinstance(asker.write(message(2)), ArchiveWritten)
    assert asker.seqs(CHAT) == [1, 2]


def test_a_row_nobody_can_read_spoils_only_its_own_batch(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    broken = replace(message(1), stored=b"x" * 30)
    reply = asker.write(message(7), broken)
    assert reply == Failed(op=1, why=FailReason.UNREACHABLE)
    assert asker.written(message(1)) == ()
    assert asker.seqs(CHAT) == [1]


def test_a_closed_archive_refuses(tmp_path: Path) -> None:
    closed = SqliteAsked(tmp_path / "archive.sqlite")
    closed.loop.run_until_complete(closed.archive.close())
    assert Asker(closed).write(message(1)) == Failed(op=1, why=FailReason.OVERLOADED)
    closed.close()


def test_the_message_index_and_the_places_are_used(sqlite: SqliteAsked) -> None:
    connection = sqlite3.connect(sqlite.path)
    plans = {
        "SELECT stored FROM history WHERE message=?": "message_index",
        "SELECT stored FROM history WHERE conversation=? AND bucket=? AND seq>=? AND seq<=? "
        "ORDER BY seq DESC, message DESC LIMIT 9": "place",
        "SELECT max(bucket) FROM history WHERE conversation=? AND bucket<=?": "place",
    }
    for query, index in plans.items():
        rows = connection.execute("EXPLAIN QUERY PLAN " + query, (0,) * query.count("?"))
        words = " ".join(row[3] for row in rows)
        assert index in words and "SCAN" not in words and "TEMP" not in words, words
    connection.close()
