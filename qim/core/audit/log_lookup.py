"""Fetch the records that stand at given offsets of a log, in few runs (the audit names offsets, logs are read in runs)."""

from qim.core.audit.reads import Reads
from qim.core.audit.vocabulary import AuditConfig
from qim.core.ports.log import Fetch, Fetched, OutOfRange, StoredRecord, Topic


class LogLookup:
    """``found[partition, offset]``; offsets that don't exist (beyond the end, or retained away) stay absent."""

    def __init__(self, reads: Reads, config: AuditConfig) -> None:
        self._reads = reads
        self._config = config
        self.found: dict[tuple[Topic, int, int], StoredRecord] = {}

    def want(self, topic: Topic, partition: int, offsets: list[int]) -> None:
        """Queue the fetches for these offsets."""
        run: list[int] = []
        for offset in sorted(dict.fromkeys(offsets)):
            far = run and offset - run[-1] > self._config.lookup_gap_max
            if far or (run and offset - run[0] >= self._config.window_records_max):
                self._fetch(topic, partition, run)
                run = []
            run.append(offset)
        if run:
            self._fetch(topic, partition, run)

    def clear(self) -> None:
        """Forget what was found: the window is judged."""
        self.found.clear()

    def _fetch(self, topic: Topic, partition: int, wanted: list[int]) -> None:
        fetch = Fetch(
            op=0,
            topic=topic,
            partition=partition,
            offset=wanted[0],
            limit=wanted[-1] - wanted[0] + 1,
            bytes_max=self._config.fetch_bytes_max,
            wait_ms=0,
        )

        def done(reply: Fetched | OutOfRange) -> None:
            if not isinstance(reply, Fetched) or not reply.records:
                return
            for record in reply.records:
                self.found[topic, partition, record.offset] = record
            rest = [offset for offset in wanted if offset > reply.records[-1].offset]
            if rest and rest[0] < reply.end:
                self._fetch(topic, partition, rest)

        self._reads.ask(fetch, done, f"{topic.value} {partition} offsets {wanted[0]}..{wanted[-1]}")
