"""The Kafka log behind the verbs of the conformance suite: topics of its own on a real broker, a loop of its own."""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from aiokafka.protocol.admin import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from msgspec import structs

from qim.adapters.kafka.checks import TOPIC_RESOURCE
from qim.adapters.kafka.cluster import BrokerGone, Cluster, Lane
from qim.adapters.kafka.log import KafkaLog
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.topics import create_missing
from qim.adapters.kafka.wire import AskMetadata
from qim.adapters.start_refused import StartRefused
from qim.core.ports.log import LogRequest, Topic
from tests.adapters.log.logs import PARTITIONS, Replies

HOUR_MS: Final = 3_600_000
ADMIN_MS: Final = 15_000
PATIENCE_SECONDS: Final = 120.0
"""A test that waits longer has failed."""
PATIENT: Final = {
    "start_ms": 60_000,
    "connect_ms": 15_000,
    "ask_ms": 15_000,
    "acks_ms": 15_000,
    "delivery_ms": 90_000,
    "fetch_patience_ms": 90_000,
    "close_ms": 60_000,
}
"""A busy machine is no failure of the log: only who waits for an end makes these short."""
FENCED: Final = "(error 38)"
"""A broker that stood still for its session is none for new copies until it has said that it lives."""
RETRIABLE: Final = (3, 5, 6, 7)
"""UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT."""
_numbers = itertools.count()


def settings_for(brokers: str, **more: Any) -> KafkaSettings:
    """Topics with names of their own, windows of an hour."""
    prefix = f"t{os.getpid()}-{next(_numbers)}"
    fields: dict[str, Any] = {
        "brokers": brokers,
        "outbox_topic": f"{prefix}.outbox",
        "dispatch_topic": f"{prefix}.dispatch",
        "user_state_topic": f"{prefix}.user_state",
        "outbox_partitions": PARTITIONS[Topic.OUTBOX],
        "dispatch_partitions": PARTITIONS[Topic.DISPATCH],
        "user_state_partitions": PARTITIONS[Topic.USER_STATE],
        "outbox_recovery_ms": HOUR_MS,
        "dispatch_recovery_ms": HOUR_MS,
        "body_bytes_max": 64 * 1024,
        "allow_single_broker": True,
    }
    return KafkaSettings(**{**fields, **more})


class Admin:
    """What an operator does to topics, each a coroutine."""

    def __init__(self, settings: KafkaSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        names = [settings.name_of(topic) for topic in Topic]
        patient = structs.replace(settings, ask_ms=30_000, connect_ms=10_000)
        self.cluster = Cluster(patient, loop, names)

    async def create(self) -> None:
        """All three, once every broker knows its leaders."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            made = await create_missing(self.settings, self.cluster)
            while any(FENCED in one.error for one in made):
                made = await create_missing(self.settings, self.cluster)
        for one in made:
            assert not one.error, one
        await self.settled()

    async def settled(self) -> None:
        """Until every partition has a leader, and each broker that answers has heard of it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all(
                self.cluster.leader(self.settings.name_of(topic), number)
                for topic in Topic
                for number in range(self.settings.partitions_of(topic))
            ):
                await self.cluster.refresh()
                await asyncio.sleep(0.05)
            for node in self.cluster.broker_ids():
                while not await self._all_led(node):
                    pass

    async def _all_led(self, node: int) -> bool:
        """As this broker has it; one that is down has heard of nothing, and needn't."""
        names = [self.settings.name_of(topic) for topic in Topic]
        try:
            answer = await self.cluster.ask(node, Lane.ASK, AskMetadata(names))
        except BrokerGone:
            return True
        return all(
            error == 0 and parts and all(part[2] >= 0 for part in parts)
            for error, _, _, _, parts, *_ in answer.topics
        )

    async def create_as(
        self, topic: Topic, *, partitions: int | None = None, copies: int = 1, **config: str
    ) -> None:
        """One topic with this configuration alone (dots as ``__``)."""
        name = self.settings.name_of(topic)
        pairs = [(key.replace("__", "."), value) for key, value in config.items()]
        count = partitions or self.settings.partitions_of(topic)
        await self.cluster.refresh()
        answer = await self.cluster.ask_any(
            CreateTopicsRequest([(name, count, copies, [], pairs)], ADMIN_MS, False)
        )
        assert answer.topic_errors[0][1] == 0, answer

    async def configure(self, topic: Topic, **config: str) -> None:
        """Exactly this configuration (dots as ``__``)."""
        pairs = [(key.replace("__", "."), value) for key, value in config.items()]
        resource = (TOPIC_RESOURCE, self.settings.name_of(topic), pairs)
        answer = await self.cluster.ask_any(AlterConfigsRequest([resource]))
        assert answer.resources[0][0] == 0, answer
        await self.told(topic, dict(pairs))

    async def told(self, topic: Topic, config: Mapping[str, str]) -> None:
        """Until each broker tells of these: the controller answers before they have heard of it."""
        name = self.settings.name_of(topic)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for node in self.cluster.broker_ids():
                found: dict[str, str | None] = {}
                while not config.items() <= found.items():
                    request = DescribeConfigsRequest([(TOPIC_RESOURCE, name, None)], False)
                    answer = await self.cluster.ask(node, Lane.ASK, request)
                    ((_, _, _, _, entries),) = answer.resources
                    found = {entry[0]: entry[1] for entry in entries}

    async def delete(self, topic: Topic) -> None:
        """Until the brokers know it no longer."""
        name = self.settings.name_of(topic)
        answer = await self.cluster.ask_any(DeleteTopicsRequest([name], ADMIN_MS))
        assert answer.topic_error_codes[0][1] == 0, answer
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.cluster.leader(name, 0) is not None:
                await self.cluster.refresh()
                await asyncio.sleep(0.05)

    async def delete_records(self, topic: Topic, partition: int, before: int) -> None:
        """Retention, now."""
        name = self.settings.name_of(topic)
        request = DeleteRecordsRequest([(name, [(partition, before)])], ADMIN_MS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            error = RETRIABLE[0]
            while error in RETRIABLE:
                await self.cluster.refresh()
                leader = self.cluster.leader(name, partition)
                if leader is not None:
                    answer = await self.cluster.ask(leader.node, Lane.ASK, request)
                    ((_, ((_, _, error, *_),), *_),) = answer.topics
        assert error == 0, error


async def started(settings: KafkaSettings, loop: asyncio.AbstractEventLoop) -> KafkaLog:
    """Started again while the brokers are too slow for it, as a supervisor does. Raises StartRefused for any other reason."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            log = KafkaLog(settings, loop)
            try:
                await log.start()
            except StartRefused as refused:
                if refused.code != "kafka_unreachable":
                    raise
            else:
                return log


class KafkaAsked:
    """qim/adapters/kafka over a real broker."""

    name = "kafka"

    def __init__(self, brokers: str, **more: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.settings = settings_for(brokers, **PATIENT | more)
        self.admin = Admin(self.settings, self.loop)
        self._replies = Replies()
        self._arrived: asyncio.Event = asyncio.Event()
        self.run(self.admin.create())
        self._open()

    def run(self, work: Awaitable[Any]) -> Any:
        """On the loop of this log."""
        return self.loop.run_until_complete(work)

    def _open(self) -> None:
        self.log = self.run(started(self.settings, self.loop))

    def _take(self, reply: Any) -> None:
        self._replies.take(reply)
        self._arrived.set()

    def submit(self, request: LogRequest) -> None:
        self.log.submit(request, self._take)

    def answers(self, *ops: int) -> list[Any]:
        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while any(op not in self._replies.by_op for op in ops):
                    self._arrived.clear()
                    await self._arrived.wait()

        self.run(wait())
        return [self._replies.by_op[op] for op in ops]

    def pending(self, op: int) -> bool:
        return op not in self._replies.by_op

    def reopen(self) -> None:
        self.run(self.log.close())
        self._open()

    def retain(self, topic: Topic, partition: int, start: int) -> None:
        """An offset beyond the end would be refused: everything is what is meant."""
        end: int = self.run(self._end(topic, partition))
        self.run(self.admin.delete_records(topic, partition, min(start, end)))

    async def _end(self, topic: Topic, partition: int) -> int:
        found: asyncio.Future[Any] = self.loop.create_future()
        self.log._ends.ask((self.settings.name_of(topic), partition), found.set_result)
        return int((await found).end)

    def compact(self, partition: int, before: int) -> None:
        raise NotImplementedError("a broker compacts when it likes: see test_kafka_log.py")

    def gauge(self, name: str, label: str = "") -> float:
        """The value of one of the log's own."""
        return next(value for found, of, value in self.log.gauges() if (found, of) == (name, label))

    def close(self) -> None:
        self.run(self.log.close())
        for topic in Topic:
            self.run(self._removed(topic))
        self.run(self.admin.cluster.close())
        self.loop.close()

    async def _removed(self, topic: Topic) -> None:
        await self.admin.cluster.ask_any(
            DeleteTopicsRequest([self.settings.name_of(topic)], ADMIN_MS)
        )
