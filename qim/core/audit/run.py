"""What one audit run has learnt so far: cuts, barriers, coverage, findings; and how it ends in a report."""

from bisect import bisect_left

from msgspec import Struct

from qim.core.audit.vocabulary import (
    AuditConfig,
    AuditReport,
    CoveredRange,
    Orphan,
    OrphanKind,
    Verdict,
)
from qim.core.contract.sequences import mailbox_seq, split_mailbox_seq


class PartitionCut(Struct, kw_only=True):
    """One outbox partition: [start, end) as of the start of the run, walked up to ``walked_to``.

    ``initial_epoch`` is the greatest barrier below the start, None where that is not known. ``barrier_epochs[i]`` is the
    greatest epoch of a barrier at or below ``barrier_offsets[i]``.
    """

    number: int
    start: int = 0
    end: int = 0
    checkpoint: int = -1
    incarnation: bytes = b""
    opened: bool = False
    """The fence of its CoverageCursor stands at the run's epoch."""
    initial_epoch: int | None = None
    barrier_offsets: list[int] = []
    barrier_epochs: list[int] = []
    walked_to: int = 0
    covered: list[CoveredRange] = []
    lost: tuple[tuple[int, int], ...] = ()
    """Offsets whose records the log had lost, and which stand elsewhere since a repair."""

    def was_lost(self, offset: int) -> bool:
        """What stands there now is not what a dispatch may mean that names it; its receipt says where its record is."""
        return any(low <= offset < high for low, high in self.lost)

    def seen_in(self, incarnation: bytes) -> bool:
        """Whether the store is still the one this partition's evidence came from (pipeline.md §0)."""
        same = self.incarnation in (b"", incarnation)
        self.incarnation = incarnation
        return same

    def epoch_before(self, offset: int) -> int:
        """The greatest epoch of a barrier below ``offset`` (pipeline.md §1.7), of those walked past."""
        index = bisect_left(self.barrier_offsets, offset)
        return self.barrier_epochs[index - 1] if index else self.initial_epoch or 0

    def passed_barrier(self, offset: int, epoch: int) -> None:
        """A barrier stands at ``offset``."""
        self.barrier_epochs.append(max(epoch, self.epoch_before(offset)))
        self.barrier_offsets.append(offset)

    def cover(self, low: int, high: int, records: int) -> None:
        """Every offset in [low, high) was judged; ``records`` effective ones."""
        if low >= high:
            return
        last = self.covered[-1] if self.covered else None
        if last is not None and last.high == low:
            self.covered.pop()
            low, records = last.low, records + last.records
        self.covered.append(
            CoveredRange(partition=self.number, low=low, high=high, records=records)
        )

    @property
    def judged_to(self) -> int:
        """Everything retained below it was judged: where the CoverageCursor may stand."""
        first = self.covered[0] if self.covered else None
        return first.high if first is not None and first.low == self.start else self.start


class ShardCut(Struct, kw_only=True):
    """One mailbox shard: its dispatch log as of the start of the run, its store state as last read (-1: none)."""

    start: int = 0
    end: int = 0
    incarnation: bytes = b""
    min_watermark: int = -1
    trim: int = 0
    walked_to: int = 0
    settled: dict[int, int] = {}
    """By source partition: below this source offset it was materialised under an earlier shard_epoch."""

    def before_bump(self, partition: int, source_offset: int) -> bool:
        """Materialised before the shard_epoch was raised, in a log that is gone: the receipt alone covers (pipeline.md §7)."""
        return source_offset < self.settled.get(partition, 0)

    def seen_in(self, incarnation: bytes) -> bool:
        """Whether the store is still the one this shard's evidence came from (pipeline.md §0)."""
        same = self.incarnation in (b"", incarnation)
        self.incarnation = incarnation
        return same

    def seq(self, offset: int) -> int:
        """mailbox_seq of a dispatch offset, under the shard_epoch of the record behind min W."""
        return mailbox_seq(max(split_mailbox_seq(self.min_watermark + 1)[0], 1), offset)

    def passed(self, offset: int) -> bool:
        """Whether every lane has passed the dispatch at ``offset``."""
        return self.min_watermark >= 0 and self.seq(offset) <= self.min_watermark

    def trimmed(self, offset: int) -> bool:
        """At or below trim the receipt alone covers."""
        return self.min_watermark >= 0 and self.seq(offset) <= self.trim


class LeftOut(Struct, kw_only=True, gc=False):
    """What could not be judged, and why; ``low`` -1 where it is no range of offsets."""

    what: str
    why: str
    low: int = -1
    high: int = -1

    def text(self) -> str:
        """As the report says it."""
        if self.low < 0:
            return f"{self.what}: {self.why}"
        return f"{self.what} offsets {self.low}..{self.high - 1}: {self.why}"


class AuditRun:
    """Findings of one run; bounded: past ``orphans_max`` they are counted, not kept."""

    def __init__(self, ticket: int, config: AuditConfig) -> None:
        self.ticket = ticket
        self._config = config
        self.partitions = [PartitionCut(number=n) for n in range(config.outbox_partition_count)]
        self.shards = [ShardCut() for _ in range(config.shard_count)]
        self.orphans: list[Orphan] = []
        self.orphans_total = 0
        self.suspects: dict[tuple[int, bytes], Orphan] = {}
        self.in_flight: list[bytes] = []
        self.records = 0
        self.dispatches = 0
        self.reset = False
        self.epoch = 0
        """Under which it opened the CoverageCursors; 0: it looks, and moves none."""
        self.fenced = False
        """That epoch ended before the run."""
        self._left_out: list[LeftOut] = []
        self._last_of: dict[tuple[str, str], LeftOut] = {}

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
        orphan = Orphan(
            kind=kind,
            partition=partition,
            offset=offset,
            shard=shard,
            message_id=message_id,
            detail=detail,
        )
        self.keep(orphan)

    def keep(self, orphan: Orphan) -> None:
        """Count it, and keep it if there is room."""
        self.orphans_total += 1
        if len(self.orphans) < self._config.orphans_max:
            self.orphans.append(orphan)

    def suspect(self, dispatch_id: bytes, orphan: Orphan) -> None:
        """No entry above trim: an orphan, unless the dispatch first stands at or below trim (the dispatch walk tells)."""
        key = (orphan.shard, dispatch_id)
        if len(self.suspects) < self._config.orphans_max:
            self.suspects.setdefault(key, orphan)
        elif key not in self.suspects:
            self.keep(orphan)

    def left_out(self, what: str, why: str, low: int = -1, high: int = -1) -> None:
        """Something that could not be judged; neighbouring ranges with the same reason are one."""
        last = self._last_of.get((what, why))
        if last is not None and (last.high == low or low < 0):
            last.high = high
            return
        if len(self._left_out) < self._config.orphans_max:
            entry = LeftOut(what=what, why=why, low=low, high=high)
            self._left_out.append(entry)
            self._last_of[what, why] = entry

    def in_flight_seen(self, message_id: bytes) -> None:
        """A fact still pending: neither covered nor orphan."""
        if len(self.in_flight) < self._config.orphans_max:
            self.in_flight.append(message_id)

    def report(self) -> AuditReport:
        """Orphans outweigh incompleteness: a loss must never look like a delay."""
        if self.orphans_total:
            verdict = Verdict.ORPHANS
        elif self._left_out:
            verdict = Verdict.INCOMPLETE
        else:
            verdict = Verdict.CLEAN
        return AuditReport(
            verdict=verdict,
            covered=tuple(one for cut in self.partitions for one in cut.covered),
            orphans=tuple(sorted(self.orphans)),
            orphans_total=self.orphans_total,
            in_flight=tuple(self.in_flight),
            incomplete=tuple(one.text() for one in self._left_out),
            records=self.records,
            dispatches=self.dispatches,
        )
