"""One partition of the logs' fake: its records, where it begins, and what retention, compaction and a lost tail leave."""

from itertools import islice

from qim.core.ports.log import Fetch, LogRecord, StoredRecord, Topic
from qim.core.position import is_other
from qim.sim.node import Host


class Partition:
    """Records with dense offsets from ``start`` to ``end``; ``topic_id`` names this creation of the topic."""

    __slots__ = (
        "gone", "leaderless_until", "lost", "number", "records", "stalled_until", "start", "topic", "topic_id", "waiters", "was",
    )  # fmt: skip

    def __init__(self, topic: Topic, number: int, start: int, topic_id: bytes) -> None:
        self.topic = topic
        self.number = number
        self.start = start
        self.topic_id = topic_id
        self.records: list[StoredRecord] = []
        self.gone: dict[int, None] = {}
        """Offsets that compaction took: holes for a reader."""
        self.was: dict[tuple[int, bytes], None] = {}
        """(offset, value) of what was lost and must not come there again."""
        self.lost: set[bytes] = (
            set()
        )  # keys, looked up, never walked: what stood there had been valid
        self.leaderless_until = 0
        self.stalled_until = 0
        self.waiters: list[tuple[Host, Fetch, int]] = []

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def slice(self, offset: int, limit: int, bytes_max: int) -> tuple[StoredRecord, ...]:
        """At least one record if there is one."""
        taken: list[StoredRecord] = []
        size = 0
        at = offset - self.start
        for record in (
            islice(self.records, at, None) if self.gone else self.records[at : at + limit]
        ):
            if record.offset in self.gone:
                continue
            if len(taken) == limit:
                break
            size += len(record.value) + len(record.key)
            if taken and size > bytes_max:
                break
            taken.append(record)
        return tuple(taken)

    def differs(self, offset: int, before: bytes) -> bool:
        """Another record stands at ``offset - 1`` than the one whose digest is ``before``."""
        at = offset - 1 - self.start
        if offset <= self.start or not 0 <= at < len(self.records) or offset - 1 in self.gone:
            return False
        return is_other(before, self.records[at])

    def is_again(self, records: tuple[LogRecord, ...]) -> bool:
        """Would one of these stand where the very same was lost?"""
        return bool(self.was) and any(
            (offset, record.value) in self.was for offset, record in enumerate(records, self.end)
        )

    def first_again(self) -> LogRecord:
        """A copy of the first record, which means nothing."""
        return LogRecord(key=self.records[0].key, value=self.records[0].value)

    # ------------------------------------------------------------ what is taken away

    def retain(self, start: int) -> bool:
        """The start moves up to ``start``, to the end at most; whether it moved."""
        start = min(start, self.end)
        if start <= self.start:
            return False
        del self.records[: start - self.start]
        self.start = start
        self.gone = {offset: None for offset in self.gone if offset >= start}
        return True

    def compact(self, before: int) -> int:
        """Of the records below ``before`` all go that a later one of them supersedes; how many went now."""
        last = {record.key: record.offset for record in self.records if record.offset < before}
        superseded = [
            record.offset
            for record in self.records
            if record.offset < last.get(record.key, 0) and record.offset not in self.gone
        ]
        self.gone.update(dict.fromkeys(superseded))
        return len(superseded)

    def cut(self, count: int) -> list[StoredRecord]:
        """The last ``count`` records go, as far as retention left them; those that went."""
        keep = max(0, len(self.records) - count)
        lost = self.records[keep:]
        if lost:
            del self.records[keep:]
            self.lost.update(one.key for one in lost)
            self.gone = {offset: None for offset in self.gone if offset < self.end}
        return lost

    def recreate(self, topic_id: bytes) -> None:
        """The topic is another one: new identity, empty, offsets from 0 again."""
        self.topic_id = topic_id
        self.lost.update(one.key for one in self.records)
        self.records = []
        self.gone = {}
        self.start = 0
