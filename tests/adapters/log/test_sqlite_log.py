"""What only the SQLite log can be asked: kill -9, shared commits, commits that fail, bounds, retention by age."""

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

from qim.adapters.embedded import database_thread, log_file, log_tail
from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.log import Appended, Fetched, OutOfRange, StoredRecord, Topic
from tests.adapters.log.logs import Asker, SqliteAsked

CHILD = Path(__file__).with_name("append_until_killed.py")
LINES_BEFORE_THE_KILL = (1, 40, 200)
FAR_FUTURE = 1 << 60
"""A wall clock by which every record is old."""


def whole(asker: Asker) -> list[StoredRecord]:
    """Every record of outbox 0."""
    found: list[StoredRecord] = []
    while reply := asker.fetch(len(found)).records:
        found += reply
    return found


@contextmanager
def no_more_bytes_in(path: Path) -> Iterator[None]:
    """Whoever writes beyond the present end of ``path`` is refused by the kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def thread_held(sqlite: SqliteAsked) -> Iterator[None]:
    """Jobs pile up while the database thread is kept in one of them."""
    begun, release = threading.Event(), threading.Event()

    def work(connection: sqlite3.Connection) -> None:
        begun.set()
        release.wait(60)

    sqlite.log._database.submit(work, lambda _: None)
    begun.wait(60)
    try:
        yield
    finally:
        release.set()


# ------------------------------------------------------------ kill -9


@pytest.mark.parametrize("lines", LINES_BEFORE_THE_KILL)
def test_what_was_answered_is_there_after_kill_nine(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "log.sqlite"
    child = subprocess.Popen([sys.executable, str(CHILD), str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    told: list[bytes] = []
    for line in child.stdout:
        told.append(line)
        if len(told) == lines:
            child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    if not told[-1].endswith(b"\n"):
        told.pop()  # cut by the kill; the append itself may stand
    reopened = SqliteAsked(path)
    try:
        asker = Asker(reopened)
        records = whole(asker)
        assert [one.offset for one in records] == list(range(len(records)))
        for line in told:
            number, first, count = (int(word) for word in line.split())
            expected = [b"%d/%d" % (number, index) for index in range(count)]
            assert [one.value for one in records[first : first + count]] == expected
        assert_whole_batches(records)
        assert asker.append(b"goes on").offsets == (len(records),)
    finally:
        reopened.close()


def assert_whole_batches(records: list[StoredRecord]) -> None:
    """No batch is torn: every append that left a record left all of them, once, in order."""
    seen: list[tuple[int, int]] = []
    for record in records:
        number, index = (int(word) for word in record.value.split(b"/"))
        seen.append((number, index))
    numbers = [number for number, index in seen if index == 0]
    assert seen == [(number, index) for number in numbers for index in range(1 + number % 5)]
    assert len(set(numbers)) == len(numbers)


# ------------------------------------------------------------ commits


def test_appends_that_waited_share_a_commit(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    commits: list[str] = []
    sqlite.log._database.at_start(
        lambda connection: connection.set_trace_callback(
            lambda statement: commits.append(statement) if statement == "COMMIT" else None
        )
    )
    commits.clear()  # that of at_start itself
    with thread_held(sqlite):
        ops = [asker.start_append(b"%d" % n) for n in range(50)]
        ops.append(asker.start_append(b"elsewhere", partition=1))
    answers = sqlite.answers(*ops)
    assert [answer.offsets for answer in answers] == [*((n,) for n in range(50)), (0,)]
    assert len(commits) == 2, "one of the job that held the thread, one of all that waited"


def test_a_commit_that_fails_is_unknown_and_later_appends_stay_dense(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    asker.append(b"before")
    with no_more_bytes_in(sqlite.path.with_name("log.sqlite-wal")):
        with thread_held(sqlite):
            ops = [asker.start_append(b"x" * 9_000), asker.start_append(b"y", partition=1)]
        answers = sqlite.answers(*ops)
    assert answers == [Unknown(op=op) for op in ops], "all that rode in it"
    assert asker.ends().end == 1
    assert asker.append(b"after").offsets == (1,)
    assert [one.value for one in whole(asker)] == [b"before", b"after"]
    sqlite.reopen()
    assert [one.value for one in whole(asker)] == [b"before", b"after"]


def test_a_record_that_became_durable_behind_our_back_leaves_no_hole_in_memory(
    sqlite: SqliteAsked,
) -> None:
    """A failed commit that is found whole after all: the file knows one more than memory."""
    asker = Asker(sqlite)
    asker.append(b"a", b"b")
    other = sqlite3.connect(sqlite.path)
    with other:
        other.execute("INSERT INTO record VALUES ('outbox',0,2,0,?,?)", (b"k" * 16, b"unknown"))
    other.close()
    assert asker.append(b"c").offsets == (3,)
    assert [one.value for one in whole(asker)] == [b"a", b"b", b"unknown", b"c"]
    assert [one.offset for one in asker.fetch(2).records] == [2, 3]


def test_a_job_that_raises_spoils_no_other_of_its_commit(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    results: list[object] = []

    def bad(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM record")
        raise ValueError("half way")

    with thread_held(sqlite):
        before = asker.start_append(b"a")
        sqlite.log._database.submit(bad, results.append)
        after = asker.start_append(b"b")
    assert [one.offsets for one in sqlite.answers(before, after)] == [(0,), (1,)]
    assert [str(one) for one in results] == ["half way"]
    assert [one.value for one in whole(asker)] == [b"a", b"b"]


def test_a_full_file_fails_the_append_that_did_not_fit(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    asker.append(b"a")

    def cap(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages + 2}")

    sqlite.log._database.at_start(cap)
    full = asker.append(b"x" * 200_000)
    assert isinstance(full, Failed | Unknown), "never Appended"
    assert asker.append(b"b").offsets == (1,)
    sqlite.reopen()
    assert [one.value for one in whole(asker)] == [b"a", b"b"]


def test_a_file_somebody_else_has_locked_is_surely_not_written(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    sqlite.log._database._connection.execute("PRAGMA busy_timeout=0")
    other = sqlite3.connect(sqlite.path)
    other.execute("BEGIN IMMEDIATE")
    op = asker.start_append(b"a")
    assert sqlite.answers(op) == [Failed(op=op, why=FailReason.OVERLOADED)]
    other.rollback()
    other.close()
    assert asker.append(b"b").offsets == (0,)


def test_a_connection_that_is_lost_writes_nothing_more(sqlite: SqliteAsked) -> None:
    """A commit that fails and can't even be rolled back: what rode in it is open, everything later surely is not."""
    asker = Asker(sqlite)
    with thread_held(sqlite):
        sqlite.log._database.submit(lambda connection: connection.close(), lambda _: None)
        riding = asker.start_append(b"a")
    assert sqlite.answers(riding) == [Unknown(op=riding)]
    later = asker.start_append(b"b")
    assert sqlite.answers(later) == [Failed(op=later, why=FailReason.OVERLOADED)]


def test_answers_for_a_loop_that_is_gone_are_nobodys(tmp_path: Path) -> None:
    gone = SqliteAsked(tmp_path / "gone.sqlite")
    with thread_held(gone):
        Asker(gone).start_append(b"a")
        gone.loop.close()
    thread = gone.log._database._thread
    gone.log._database._jobs.put(None)
    thread.join(60)
    assert not thread.is_alive()


# ------------------------------------------------------------ bounds and misuse


def test_more_jobs_than_may_wait_are_surely_not_applied(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    with thread_held(sqlite):
        taken = [asker.start_append(b"x") for _ in range(database_thread.JOBS_MAX - 1)]
        refused = asker.start_append(b"too many")
        unread = asker.start_fetch(0)
    assert sqlite.answers(refused) == [Failed(op=refused, why=FailReason.OVERLOADED)]
    assert isinstance(sqlite.answers(unread)[0], Fetched), "the end is known without the file"
    last = sqlite.answers(*taken)[-1]
    assert last.offsets == (len(taken) - 1,)
    assert asker.ends().end == len(taken)
    assert sqlite.log.waiting == 0


def test_an_unknown_partition_and_an_empty_append_are_invalid(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    for op in (
        asker.start_append(b"x", partition=2),
        asker.start_fetch(0, topic=Topic.DISPATCH, partition=3),
        asker.start_append(),
    ):
        assert sqlite.answers(op) == [Failed(op=op, why=FailReason.INVALID)]
    assert asker.ends().end == 0


def test_closing_answers_everything_and_refuses_what_comes_later(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    with thread_held(sqlite):
        appended = asker.start_append(b"a")
        waiting = asker.start_fetch(0, wait_ms=50_000)
    sqlite.loop.run_until_complete(sqlite.log.close())
    assert isinstance(sqlite.answers(appended)[0], Appended)
    assert isinstance(sqlite.answers(waiting)[0], Fetched)
    late = asker.start_append(b"late")
    assert sqlite.answers(late) == [Failed(op=late, why=FailReason.OVERLOADED)]
    too_late = asker.start_fetch(1, wait_ms=50_000)
    assert sqlite.answers(too_late)[0].records == ()
    sqlite.loop.run_until_complete(sqlite.log.close())
    sqlite.reopen()
    assert [one.value for one in whole(asker)] == [b"a"]


def test_an_answer_nobody_can_take_is_told_and_spoils_no_other(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    told: list[str] = []
    sqlite.loop.set_exception_handler(lambda _, context: told.append(context["message"]))

    def raises(_: object) -> None:
        raise ValueError("not taken")

    with thread_held(sqlite):
        sqlite.log._database.submit(lambda _: None, raises)
        op = asker.start_append(b"a")
    assert sqlite.answers(op)[0].offsets == (0,)
    assert told == ["qim-log: the taking of an answer broke"]


# ------------------------------------------------------------ memory and file


def test_fetches_beyond_the_memory_tail_come_from_the_file(
    sqlite: SqliteAsked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_tail, "TAIL_RECORDS_MAX", 5)
    monkeypatch.setattr(log_tail, "TAIL_BYTES_MAX", 3 * 17)
    asker = Asker(sqlite)
    for n in range(9):
        asker.append(b"%d" % n)
    for offset in range(9):
        reply = asker.fetch(offset)
        assert [one.offset for one in reply.records] == list(range(offset, 9))
        assert [one.value for one in reply.records] == [b"%d" % n for n in range(offset, 9)]
    asker.append(b"x" * 100)
    assert asker.fetch(9).records[0].value == b"x" * 100, "larger than the whole tail"


def test_a_reading_that_retention_overtook_is_out_of_range(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    asker.append(b"a", b"b", b"c")
    sqlite.reopen()  # one record in memory: the first fetch goes to the file
    with thread_held(sqlite):
        sqlite.log.trim(Topic.OUTBOX, 0, before=2, done=lambda _: None)
        overtaken = asker.start_fetch(1)
        whole_one = asker.start_fetch(2)
    replies = sqlite.answers(overtaken, whole_one)
    assert isinstance(replies[0], OutOfRange)
    assert (replies[0].start, replies[0].end) == (2, 3)
    assert [one.value for one in replies[1].records] == [b"c"]


# ------------------------------------------------------------ retention by age


def test_age_and_need_both_hold_records_back(sqlite: SqliteAsked) -> None:
    asker = Asker(sqlite)
    for n in range(6):
        asker.append(b"%d" % n, topic=Topic.DISPATCH)

    def trimmed(older_than: int, keep_from: int) -> object:
        return sqlite.trimmed(
            topic=Topic.DISPATCH, partition=0, older_than=older_than, keep_from=keep_from
        )

    assert trimmed(0, 6) == 0, "all are young"
    assert trimmed(FAR_FUTURE, 2) == 2, "somebody still needs the third"
    assert trimmed(FAR_FUTURE, 1) == 2, "the start never falls"
    assert trimmed(FAR_FUTURE, 99) == 6, "never beyond the end"
    assert asker.append(b"next", topic=Topic.DISPATCH).offsets == (6,)
    sqlite.reopen()
    ends = asker.ends(Topic.DISPATCH)
    assert (ends.start, ends.end) == (6, 7)


def test_a_retention_job_is_bounded(sqlite: SqliteAsked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "TRIM_RECORDS_MAX", 4)
    asker = Asker(sqlite)
    asker.append(*(b"%d" % n for n in range(10)))
    starts = [
        sqlite.trimmed(topic=Topic.OUTBOX, partition=0, older_than=FAR_FUTURE, keep_from=10)
        for _ in range(4)
    ]
    assert starts == [4, 8, 10, 10]


def test_the_first_young_record_stops_retention(sqlite: SqliteAsked) -> None:
    """A wall clock that stepped back left old times behind young ones."""
    asker = Asker(sqlite)
    other = sqlite3.connect(sqlite.path)
    with other:
        for place, time in enumerate((10, 20, 500, 30)):
            other.execute(
                "INSERT INTO record VALUES ('outbox',0,?,?,?,?)", (place, time, b"k", b"v")
            )
    other.close()
    sqlite.reopen()
    assert sqlite.trimmed(topic=Topic.OUTBOX, partition=0, older_than=100, keep_from=4) == 2
    assert [one.append_time for one in asker.fetch(2).records] == [500, 30]


def test_partition_counts(sqlite: SqliteAsked) -> None:
    log: SqliteLog = sqlite.log
    assert [log.partition_count(topic) for topic in Topic] == [2, 3, 2]
