"""The log port on Kafka: `start` checks and connects, `submit` takes LogRequests, `gauges` tells how it is.

Appends go to producer.py, fetches that wait to consumer.py, fetches that don't to reader.py, questions for ends to ends.py.
Offsets are dense in the outbox and dispatch topics (no compaction; the marks of somebody's transactions are records here as
well); compaction leaves holes in user-state.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

from qim.adapters.kafka.append_job import Answer
from qim.adapters.kafka.checks import check_all, why_no_start
from qim.adapters.kafka.cluster import BrokerGone, Cluster
from qim.adapters.kafka.consumer import Consumer
from qim.adapters.kafka.ends import Ends, EndsReader
from qim.adapters.kafka.producer import Producer
from qim.adapters.kafka.reader import Outside, Reader, Span
from qim.adapters.kafka.record_batches import within
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.tail import fetched, outside
from qim.adapters.wall_clock import wall_ms
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.log import (
    Append,
    EndsRead,
    Fetch,
    LogRequest,
    ReadEnds,
    Topic,
)

Gauge = tuple[str, str, float]
"""Name, label, value."""


class KafkaLog:
    """``submit`` a LogRequest from the event loop; ``answer`` is called on the loop exactly once."""

    def __init__(self, settings: KafkaSettings, loop: AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._topics = {settings.name_of(topic): topic for topic in Topic}
        self._cluster = Cluster(settings, loop, list(self._topics))
        self._producer = Producer(settings, loop, self._cluster, wall_ms=wall_ms)
        self._ends = EndsReader(settings, loop, self._cluster)
        self._reader = Reader(settings, loop, self._cluster, self._ends)
        self._consumer = Consumer(settings, loop, self._cluster, self._reader, self._ends)
        self.observe_append: Callable[[Topic, int], None] = lambda topic, microseconds: None
        """Told of every append that stands: µs from submit to answer."""
        self._producer.observe = lambda name, microseconds: self.observe_append(
            self._topics[name], microseconds
        )

    async def start(self) -> None:
        """Nothing is written before every check has passed. Raises StartRefused."""
        try:
            await self._cluster.start()
            limits = await check_all(self._settings, self._cluster)
            await self._producer.start(limits)
        except BrokerGone as gone:
            await self._cluster.close()
            raise why_no_start(self._settings, gone) from gone
        except BaseException:
            await self._cluster.close()
            raise
        self._consumer.start()

    async def close(self) -> None:
        """Waiting fetches are answered with nothing; appends that can't be settled within close_ms as what they are."""
        await self._consumer.close()
        await self._producer.close()
        await self._reader.close()
        await self._ends.close()  # behind the reader, whose reads in doubt wait for ends
        await self._cluster.close()
        # The last answers are on their way to their callbacks.
        await asyncio.sleep(0)

    def submit(self, request: LogRequest, answer: Answer) -> None:
        """Append, Fetch or ReadEnds; see ports/log.py."""
        # In a turn of its own: what fails in a machine must not pass for a failed request of ours.
        self._submit(request, lambda reply: self._loop.call_soon(answer, reply))

    def _submit(self, request: LogRequest, answer: Answer) -> None:
        settings = self._settings
        if not 0 <= request.partition < settings.partitions_of(request.topic):
            answer(Failed(op=request.op, why=FailReason.INVALID))
            return
        name = settings.name_of(request.topic)
        key = (name, request.partition)
        full = self._fetches_waiting >= settings.fetches_waiting_max
        match request:
            case Append():
                self._producer.append(request, name, answer)
            case _ if full:
                answer(Failed(op=request.op, why=FailReason.OVERLOADED))
            case Fetch(wait_ms=wait_ms) if wait_ms > 0:
                self._consumer.fetch(request, key, answer)
            case Fetch():
                self._reader.read(
                    key,
                    request.offset,
                    request.bytes_max,
                    partial(_have_read, request, answer),
                    request.before,
                )
            case ReadEnds():
                self._ends.ask(key, partial(_have_ends, request, answer))
            case _:
                assert_never(request)

    @property
    def _fetches_waiting(self) -> int:
        """Questions for ends too."""
        return self._consumer.waiting + self._reader.waiting + self._ends.waiting

    def connected(self) -> bool:
        """Some broker answered when one was last asked."""
        return self._cluster.last_gone is None

    def gauges(self) -> Iterable[Gauge]:
        """(name, label, value): depths beside their capacities, lag a partition, counters of what went wrong."""
        settings, producer, consumer = self._settings, self._producer, self._consumer
        yield "kafka_appends_waiting", "", producer.waiting
        yield "kafka_appends_waiting_max", "", settings.appends_waiting_max
        yield "kafka_append_bytes_waiting", "", producer.bytes_waiting
        yield "kafka_append_bytes_waiting_max", "", settings.append_bytes_waiting_max
        yield "kafka_appends_in_flight", "", producer.in_flight
        yield "kafka_fetches_waiting", "", self._fetches_waiting
        yield "kafka_fetches_waiting_max", "", settings.fetches_waiting_max
        yield "kafka_bytes_read_ahead", "", consumer.bytes_ahead
        for name, partition, lag in consumer.lags():
            yield "kafka_lag", f"{self._topics[name].value}/{partition}", lag
        yield "kafka_append_retries", "", producer.retries
        yield "kafka_append_unknowns", "", producer.unknowns
        yield "kafka_producer_ids", "", producer.identities
        yield "kafka_polls", "", consumer.polls
        yield "kafka_consumer_recreated", "", consumer.recreated
        yield "kafka_positions_refused", "", self._reader.positions_refused
        yield "kafka_batches_broken", "", self._reader.unread.count
        yield "kafka_topics_recreated", "", self._cluster.topics_recreated
        yield "kafka_metadata_failed", "", self._cluster.refreshes_failed


async def check_topics(settings: KafkaSettings, loop: AbstractEventLoop) -> None:
    """The start-up checks alone; nothing is written. Raises StartRefused."""
    cluster = Cluster(settings, loop, [settings.name_of(topic) for topic in Topic])
    try:
        await cluster.start()
        await check_all(settings, cluster)
    except BrokerGone as gone:
        raise why_no_start(settings, gone) from gone
    finally:
        await cluster.close()


def _have_read(fetch: Fetch, answer: Answer, result: Span | Outside | FailReason) -> None:
    match result:
        case Span():
            records = within(result.records, 0, fetch.limit, fetch.bytes_max)
            answer(fetched(fetch, result.ends, records))
        case Outside():
            answer(outside(fetch, result))
        case FailReason():
            answer(Failed(op=fetch.op, why=result))
        case _:
            assert_never(result)


def _have_ends(asked: ReadEnds, answer: Answer, result: Ends | FailReason) -> None:
    match result:
        case Ends():
            answer(
                EndsRead(op=asked.op, topic_id=result.topic_id, start=result.start, end=result.end)
            )
        case FailReason():
            answer(Failed(op=asked.op, why=result))
        case _:
            assert_never(result)
