"""What one audit run has learnt so far: cuts, barriers, coverage, findings; and how it ends in a report."""

from msgspec import Struct

from qim.core.audit.vocabulary import (
    AuditConfig,
    AuditReport,
    CoveredRange,
    Orphan,
    OrphanKind,
    Verdict,
)
from qim.core.contract.sequences import split_mailbox_seq


class PartitionCut(Struct, kw_only=True):
    """One outbox partition: [start, end) as of the start of the run; ``epochs`` = (offset, greatest barrier epoch from there)."""

    start: int = 0
    end: int = 0
    checkpoint: int = -1
    initial_epoch: int = 0
    barriers: list[tuple[int, int]] = []
    judged_to: int = 0
    stopped: bool = False
    records: int = 0
    covered_facts: list[bytes] = []

    def effective(self, offset: int, epoch: int) -> bool:
        """Was a record of ``epoch`` at ``offset`` effective (pipeline.md §1.7)? Barriers were collected by the outbox walk."""
        greatest = self.initial_epoch
        for at, barrier_epoch in self.barriers:
            if at < offset and barrier_epoch > greatest:
                greatest = barrier_epoch
        return epoch >= greatest


class ShardCut(Struct, kw_only=True):
    """One mailbox shard as of the start of the run."""

    start: int = 0
    end: int = 0
    incarnation: bytes = b""
    min_watermark: int = -1
    trim: int = 0

    @property
    def epoch(self) -> int:
        """shard_epoch of the watermark."""
        return split_mailbox_seq(self.min_watermark)[0] if self.min_watermark >= 0 else 0


class AuditRun:
    """Findings of one run; bounded: past ``orphans_max`` they are counted, not kept."""

    def __init__(self, ticket: int, config: AuditConfig) -> None:
        self.ticket = ticket
        self._config = config
        self.partitions = [PartitionCut() for _ in range(config.outbox_partition_count)]
        self.shards = [ShardCut() for _ in range(config.shard_count)]
        self.orphans: list[Orphan] = []
        self.orphans_total = 0
        self.in_flight: list[bytes] = []
        self.incomplete: list[str] = []
        self.records = 0
        self.dispatches = 0

    def orphan(
        self,
        kind: OrphanKind,
        partition: int,
        offset: int,
        message_id: bytes,
        detail: str,
        shard: int = -1,
    ) -> None:
        """One finding."""
        self.orphans_total += 1
        if len(self.orphans) < self._config.orphans_max:
            self.orphans.append(
                Orphan(
                    kind=kind,
                    partition=partition,
                    offset=offset,
                    shard=shard,
                    message_id=message_id,
                    detail=detail,
                )
            )

    def left_out(self, why: str) -> None:
        """A range that could not be judged."""
        if why not in self.incomplete and len(self.incomplete) < self._config.orphans_max:
            self.incomplete.append(why)

    def in_flight_seen(self, message_id: bytes) -> None:
        """A fact still pending: neither covered nor orphan."""
        if len(self.in_flight) < self._config.orphans_max:
            self.in_flight.append(message_id)

    def report(self) -> AuditReport:
        """Orphans outweigh incompleteness: a loss must never look like a delay."""
        if self.orphans_total:
            verdict = Verdict.ORPHANS
        elif self.incomplete:
            verdict = Verdict.INCOMPLETE
        else:
            verdict = Verdict.CLEAN
        return AuditReport(
            verdict=verdict,
            covered=tuple(
                CoveredRange(
                    partition=number, low=cut.start, high=cut.judged_to, records=cut.records
                )
                for number, cut in enumerate(self.partitions)
                if cut.judged_to > cut.start
            ),
            orphans=tuple(sorted(self.orphans)),
            orphans_total=self.orphans_total,
            in_flight=tuple(self.in_flight),
            incomplete=tuple(self.incomplete),
            records=self.records,
            dispatches=self.dispatches,
        )
