"""The user-state log keeps the last record of a key: holes for a reader, never another order, start or end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qim.adapters.embedded import log_file, sqlite_log
from qim.core.ports.log import Topic
from tests.adapters.log.conftest import OpenLog
from tests.adapters.log.logs import FAR_MS, AskedLog, Asker, SqliteAsked

TOPIC = Topic.USER_STATE


@pytest.fixture(params=["simulator", "sqlite"])
def log(request: pytest.FixtureRequest, tmp_path: Path, open_log: OpenLog) -> Iterator[AskedLog]:
    """Those that compact when told to; a broker does it when it likes (test_kafka_log.py)."""
    chosen = open_log(request.param, tmp_path)
    yield chosen
    chosen.close()


def filled(log: AskedLog, keys: str = "abacbaab") -> Asker:
    asker = Asker(log)
    for number, key in enumerate(keys):
        asker.append(b"%d" % number, topic=TOPIC, key=key.encode())
    return asker


def offsets(asker: Asker, begin: int = 0, **more: int) -> list[int]:
    return [one.offset for one in asker.fetch(begin, topic=TOPIC, **more).records]


def test_the_last_record_of_each_key_stays(log: AskedLog) -> None:
    asker = filled(log)
    assert offsets(asker) == list(range(8))
    log.reopen()
    log.compact(0, 6)
    assert offsets(asker) == [3, 4, 5, 6, 7], "0 1 2 were superseded below 6; 5 only by 6"
    log.compact(0, 8)
    assert offsets(asker) == [3, 6, 7]
    ends = asker.ends(topic=TOPIC)
    assert (ends.start, ends.end) == (0, 8)


def test_a_fetch_that_asks_inside_a_hole_gets_what_stands_behind_it(log: AskedLog) -> None:
    asker = filled(log)
    log.reopen()
    log.compact(0, 8)
    for begin in range(8):
        wanted = [offset for offset in (3, 6, 7) if offset >= begin]
        assert offsets(asker, begin) == wanted
        assert offsets(asker, begin, limit=1) == wanted[:1]
        assert offsets(asker, begin, bytes_max=1) == wanted[:1]
    assert offsets(asker, 8) == []
    assert asker.append(b"8", topic=TOPIC, key=b"d").offsets == (8,)
    assert offsets(asker) == [3, 6, 7, 8]


def test_partitions_and_other_topics_are_left_alone(log: AskedLog) -> None:
    asker = filled(log)
    for number in range(3):
        asker.append(b"%d" % number, topic=TOPIC, partition=1, key=b"a")
        asker.append(b"%d" % number, topic=Topic.OUTBOX, key=b"a")
    log.reopen()
    log.compact(0, 8)
    assert len(asker.fetch(0, topic=TOPIC, partition=1).records) == 3
    assert len(asker.fetch(0).records) == 3


def test_young_records_supersede_nothing_yet(sqlite: SqliteAsked) -> None:
    asker = filled(sqlite)
    assert sqlite.compacted(0, older_than=0) == 0
    sqlite.reopen()
    assert offsets(asker) == list(range(8))


def test_a_job_goes_on_where_the_last_one_stopped(
    sqlite: SqliteAsked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "COMPACT_RECORDS_MAX", 3)
    asker = filled(sqlite, "ab")
    sqlite.reopen()
    asker.append(b"2", topic=TOPIC, key=b"a")
    asker.append(b"3", topic=TOPIC, key=b"a")
    assert sqlite.compacted(0, older_than=FAR_MS) == 3
    assert sqlite.compacted(0, older_than=FAR_MS) == 4
    sqlite.reopen()
    assert offsets(asker) == [1, 3]


def test_appends_begin_a_job_that_leaves_the_last_hour(
    sqlite: SqliteAsked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "COMPACT_RECORDS_MAX", 4)
    asker = filled(sqlite, "aaaa")
    monkeypatch.setattr(sqlite_log, "COMPACT_LAG_MS", -FAR_MS)
    for _ in range(4):
        asker.append(b"x", topic=TOPIC, key=b"a")
    sqlite.reopen()
    assert offsets(asker)[0] > 0, "a job ran"
    assert offsets(asker)[-1] == 7
