"""Reads, questions for ends and long polls before brokers that a test plays."""

import asyncio
from typing import Any

from qim.adapters.kafka.consumer import Consumer
from qim.adapters.kafka.ends import EndsReader
from qim.adapters.kafka.fetch_wire import AskFetch, FetchedPart, FetchResponse
from qim.adapters.kafka.reader import Reader
from qim.adapters.kafka.wire import LATEST, AskOffsets
from qim.core.ports.log import Fetch, Topic
from tests.adapters.log.kafka_asked import settings_for
from tests.adapters.log.played_cluster import TOPIC_ID, PlayedCluster, Said

NAME = "outbox"
KEY = (NAME, 0)
OUT_OF_RANGE, NOT_LEADER, UNAUTHORISED = 1, 6, 29


class Stage:
    """Reader and consumer before played brokers."""

    def __init__(self, **limits: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.cluster = PlayedCluster()
        fields = {"backoff_ms": 1, "fetch_patience_ms": 20_000, **limits}
        settings = settings_for("127.0.0.1:1", **fields)
        self.asker = EndsReader(settings, self.loop, self.cluster)
        self.reader = Reader(settings, self.loop, self.cluster, self.asker)
        self.consumer = Consumer(settings, self.loop, self.cluster, self.reader, self.asker)
        self.told: list[Any] = []

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def until(self, count: int) -> None:
        """So many answers have come."""
        rounds = 0
        while len(self.told) < count:
            rounds += 1
            assert rounds < 20_000, self.told
            self.run(asyncio.sleep(0.001))

    def read(self, offset: int, before: bytes = b"") -> None:
        self.reader.read(KEY, offset, 1_000, self.told.append, before)

    def fetch(
        self, offset: int, wait_ms: int = 60_000, before: bytes = b"", partition: int = 0
    ) -> None:
        fetch = Fetch(
            op=len(self.told) + 1,
            topic=Topic.OUTBOX,
            partition=partition,
            offset=offset,
            limit=10,
            bytes_max=1_000,
            wait_ms=wait_ms,
            before=before,
        )
        self.consumer.fetch(fetch, (NAME, partition), self.told.append)

    def asked(self, kind: type) -> Any:
        """The next request of this kind; it stays unanswered."""

        async def wait() -> None:
            async with asyncio.timeout(20):
                while not any(isinstance(one, kind) for one, _ in self.cluster.requests):
                    self.cluster.arrived.clear()
                    await self.cluster.arrived.wait()

        self.run(wait())
        return next(one for one, _ in self.cluster.requests if isinstance(one, kind))

    def answer(self, reply: Any, kind: type = AskFetch) -> None:
        """The oldest request of this kind."""
        request = self.asked(kind)
        place = next(n for n, (one, _) in enumerate(self.cluster.requests) if one is request)
        _, future = self.cluster.requests.pop(place)
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)
        for _ in range(5):
            self.run(asyncio.sleep(0))

    def fetched(
        self,
        data: bytes = b"",
        *,
        error: int = 0,
        end: int = 0,
        start: int = 0,
        session: int = 0,
        partition: int = 0,
    ) -> None:
        """The next fetch is answered for this partition."""
        one = FetchedPart(
            topic=TOPIC_ID,
            partition=partition,
            error=error,
            high_watermark=end,
            log_start=start,
            data=data,
        )
        self.answer(FetchResponse(error=0, session_id=session, parts=[one]))

    def ends(self, start: int, end: int) -> None:
        """The next two questions for offsets."""
        for _ in range(2):
            request = self.asked(AskOffsets)
            ((_, ((_, _, timestamp),)),) = request._topics
            offset = end if timestamp == LATEST else start
            self.answer(Said(topics=[(NAME, [(0, 0, -1, offset, 0)])]), AskOffsets)

    def close(self) -> None:
        self.run(self.consumer.close())
        self.run(self.reader.close())
        self.run(self.asker.close())
        self.loop.close()
