"""Retention of an embedded topic: old and needed by nobody, a bounded piece at a time, told in the metrics."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from qim.adapters.embedded import log_file, log_retention
from qim.adapters.embedded.log_retention import LogRetention
from qim.core.ports.log import Topic
from tests.adapters.log.logs import PARTITIONS, Asker, SqliteAsked

DAY_MS = 24 * 3_600_000
SHARDS = PARTITIONS[Topic.DISPATCH]


class Retained:
    """A retention over the dispatch topic; ``needed`` by partition, the wall clock the test's own."""

    def __init__(self, sqlite: SqliteAsked) -> None:
        self.sqlite = sqlite
        self.asker = Asker(sqlite)
        self.needed: dict[int, int | None] = dict.fromkeys(range(SHARDS), 0)
        self.counted: list[tuple[str, int]] = []
        self.wall_ms = 0
        self.asked: list[int] = []
        self.rounds = 0
        self.ended: asyncio.Future[None] = sqlite.loop.create_future()
        self.retention = LogRetention(
            sqlite.log,
            sqlite.loop,
            topic=Topic.DISPATCH,
            retention_ms=DAY_MS,
            wall_ms=lambda: self.wall_ms,
            needed_from=self._needed_from,
            count=lambda name, value: self.counted.append((name, value)),
            look_seconds=0.0,
        )

    def _needed_from(self, number: int, answer: Callable[[int | None], None]) -> None:
        self.asked.append(number)
        if number == 0:
            self.rounds += 1
            if self.rounds > 1:
                self.retention.stop()
                self.ended.set_result(None)
        answer(self.needed[number])

    def one_round(self) -> None:
        """Everything a round does, up to the question that begins the next."""
        self.rounds = 0
        self.ended = self.sqlite.loop.create_future()
        self.sqlite.loop.call_soon(self.retention.start)
        self.sqlite.loop.run_until_complete(self.ended)

    def append(self, partition: int, count: int) -> None:
        for _ in range(count):
            reply = self.asker.append(b"v", topic=Topic.DISPATCH, partition=partition)
            self.wall_ms = max(self.wall_ms, reply.append_time)

    def starts(self) -> list[int]:
        return [self.asker.ends(Topic.DISPATCH, number).start for number in range(SHARDS)]


@pytest.fixture
def retained(sqlite: SqliteAsked) -> Retained:
    return Retained(sqlite)


def test_what_is_old_and_needed_by_nobody_goes(retained: Retained) -> None:
    for number in range(SHARDS):
        retained.append(number, 5)
    retained.needed = {0: 3, 1: 99, 2: None}
    retained.wall_ms += DAY_MS + 1
    retained.one_round()
    assert retained.starts() == [3, 5, 0], "of the last nothing is known: it keeps everything"
    assert retained.counted == [("log_records_expired", 3), ("log_records_expired", 5)]
    assert retained.asked == [0, 1, 2, 0]


def test_what_is_young_stays(retained: Retained) -> None:
    retained.append(0, 5)
    retained.needed = dict.fromkeys(range(SHARDS), 99)
    retained.wall_ms += DAY_MS - 60_000
    retained.one_round()
    assert retained.starts() == [0, 0, 0]
    assert retained.counted == []


def test_a_partition_with_more_to_forget_is_asked_again_at_once(
    retained: Retained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "TRIM_RECORDS_MAX", 2)
    monkeypatch.setattr(log_retention, "TRIM_RECORDS_MAX", 2)
    retained.append(1, 5)
    retained.needed = dict.fromkeys(range(SHARDS), 99)
    retained.wall_ms += 2 * DAY_MS
    retained.one_round()
    assert retained.starts() == [0, 5, 0]
    assert retained.asked == [0, 1, 1, 1, 2, 0]
    assert [value for _, value in retained.counted] == [2, 2, 1]


def test_a_job_that_fails_is_counted_and_the_round_goes_on(
    retained: Retained, monkeypatch: pytest.MonkeyPatch
) -> None:
    retained.append(0, 2)
    retained.append(1, 2)
    retained.needed = dict.fromkeys(range(SHARDS), 99)
    retained.wall_ms += 2 * DAY_MS
    trim = log_file.trim

    def failing(connection: sqlite3.Connection, topic: Topic, number: int, before: int) -> int:
        if number == 0:
            raise sqlite3.OperationalError("disk I/O error")
        return trim(connection, topic, number, before)

    monkeypatch.setattr(log_file, "trim", failing)
    retained.one_round()
    assert retained.starts() == [0, 2, 0]
    assert retained.counted == [("log_retention_failed", 1), ("log_records_expired", 2)]


def test_a_stopped_retention_asks_nothing_and_trims_nothing(retained: Retained) -> None:
    retained.append(0, 3)
    retained.wall_ms += 2 * DAY_MS
    answers: list[Any] = []
    retained.retention._needed_from = lambda number, answer: answers.append(answer)
    retained.retention.start()
    retained.retention.stop()
    answers[0](3)
    retained.retention.start()
    retained.asker.append(b"after", topic=Topic.DISPATCH, partition=0)
    assert len(answers) == 1
    assert retained.starts() == [0, 0, 0]
