"""A load of appends that goes on while brokers die, and what must be true of the log afterwards."""

import asyncio
from typing import Any

from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.log import Append, Appended, LogRecord, StoredRecord, Topic
from tests.adapters.log.kafka_asked import PATIENCE_SECONDS, KafkaAsked


class Load:
    """Appends to outbox 0 one after the other, two records each, as a writer does: never two in flight."""

    def __init__(self, kafka: KafkaAsked) -> None:
        self.kafka = kafka
        self.acked: dict[int, tuple[int, ...]] = {}
        self.unknown: set[int] = set()
        self.number = 0
        self.stopping = False
        self._moved = asyncio.Event()
        self._next()

    def _next(self) -> None:
        self.number += 1
        mine = self.number
        records = tuple(LogRecord(key=b"k", value=b"%d/%d" % (mine, part)) for part in (0, 1))
        append = Append(op=mine, topic=Topic.OUTBOX, partition=0, epoch=1, records=records)
        self.kafka.log.submit(append, lambda reply: self._answered(mine, reply))

    def _answered(self, number: int, reply: Any) -> None:
        if isinstance(reply, Appended):
            self.acked[number] = reply.offsets
        elif isinstance(reply, Unknown):
            self.unknown.add(number)
        else:
            assert isinstance(reply, Failed), reply
        self._moved.set()
        if not self.stopping:
            # A failure may be immediate: the loop must get its turn.
            self.kafka.loop.call_soon(self._next)
        else:
            self.number = -1

    async def until(self, acked: int) -> None:
        """So many are acked."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.acked) < acked:
                self._moved.clear()
                await self._moved.wait()

    async def stop(self) -> None:
        """The one in flight is answered."""
        self.stopping = True
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.number != -1:
                self._moved.clear()
                await self._moved.wait()

    def judge(self, records: list[StoredRecord]) -> None:
        """Acked ones stand where they were said to, whole; failed ones nowhere; unknown ones at most once, whole."""
        assert [one.offset for one in records] == list(range(len(records)))
        values = [one.value for one in records]
        for number, offsets in self.acked.items():
            assert offsets[1] == offsets[0] + 1
            assert [values[at] for at in offsets] == [b"%d/%d" % (number, part) for part in (0, 1)]
        assert len(set(values)) == len(values), "nothing twice"
        stands = {int(value.split(b"/")[0]) for value in values}
        assert stands <= set(self.acked) | self.unknown, "nothing that Failed stands"
        assert len(values) == 2 * len(stands), "batches are whole"
        order = [offsets[0] for _, offsets in sorted(self.acked.items())]
        assert order == sorted(order)
