"""Fetch the records that stand at given offsets of a log, in few runs (the audit names offsets, logs are read in runs)."""

from collections.abc import Iterable
from enum import IntEnum

from qim.core.audit.reads import OffsetsOf, Reads
from qim.core.audit.vocabulary import AuditConfig
from qim.core.ports.log import Fetch, Fetched, OutOfRange, StoredRecord, Topic


class Absence(IntEnum):
    """Why surely nothing stands there; an offset that was not read has no absence."""

    TRIMMED = 0
    BEYOND_END = 1


class LogLookup:
    """``get`` what ``want`` asked for, until ``clear``."""

    def __init__(self, reads: Reads, config: AuditConfig) -> None:
        self._reads = reads
        self._config = config
        self._found: dict[tuple[Topic, int, int], StoredRecord | Absence] = {}

    def get(self, topic: Topic, number: int, offset: int) -> StoredRecord | Absence | None:
        """None: not read."""
        return self._found.get((topic, number, offset))

    def want(self, topic: Topic, number: int, offsets: Iterable[int]) -> None:
        """Queue the fetches for these offsets."""
        run: list[int] = []
        for offset in sorted(dict.fromkeys(offsets)):
            far = run and offset - run[-1] > self._config.lookup_gap_max
            if far or (run and offset - run[0] >= self._config.window_records_max):
                self._fetch(topic, number, tuple(run))
                run = []
            run.append(offset)
        if run:
            self._fetch(topic, number, tuple(run))

    def take(self, asked: OffsetsOf, reply: Fetched | OutOfRange) -> None:
        """What was found; the rest is asked for again, or surely absent."""
        topic, number = asked.topic, asked.number
        records = reply.records if isinstance(reply, Fetched) else ()
        for record in records:
            self._found[topic, number, record.offset] = record
        rest: list[int] = []
        for offset in asked.offsets:
            if offset < reply.start:
                self._found[topic, number, offset] = Absence.TRIMMED
            elif offset >= reply.end:
                self._found[topic, number, offset] = Absence.BEYOND_END
            elif not records or offset > records[-1].offset:
                rest.append(offset)
        # A log gives at least one record inside its range; one that doesn't is not asked for ever.
        if rest and (records or isinstance(reply, OutOfRange)):
            self._fetch(topic, number, tuple(rest))

    def clear(self) -> None:
        """Forget what was found: the window is judged."""
        self._found.clear()

    def _fetch(self, topic: Topic, number: int, offsets: tuple[int, ...]) -> None:
        request = Fetch(
            op=0,
            topic=topic,
            partition=number,
            offset=offsets[0],
            limit=offsets[-1] - offsets[0] + 1,
            bytes_max=self._config.fetch_bytes_max,
            wait_ms=0,
        )
        self._reads.ask(request, OffsetsOf(topic, number, offsets))
