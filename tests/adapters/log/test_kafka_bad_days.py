"""The Kafka log on its broker's bad days: it dies, sleeps, stands still; what was acked stands, and nothing is called what it isn't."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.log import Appended, EndsRead, Fetched
from tests.adapters.log.append_load import Load
from tests.adapters.log.kafka_asked import PATIENCE_SECONDS, KafkaAsked
from tests.adapters.log.logs import Asker
from tests.integration.testbed.kafka import KafkaBroker

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka")]

WAIT_MS = 60_000
"""Of fetches that are answered as soon as the broker is."""
QUICK = {
    "ask_ms": 1_000,
    "acks_ms": 1_000,
    "delivery_ms": 2_500,
    "fetch_patience_ms": 2_500,
    "stall_ms": 1_200,
    "identity_ms": 1_000,
}
"""Limits that a test can wait for."""


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One that may be killed."""
    broker = KafkaBroker(tmp_path_factory.mktemp("own"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def quick(own_broker: KafkaBroker) -> Iterator[KafkaAsked]:
    """Short limits, on the broker that may be killed."""
    chosen = KafkaAsked(own_broker.address, **QUICK)
    yield chosen
    if not own_broker.process.alive:
        own_broker.start()
    chosen.close()


def test_what_was_acked_stands_after_kill_nine_of_the_broker(
    own_broker: KafkaBroker, quick: KafkaAsked
) -> None:
    load = Load(quick)
    quick.run(load.until(120))
    own_broker.kill()
    own_broker.process.launch()
    quick.run(load.until(240))
    quick.run(load.stop())
    load.judge(Asker(quick).whole())


def test_a_sleeping_broker_is_unknown_never_failed_and_nothing_comes_twice(
    own_broker: KafkaBroker, quick: KafkaAsked
) -> None:
    asker = Asker(quick)
    asker.until(Appended, asker.append, b"before")
    own_broker.pause()
    try:
        reply = asker.append(b"asleep")
        behind = asker.start_append(b"never sent", partition=1)
        failed = quick.answers(behind)[0]
    finally:
        own_broker.resume()
    assert isinstance(reply, Unknown)
    assert isinstance(failed, Failed | Unknown)
    asker.until(Appended, asker.append, b"after")
    values = [one.value for one in asker.whole()]
    assert values[0] == b"before"
    assert values.count(b"asleep") <= 1
    assert quick.gauge("kafka_append_unknowns") >= 1


def test_fetches_of_a_dead_broker_fail_and_go_on_when_it_is_back(
    own_broker: KafkaBroker, quick: KafkaAsked
) -> None:
    asker = Asker(quick)
    asker.until(Appended, asker.append, b"a")
    first = asker.until(EndsRead, asker.read_ends).end
    own_broker.kill()
    assert isinstance(asker.fetch(0), Failed)
    ends = quick.answers(asker.start_fetch(1, wait_ms=10))[0]
    assert isinstance(ends, Failed)
    own_broker.start()
    reply = asker.until(Fetched, asker.fetch, 0, wait_ms=100)
    assert {one.value for one in reply.records} == {b"a"}
    waiting = asker.start_fetch(first, wait_ms=WAIT_MS)
    asker.until(Appended, asker.append, b"b")
    (told,) = quick.answers(waiting)
    if isinstance(told, Failed):  # a broker that was slow as well, and later than QUICK has it
        told = asker.until(Fetched, asker.fetch, first, wait_ms=WAIT_MS)
    assert told.records[0].value == b"b"


def test_a_consumer_that_stands_still_is_made_anew(
    kafka_brokers: str,
) -> None:
    """The broker believes that the partition left the session; we believe that it is polled. So it stays silent."""
    with closing(KafkaAsked(kafka_brokers, stall_ms=QUICK["stall_ms"])) as kafka:
        asker = Asker(kafka)
        asker.append(b"a")
        assert len(asker.fetch(0, wait_ms=WAIT_MS).records) == 1
        # a session without partitions would be closed
        asker.start_fetch(0, partition=1, wait_ms=2 * WAIT_MS)
        waiting = asker.start_fetch(1, wait_ms=2 * WAIT_MS)
        polled(kafka, 2)
        session_without(kafka, (kafka.settings.outbox_topic, 0))
        before = kafka.gauge("kafka_consumer_recreated")
        asker.append(b"b")
        assert kafka.answers(waiting)[0].records[0].value == b"b"
        recreated = kafka.gauge("kafka_consumer_recreated")
        assert recreated > before, "nothing else would have brought it"


def polled(kafka: KafkaAsked, partitions: int) -> None:
    """Until so many are in a session with the broker."""
    consumer = kafka.log._consumer
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(one.id and len(one.sent) == partitions for one in consumer._sessions.values()):
        assert time.monotonic() < deadline, "never polled"
        kafka.run(asyncio.sleep(0.01))


def session_without(kafka: KafkaAsked, key: tuple[str, int]) -> None:
    """The next poll tells the broker to forget ``key``, and we go on as if it hadn't."""
    consumer = kafka.log._consumer
    (node,) = consumer._sessions
    session = consumer._sessions[node]
    part = session.sent[key]
    honest = session.forgotten
    told = asyncio.Event()

    def lying(wanted: Any) -> Any:
        told.set()
        session.forgotten = honest  # type: ignore[method-assign]
        return [*honest(wanted), part]

    session.forgotten = lying  # type: ignore[method-assign]
    kafka.run(asyncio.wait_for(told.wait(), PATIENCE_SECONDS))
