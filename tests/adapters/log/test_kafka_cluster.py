"""The Kafka log on three real brokers: one is killed, one sleeps, leaders move; nothing acked is lost or doubled."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from qim.adapters.kafka.log import KafkaLog
from qim.adapters.start_refused import StartRefused
from qim.core.ports.log import (
    Appended,
    EndsRead,
    Fetch,
    Fetched,
    ReadEnds,
    StoredRecord,
    Topic,
)
from tests.adapters.log.append_load import Load
from tests.adapters.log.kafka_asked import PATIENCE_SECONDS, KafkaAsked, started
from tests.adapters.log.logs import Asker
from tests.integration.testbed.kafka import KafkaBroker, KafkaCluster

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.xdist_group("kafka")]

LIMITS = {"ask_ms": 1_500, "acks_ms": 2_000}
"""So long a broker that sleeps is waited for; an append or a fetch as a whole is given what any test is."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers, each a controller too."""
    cluster = KafkaCluster(tmp_path_factory.mktemp("three"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
def kafka(three: KafkaCluster) -> Iterator[KafkaAsked]:
    """On all three, none of them broken from the test before."""
    for broker in three.brokers:
        if not broker.process.alive:
            broker.start()
    three.until_whole()
    chosen = KafkaAsked(three.addresses, allow_single_broker=False, **LIMITS)
    yield chosen
    for broker in three.brokers:
        if not broker.process.alive:
            broker.start()
    chosen.close()


def leader_of(three: KafkaCluster, kafka: KafkaAsked) -> KafkaBroker:
    """Of outbox 0."""
    kafka.run(kafka.admin.cluster.refresh())
    leader = kafka.admin.cluster.leader(kafka.settings.outbox_topic, 0)
    assert leader is not None
    return three.broker(leader.node)


class Follower:
    """Reads outbox 0 from its start on by waiting fetches, as fanout does, and keeps everything."""

    def __init__(self, kafka: KafkaAsked) -> None:
        self.kafka = kafka
        self.records: list[StoredRecord] = []
        self.strange: list[object] = []
        self._moved = asyncio.Event()
        self._op = 1_000_000
        self._next()

    def _next(self) -> None:
        self._op += 1
        fetch = Fetch(
            op=self._op,
            topic=Topic.OUTBOX,
            partition=0,
            offset=len(self.records),
            limit=512,
            bytes_max=1 << 20,
            wait_ms=1_000,
        )
        self.kafka.log.submit(fetch, self._answered)

    def _answered(self, reply: object) -> None:
        if isinstance(reply, Fetched):
            self.records += reply.records
        else:
            self.strange.append(reply)
        self._moved.set()
        self.kafka.loop.call_soon(self._next)

    async def until(self, count: int) -> None:
        """So many have come."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.records) < count:
                self._moved.clear()
                await self._moved.wait()


async def ends_by(log: KafkaLog) -> EndsRead:
    """Of outbox 0."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log.submit(ReadEnds(op=1, topic=Topic.OUTBOX, partition=0), answered.set_result)
    answer = await answered
    assert isinstance(answer, EndsRead), answer
    return answer


def test_the_leader_killed_under_load_loses_and_doubles_nothing(
    three: KafkaCluster, kafka: KafkaAsked
) -> None:
    load, follower = Load(kafka), Follower(kafka)
    kafka.run(load.until(100))
    leader_of(three, kafka).kill()
    kafka.run(load.until(300))
    kafka.run(load.stop())
    end = Asker(kafka).ends().end
    kafka.run(follower.until(end))
    load.judge(follower.records)
    assert not follower.strange, "a leader that moved is no position lost"
    assert not load.unknown, "bridged within delivery_ms: the same numbers at the new leader"


def test_the_leader_asleep_and_awake_as_a_zombie(three: KafkaCluster, kafka: KafkaAsked) -> None:
    load, follower = Load(kafka), Follower(kafka)
    kafka.run(load.until(100))
    leader = leader_of(three, kafka)
    # Of a process that slept as long: it knows no other leader, and asks by itself in ten minutes.
    old = kafka.run(started(replace(kafka.settings, identity_ms=600_000), kafka.loop))
    leader.pause()
    try:
        kafka.run(load.until(250))
    finally:
        leader.resume()
    assert kafka.run(ends_by(old)).end >= 250, "not the end at which the zombie fell asleep"
    kafka.run(old.close())
    kafka.run(load.until(400))
    kafka.run(load.stop())
    end = Asker(kafka).ends().end
    kafka.run(follower.until(end))
    load.judge(follower.records)
    assert not follower.strange, "what the zombie says of its log is not believed"


def test_a_rolling_restart_under_load(three: KafkaCluster, kafka: KafkaAsked) -> None:
    load, follower = Load(kafka), Follower(kafka)
    for broker in three.brokers:
        kafka.run(load.until(len(load.acked) + 50))
        # The loop turns meanwhile: a log that stood still as long would give up what it has under way.
        kafka.run(asyncio.to_thread(broker.process.stop))
        kafka.run(load.until(len(load.acked) + 50))
        broker.process.launch()
        kafka.run(asyncio.to_thread(broker.process.wait_ready))
    kafka.run(load.until(len(load.acked) + 50))
    kafka.run(load.stop())
    end = Asker(kafka).ends().end
    kafka.run(follower.until(end))
    load.judge(follower.records)
    assert not follower.strange


def test_a_start_while_one_broker_is_down(three: KafkaCluster, kafka: KafkaAsked) -> None:
    three.broker(2).kill()
    kafka.reopen()
    assert isinstance(Asker(kafka).append(b"goes on"), Appended)


@pytest.mark.parametrize(
    ("copies", "in_sync", "code"),
    [(2, "1", "kafka_replication"), (3, "1", "kafka_in_sync"), (3, "3", "kafka_in_sync")],
)
def test_too_few_copies_are_refused(
    kafka: KafkaAsked, copies: int, in_sync: str, code: str
) -> None:
    kafka.run(kafka.log.close())
    kafka.run(kafka.admin.delete(Topic.DISPATCH))
    config = {
        "message__timestamp__type": "LogAppendTime",
        "min__insync__replicas": in_sync,
        "retention__ms": "3600000",
    }
    kafka.run(kafka.admin.create_as(Topic.DISPATCH, copies=copies, **config))
    kafka.run(kafka.admin.settled())
    with pytest.raises(StartRefused) as found:
        kafka.run(started(kafka.settings, kafka.loop))
    assert found.value.code == code
    assert kafka.settings.dispatch_topic in found.value.what
    kafka.run(kafka.admin.delete(Topic.DISPATCH))
    kafka.run(kafka.admin.create())
    kafka._open()
