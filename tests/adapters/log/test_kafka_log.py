"""What only the Kafka log can be asked: its broker compacts, makes a topic anew; appends larger than a batch."""

import asyncio
import time
from contextlib import closing

import pytest

from qim.adapters.kafka import fetch_wire, wire
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import (
    Appended,
    AppendRefused,
    Fetched,
    OutOfRange,
    Topic,
)
from tests.adapters.log.kafka_asked import PATIENCE_SECONDS, KafkaAsked, settings_for
from tests.adapters.log.logs import Asker

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka")]

WAIT_MS = 60_000
"""Of fetches that are answered as soon as the broker is."""


# ------------------------------------------------------------ batches and limits


def test_an_append_larger_than_a_batch_keeps_its_order(kafka_brokers: str) -> None:
    kafka = KafkaAsked(kafka_brokers, batch_bytes_max=300 * 1024)
    try:
        asker = Asker(kafka)
        values = [b"%d" % n * 100_000 for n in range(8)]
        answer = asker.append(*values)
        assert isinstance(answer, Appended)
        assert answer.offsets == tuple(range(8))
        assert [one.value for one in asker.whole()] == values
        refused = asker.append(b"fits", b"x" * (300 * 1024))
        assert isinstance(refused, AppendRefused)
        assert refused.index == 1
    finally:
        kafka.close()


def test_a_limit_lowered_behind_our_back_is_met_with_smaller_batches(kafka: KafkaAsked) -> None:
    asker = Asker(kafka)
    kafka.run(
        kafka.admin.configure(
            Topic.OUTBOX, max__message__bytes="150000", message__timestamp__type="LogAppendTime"
        )
    )
    while isinstance(refused := asker.append(b"x" * 160_000), Appended):
        pass  # the broker tells of the limit before it goes by it
    assert isinstance(refused, AppendRefused)
    assert refused.index == 0
    before = asker.ends().end
    values = [b"%d" % n * 50_000 for n in range(5)]
    answer = asker.append(*values)
    assert isinstance(answer, Appended)
    assert [one.value for one in asker.whole()][before:] == values
    assert asker.append(b"after").offsets == (before + 5,)


def test_more_than_may_wait_is_refused_at_once(kafka_brokers: str) -> None:
    kafka = KafkaAsked(kafka_brokers, appends_waiting_max=3, fetches_waiting_max=2)
    try:
        asker = Asker(kafka)
        replies = kafka.answers(*(asker.start_append(b"%d" % n) for n in range(5)))
        assert [type(one) for one in replies] == [Appended] * 3 + [Failed] * 2
        assert replies[4].why is FailReason.OVERLOADED
        waits = [asker.start_fetch(3, wait_ms=50) for _ in range(3)]
        replies = kafka.answers(*waits)
        assert [type(one) for one in replies] == [Fetched, Fetched, Failed]
        assert kafka.gauge("kafka_appends_waiting") == 0
        assert kafka.gauge("kafka_fetches_waiting") == 0
    finally:
        kafka.close()


def test_partitions_that_are_not_there_are_refused(kafka: KafkaAsked) -> None:
    asker = Asker(kafka)
    assert asker.append(b"a", partition=9) == Failed(op=1, why=FailReason.INVALID)
    assert asker.fetch(0, partition=-1) == Failed(op=2, why=FailReason.INVALID)
    assert asker.append() == Failed(op=3, why=FailReason.INVALID)


# ------------------------------------------------------------ reading


def test_a_reader_far_behind_gets_everything_in_order(kafka: KafkaAsked) -> None:
    asker = Asker(kafka)
    values = [b"%06d" % n + b"." * 500 for n in range(4_000)]
    for first in range(0, len(values), 500):
        asker.append(*values[first : first + 500])
    found: list[bytes] = []
    while len(found) < len(values):
        fetched = asker.fetch(len(found), limit=300, wait_ms=WAIT_MS)
        assert fetched.records, "everything is there"
        found += [one.value for one in fetched.records]
    assert found == values


def test_two_readers_at_two_places_disturb_each_other_not(kafka: KafkaAsked) -> None:
    asker = Asker(kafka)
    asker.append(*(b"%d" % n for n in range(30)))
    first, second = 0, 10
    for _ in range(10):
        one = asker.fetch(first, limit=2, wait_ms=WAIT_MS)
        two = asker.fetch(second, limit=2, wait_ms=WAIT_MS)
        assert [record.offset for record in one.records] == [first, first + 1]
        assert [record.offset for record in two.records] == [second, second + 1]
        first, second = first + 2, second + 2


def test_many_partitions_wait_in_one_poll(kafka_brokers: str) -> None:
    # Polls that end by time would be counted as well, however few bring anything.
    with closing(KafkaAsked(kafka_brokers, poll_wait_ms=WAIT_MS)) as kafka:
        asker = Asker(kafka)
        places = [(topic, number) for topic in Topic for number in (0, 1)]
        waits = [
            asker.start_fetch(0, topic=topic, partition=number, wait_ms=60_000)
            for topic, number in places
        ]
        asker.append(b"wakes the loop", partition=0)
        before = kafka.gauge("kafka_polls")
        for topic, number in places[1:]:
            asker.append(b"x", topic=topic, partition=number)
        replies = kafka.answers(*waits)
        assert all(len(one.records) == 1 for one in replies)
        assert kafka.gauge("kafka_polls") - before < 60


def test_holes_that_compaction_left_are_passed(kafka: KafkaAsked) -> None:
    asker, topic = Asker(kafka), Topic.USER_STATE
    kafka.run(
        kafka.admin.configure(
            topic,
            cleanup__policy="compact",
            min__cleanable__dirty__ratio="0.001",
            segment__ms="100",
            message__timestamp__type="LogAppendTime",
        )
    )
    for number, key in enumerate("abacbaab"):
        asker.append(b"%d" % number, topic=topic, key=key.encode())

    def offsets() -> list[int]:
        return [one.offset for one in asker.whole(topic)]

    def from_each(stays: list[int]) -> list[tuple[list[int], list[int]]]:
        asked = [(begin, wait_ms) for begin in range(stays[-1] + 1) for wait_ms in (0, WAIT_MS)]
        return [
            (
                [offset for offset in stays if offset >= begin],
                [
                    one.offset
                    for one in asker.fetch(begin, topic=topic, wait_ms=wait_ms, limit=2).records
                ],
            )
            for begin, wait_ms in asked
        ]

    deadline = time.monotonic() + PATIENCE_SECONDS
    while [offset for offset in offsets() if offset < 8] != [3, 6, 7]:
        assert time.monotonic() < deadline, "the broker never compacted"
        kafka.run(asyncio.sleep(0.15))
        asker.append(b"roll", topic=topic, key=b"roll")
    stays: list[int] = []
    while (now := offsets()) != stays:  # it may be compacted on meanwhile
        stays, pages = now, from_each(now)
    assert stays[:3] == [3, 6, 7]
    for wanted, found in pages:
        # A broker answers from one segment of its file: maybe less than asked, never nothing.
        assert found and found == wanted[: len(found)]
    ends = asker.ends(topic)
    assert ends.start == 0
    assert asker.fetch(ends.end, topic=topic).records == ()


def test_retention_that_overtakes_a_waiting_reader_is_told(kafka: KafkaAsked) -> None:
    asker = Asker(kafka)
    asker.append(*(b"%d" % n for n in range(6)))
    assert len(asker.fetch(0, limit=2, wait_ms=WAIT_MS).records) == 2
    kafka.reopen()
    kafka.retain(Topic.OUTBOX, 0, 5)
    outside = asker.fetch(2, wait_ms=WAIT_MS)
    assert isinstance(outside, OutOfRange)
    assert (outside.start, outside.end) == (5, 6)


def test_an_older_broker_is_asked_by_topic_name(
    kafka: KafkaAsked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_wire.AskFetch, "_CLASSES", (fetch_wire._Fetch11,))
    monkeypatch.setattr(wire.AskAppend, "_CLASSES", (wire.ProduceRequest_v8,))
    asker = Asker(kafka)
    asker.append(b"a", b"b")
    assert [one.value for one in asker.fetch(0).records] == [b"a", b"b"]
    waiting = [asker.start_fetch(n, wait_ms=60_000) for n in (2, 2)]
    other = asker.start_fetch(0, partition=1, wait_ms=60_000)
    asker.append(b"c")
    asker.append(b"d", partition=1)
    assert all(one.records[0].value == b"c" for one in kafka.answers(*waiting))
    assert kafka.answers(other)[0].records[0].value == b"d"
    assert isinstance(asker.fetch(9), OutOfRange)


# ------------------------------------------------------------ the topic's identity


def test_a_topic_made_anew_is_noticed_and_nothing_goes_into_it(kafka_brokers: str) -> None:
    kafka = KafkaAsked(kafka_brokers, identity_ms=600_000)
    try:
        asker = Asker(kafka)
        asker.append(b"old", b"older")
        before = asker.ends().topic_id
        waiting = asker.start_fetch(2, wait_ms=60_000)
        kafka.run(kafka.admin.delete(Topic.OUTBOX))
        kafka.run(kafka.admin.create())
        assert asker.append(b"new") == Failed(op=4, why=FailReason.UNREACHABLE)
        told = kafka.answers(waiting)[0]
        assert isinstance(told, Fetched | OutOfRange)
        assert told.topic_id != before
        assert asker.fetch(0).topic_id != before
        assert (asker.ends().start, asker.ends().end) == (0, 0)
        assert asker.ends().topic_id != before
        assert kafka.gauge("kafka_topics_recreated") == 1
    finally:
        kafka.close()


def test_positions_are_verified_against_what_was_asked(kafka: KafkaAsked) -> None:
    asker = Asker(kafka)
    asker.append(*(b"%d" % n for n in range(4)))
    assert isinstance(asker.fetch(5, wait_ms=50), OutOfRange)
    assert isinstance(asker.fetch(-1), OutOfRange)
    assert [one.offset for one in asker.fetch(3, wait_ms=50).records] == [3]


def test_closing_answers_everything(kafka: KafkaAsked) -> None:
    asker = Asker(kafka)
    waits = [asker.start_fetch(0, wait_ms=60_000), asker.start_fetch(0)]
    appends = [asker.start_append(b"%d" % n) for n in range(3)]
    kafka.run(kafka.log.close())
    late = asker.start_append(b"late")
    replies = kafka.answers(*waits, *appends, late)
    assert [type(one) for one in replies[2:5]] == [Appended] * 3
    assert replies[5] == Failed(op=late, why=FailReason.CANCELLED)
    kafka._open()


def test_settings_name_their_topics() -> None:
    settings = settings_for("127.0.0.1:1, [::1]:2")
    assert settings.bootstrap() == [("127.0.0.1", 1), ("::1", 2)]
    with pytest.raises(ValueError, match="'nobody' is not host:port"):
        settings_for("nobody").bootstrap()
