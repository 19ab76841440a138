"""The Kafka log behind the verbs of the conformance suite: topics of its own on a real broker, a loop of its own."""

import asyncio
import itertools
import os
from collections.abc import Awaitable
from typing import Any, Final

from aiokafka.protocol.admin import (
    AlterConfigsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from msgspec import structs

from qim.adapters.kafka.cluster import Cluster, Lane
from qim.adapters.kafka.log import KafkaLog
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.topics import create_missing
from qim.core.ports.log import LogRequest, Topic
from tests.adapters.log.logs import PARTITIONS, Replies

HOUR_MS: Final = 3_600_000
ADMIN_MS: Final = 15_000
TOPIC_RESOURCE: Final = 2
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
        for made in await create_missing(self.settings, self.cluster):
            assert not made.error, made
        await self.settled()

    async def settled(self) -> None:
        """Until every partition has a leader."""
        async with asyncio.timeout(60):
            while not all(
                self.cluster.leader(self.settings.name_of(topic), number)
                for topic in Topic
                for number in range(self.settings.partitions_of(topic))
            ):
                await self.cluster.refresh()
                await asyncio.sleep(0.05)

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

    async def delete(self, topic: Topic) -> None:
        """Until the brokers know it no longer."""
        name = self.settings.name_of(topic)
        answer = await self.cluster.ask_any(DeleteTopicsRequest([name], ADMIN_MS))
        assert answer.topic_error_codes[0][1] == 0, answer
        async with asyncio.timeout(60):
            while self.cluster.leader(name, 0) is not None:
                await self.cluster.refresh()
                await asyncio.sleep(0.05)

    async def delete_records(self, topic: Topic, partition: int, before: int) -> None:
        """Retention, now."""
        name = self.settings.name_of(topic)
        await self.cluster.refresh()
        leader = self.cluster.leader(name, partition)
        assert leader is not None
        request = DeleteRecordsRequest([(name, [(partition, before)])], ADMIN_MS)
        await self.cluster.ask(leader.node, Lane.ASK, request)


class KafkaAsked:
    """qim/adapters/kafka over a real broker."""

    name = "kafka"

    def __init__(self, brokers: str, **more: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.settings = settings_for(brokers, **more)
        self.admin = Admin(self.settings, self.loop)
        self._replies = Replies()
        self._arrived: asyncio.Event = asyncio.Event()
        self.run(self.admin.create())
        self._open()

    def run(self, work: Awaitable[Any]) -> Any:
        """On the loop of this log."""
        return self.loop.run_until_complete(work)

    def _open(self) -> None:
        self.log = KafkaLog(self.settings, self.loop)
        self.run(self.log.start())

    def _take(self, reply: Any) -> None:
        self._replies.take(reply)
        self._arrived.set()

    def submit(self, request: LogRequest) -> None:
        self.log.submit(request, self._take)

    def answers(self, *ops: int) -> list[Any]:
        async def wait() -> None:
            async with asyncio.timeout(120):
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
