"""What other producers write to a real broker as their libraries do it: in transactions, and compressed."""

import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from qim.adapters.kafka.cluster import Lane
from qim.adapters.kafka.wire import AskAppend
from qim.core.contract.logvalue import Undecodable, read_outbox
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import Fetched
from qim.core.position import record_digest
from tests.adapters.log.batches import snappy
from tests.adapters.log.kafka_asked import PATIENCE_SECONDS, KafkaAsked
from tests.adapters.log.logs import Asker

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka")]
WAITS = (0, 5_000)


async def in_a_transaction(kafka: KafkaAsked, *values: bytes, commits: bool) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=kafka.settings.brokers, transactional_id="other")
    await producer.start()
    try:
        await producer.begin_transaction()
        for value in values:
            await producer.send_and_wait(kafka.settings.outbox_topic, value, partition=0)
        await (producer.commit_transaction() if commits else producer.abort_transaction())
    finally:
        await producer.stop()


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_leaves_no_hole(kafka: KafkaAsked, commits: bool) -> None:
    """Its records, also those that were taken back, and the mark at its end: each is one that nobody here decodes."""
    asker = Asker(kafka)
    asker.append(b"a")
    kafka.run(in_a_transaction(kafka, b"hello", b"stranger", commits=commits))
    while asker.ends().end < 4:
        pass  # the mark comes behind the answer
    assert asker.append(b"b").offsets == (4,)
    for wait_ms in WAITS:
        found = asker.fetch(0, wait_ms=wait_ms).records
        while len(found) < 5:
            found += asker.fetch(len(found), wait_ms=wait_ms).records
        assert [one.offset for one in found] == list(range(5))
        assert [one.value for one in found[:3]] == [b"a", b"hello", b"stranger"]
        assert isinstance(read_outbox(found[3].value), Undecodable)
        for offset in range(1, 5):
            before = record_digest(found[offset - 1])
            assert isinstance(asker.fetch(offset, before=before, wait_ms=wait_ms), Fetched)


def test_what_nobody_here_can_unpack_holds_up_its_partition_and_no_other(kafka: KafkaAsked) -> None:
    asker, name = Asker(kafka), kafka.settings.outbox_topic
    for number in (0, 1):
        asker.append(b"a", partition=number)
        assert len(asker.fetch(0, wait_ms=60_000, partition=number).records) == 1
    cluster = kafka.admin.cluster
    leader = cluster.leader(name, 0)
    assert leader is not None
    foreign = AskAppend(
        {name: [(0, snappy(b"hello ", b"stranger"))]},
        {name: cluster.topic_id(name)},
        acks_ms=30_000,
    )
    answer: Any = kafka.run(cluster.ask(leader.node, Lane.APPEND, foreign))
    assert answer.topics[0][1][0][1] == 0, answer
    waits = [
        asker.start_fetch(1, wait_ms=wait_ms, partition=number)
        for number, wait_ms in enumerate((2_000, 60_000))
    ]
    asker.append(b"b", partition=1)
    held, served = kafka.answers(*waits)
    assert [one.value for one in served.records] == [b"b"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (held.records, held.end) == ((), 1) and time.monotonic() < deadline:
        held = asker.fetch(1, wait_ms=2_000)  # nothing of it was heard within the wait
    assert (held.records, held.end) == ((), 3), "it is there, and can't be told"
    op = asker.start_fetch(1)
    assert kafka.answers(op) == [Failed(op=op, why=FailReason.UNREACHABLE)]
    assert kafka.gauge("kafka_batches_broken") >= 2
    assert kafka.gauge("kafka_consumer_recreated") == 0
