"""Log conformance: every rule of core/ports/log.py, on each log."""

from typing import Any

import pytest

from qim.core.ports.log import Appended, AppendRefused, Fetched, OutOfRange, Topic
from qim.core.position import NO_DIGEST, record_digest
from tests.adapters.log.logs import WALL_MS, AskedLog, Asker

EVERY_BYTE = bytes(range(256))
TOO_LARGE = b"x" * (1024 * 1024 + 1)


def values(fetched: Any) -> list[bytes]:
    assert isinstance(fetched, Fetched), fetched
    return [record.value for record in fetched.records]


def offsets(fetched: Any) -> list[int]:
    assert isinstance(fetched, Fetched), fetched
    return [record.offset for record in fetched.records]


# ------------------------------------------------------------ appending


def test_an_empty_partition_starts_and_ends_at_zero(asker: Asker) -> None:
    ends = asker.ends()
    assert (ends.start, ends.end) == (0, 0)
    assert values(asker.fetch(0)) == []


def test_offsets_are_dense_and_in_the_order_of_the_records(asker: Asker) -> None:
    first = asker.append(b"a", b"b", b"c")
    second = asker.append(b"d")
    assert isinstance(first, Appended)
    assert isinstance(second, Appended)
    assert first.offsets == (0, 1, 2)
    assert second.offsets == (3,)
    assert values(asker.fetch(0)) == [b"a", b"b", b"c", b"d"]
    assert asker.ends().end == 4


def test_appends_in_flight_together_keep_their_order(asker: Asker) -> None:
    ops = [asker.start_append(b"%d" % n, b"%d+" % n) for n in range(20)]
    answers = asker.log.answers(*ops)
    assert [one for answer in answers for one in answer.offsets] == list(range(40))
    assert values(asker.fetch(0)) == [value for n in range(20) for value in (b"%d" % n, b"%d+" % n)]


def test_partitions_and_topics_do_not_touch_each_other(asker: Asker) -> None:
    places = [(topic, number) for topic in Topic for number in (0, 1)]
    for topic, number in places:
        name = f"{topic.value}/{number}".encode()
        assert asker.append(name, topic=topic, partition=number).offsets == (0,)
    for topic, number in places:
        name = f"{topic.value}/{number}".encode()
        assert values(asker.fetch(0, topic=topic, partition=number)) == [name]


def test_keys_and_values_are_bytes(asker: Asker) -> None:
    asker.append(EVERY_BYTE, b"", key=EVERY_BYTE[:16])
    asker.append(b"barrier", key=b"")
    records = asker.fetch(0).records
    assert [(one.key, one.value) for one in records] == [
        (EVERY_BYTE[:16], EVERY_BYTE),
        (EVERY_BYTE[:16], b""),
        (b"", b"barrier"),
    ]


def test_append_times_are_the_logs_wall_clock(asker: Asker) -> None:
    answer = asker.append(b"a", b"b")
    assert answer.append_time >= WALL_MS
    assert [one.append_time for one in asker.fetch(0).records] == [answer.append_time] * 2


def test_a_refusal_names_the_record_and_appends_nothing(asker: Asker) -> None:
    asker.append(b"before")
    refused = asker.append(b"fits", TOO_LARGE, b"fits too")
    assert isinstance(refused, AppendRefused)
    assert refused.index == 1
    assert refused.why
    assert asker.ends().end == 1
    assert asker.append(TOO_LARGE[1:]).offsets == (1,), "exactly as large as allowed"
    assert values(asker.fetch(0, limit=1)) == [b"before"]
    assert values(asker.fetch(1)) == [TOO_LARGE[1:]]


# ------------------------------------------------------------ fetching


def test_a_fetch_begins_where_it_was_asked_and_keeps_its_limit(asker: Asker) -> None:
    asker.append(*(b"%d" % n for n in range(10)))
    assert offsets(asker.fetch(4, limit=3)) == [4, 5, 6]
    assert offsets(asker.fetch(8, limit=3)) == [8, 9]
    assert offsets(asker.fetch(0, limit=1)) == [0]


@pytest.mark.parametrize("reopened", [False, True])
def test_bytes_max_counts_keys_and_values_and_gives_at_least_one(
    asker: Asker, reopened: bool
) -> None:
    asker.append(b"a" * 84, b"b" * 84, b"c" * 84)
    if reopened:
        asker.log.reopen()
    assert offsets(asker.fetch(0, bytes_max=1)) == [0]
    assert offsets(asker.fetch(1, bytes_max=1)) == [1]
    assert offsets(asker.fetch(0, bytes_max=199)) == [0]
    assert offsets(asker.fetch(0, bytes_max=200)) == [0, 1]
    assert offsets(asker.fetch(0, bytes_max=300)) == [0, 1, 2]


def test_every_answer_says_where_the_log_begins_and_ends(asker: Asker) -> None:
    asker.append(b"a", b"b", b"c")
    asker.log.retain(Topic.OUTBOX, 0, 1)
    fetched = asker.fetch(1, limit=1)
    assert (fetched.start, fetched.end) == (1, 3)
    outside = asker.fetch(0)
    assert isinstance(outside, OutOfRange)
    assert (outside.start, outside.end) == (1, 3)


def test_an_offset_outside_is_told_on_both_sides_and_nothing_is_reset(asker: Asker) -> None:
    asker.append(b"a", b"b", b"c")
    asker.log.retain(Topic.OUTBOX, 0, 2)
    for _ in range(2):
        assert isinstance(asker.fetch(1), OutOfRange)
        assert isinstance(asker.fetch(4), OutOfRange)
        assert isinstance(asker.fetch(4, wait_ms=5), OutOfRange), "waiting mends no offset"
    assert values(asker.fetch(2)) == [b"c"]
    assert values(asker.fetch(3)) == []


# ------------------------------------------------------------ waiting


def test_a_waiting_fetch_is_answered_by_the_next_append(asker: Asker) -> None:
    asker.append(b"old")
    waiting = asker.start_fetch(1, wait_ms=50_000)
    other_partition = asker.append(b"elsewhere", partition=1)
    assert other_partition.offsets == (0,)
    assert asker.log.pending(waiting), "an append elsewhere concerns nobody here"
    asker.append(b"new", b"newer")
    assert values(asker.log.answers(waiting)[0]) == [b"new", b"newer"]


def test_a_wait_ends_with_nothing(asker: Asker) -> None:
    asker.append(b"old")
    fetched = asker.fetch(1, wait_ms=20)
    assert values(fetched) == []
    assert (fetched.start, fetched.end) == (0, 1)


def test_many_may_wait_for_the_same_record(asker: Asker) -> None:
    waiting = [asker.start_fetch(0, wait_ms=50_000, limit=n) for n in (1, 2, 3)]
    asker.append(b"a", b"b")
    answers = asker.log.answers(*waiting)
    assert [values(one) for one in answers] == [[b"a"], [b"a", b"b"], [b"a", b"b"]]


def test_a_wait_that_ended_is_not_answered_again(asker: Asker) -> None:
    ended = asker.start_fetch(0, wait_ms=5)
    assert values(asker.log.answers(ended)[0]) == []
    asker.append(b"late")  # Replies asserts that nothing is answered twice
    assert values(asker.fetch(0)) == [b"late"]


# ------------------------------------------------------------ retention


def test_retention_moves_the_start_and_never_the_end(asker: Asker) -> None:
    asker.append(*(b"%d" % n for n in range(5)))
    asker.log.retain(Topic.OUTBOX, 0, 3)
    ends = asker.ends()
    assert (ends.start, ends.end) == (3, 5)
    asker.log.retain(Topic.OUTBOX, 0, 1)
    assert asker.ends().start == 3, "what is gone doesn't come back"
    assert offsets(asker.fetch(3)) == [3, 4]
    assert asker.ends(partition=1).start == 0


@pytest.mark.parametrize("reopened", [False, True])
def test_a_partition_that_retention_emptied_goes_on_counting(asker: Asker, reopened: bool) -> None:
    asker.append(b"a", b"b", b"c")
    asker.log.retain(Topic.OUTBOX, 0, 99)
    if reopened:
        asker.log.reopen()
    ends = asker.ends()
    assert (ends.start, ends.end) == (3, 3), "never beyond the end"
    assert values(asker.fetch(3)) == []
    assert isinstance(asker.fetch(2), OutOfRange)
    assert asker.append(b"d").offsets == (3,)
    assert values(asker.fetch(3)) == [b"d"]


# ------------------------------------------------------------ what stands before an offset


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("wait_ms", [0, 5])
def test_a_record_named_as_the_one_before_is_compared(
    asker: Asker, reopened: bool, wait_ms: int
) -> None:
    asker.append(b"a", b"b", b"c")
    first, second, _ = asker.fetch(0).records
    if reopened:
        asker.log.reopen()
    assert values(asker.fetch(1, before=record_digest(first), wait_ms=wait_ms)) == [b"b", b"c"]
    assert values(asker.fetch(2, before=NO_DIGEST, wait_ms=wait_ms)) == [b"c"]
    told = asker.fetch(2, before=record_digest(first), wait_ms=wait_ms)
    assert isinstance(told, OutOfRange)
    assert told.other_record
    assert (told.topic_id, told.start, told.end) == (asker.ends().topic_id, 0, 3)
    assert values(asker.fetch(2, before=record_digest(second), limit=1)) == [b"c"]


@pytest.mark.parametrize("reopened", [False, True])
def test_at_the_end_too(asker: Asker, reopened: bool) -> None:
    """Also for who waits there, and whose log was opened anew meanwhile."""
    asker.append(b"a", b"b")
    first, second = asker.fetch(0).records
    if reopened:
        asker.log.reopen()
    assert asker.fetch(2, before=record_digest(first), wait_ms=5).other_record
    assert values(asker.fetch(2, before=record_digest(second), wait_ms=5)) == []
    waiting = asker.start_fetch(2, before=record_digest(second), wait_ms=60_000)
    asker.append(b"c")
    assert values(asker.log.answers(waiting)[0]) == [b"c"]


def test_what_retention_took_can_t_be_compared(asker: Asker) -> None:
    asker.append(b"a", b"b", b"c")
    first, second, _ = asker.fetch(0).records
    asker.log.retain(Topic.OUTBOX, 0, 2)
    assert values(asker.fetch(2, before=record_digest(second))) == [b"c"]
    assert values(asker.fetch(2, before=record_digest(first), wait_ms=5)) == [b"c"]
    assert isinstance(asker.fetch(1, before=record_digest(first)), OutOfRange)


# ------------------------------------------------------------ identity and reopening


def test_topic_ids_name_the_topic_and_survive_a_reopen(asker: Asker) -> None:
    ids = {topic: asker.ends(topic).topic_id for topic in Topic}
    assert all(len(one) == 16 for one in ids.values())
    assert ids[Topic.OUTBOX] != ids[Topic.DISPATCH]
    assert asker.ends(Topic.OUTBOX, 1).topic_id == ids[Topic.OUTBOX]
    assert asker.fetch(0).topic_id == ids[Topic.OUTBOX]
    assert asker.fetch(7).topic_id == ids[Topic.OUTBOX]
    asker.log.reopen()
    assert {topic: asker.ends(topic).topic_id for topic in Topic} == ids


def test_a_reopened_log_holds_what_it_held(asker: Asker) -> None:
    first = asker.append(EVERY_BYTE, b"b", key=EVERY_BYTE[240:])
    asker.append(b"c", topic=Topic.DISPATCH, partition=2)
    asker.append(b"d", b"e")
    asker.log.retain(Topic.OUTBOX, 0, 1)
    before = asker.fetch(1).records
    asker.log.reopen()
    assert asker.fetch(1).records == before
    assert before[0].append_time == first.append_time
    assert values(asker.fetch(0, topic=Topic.DISPATCH, partition=2)) == [b"c"]
    ends = asker.ends()
    assert (ends.start, ends.end) == (1, 4)
    assert asker.append(b"f").offsets == (4,)
    assert values(asker.fetch(3, limit=5)) == [b"e", b"f"], "from file and memory alike"


def test_a_fetch_in_flight_when_the_process_ends_harms_nobody(log: AskedLog, asker: Asker) -> None:
    asker.start_fetch(0, wait_ms=50_000)
    log.reopen()
    asker.append(b"a")
    assert values(asker.fetch(0)) == [b"a"]
