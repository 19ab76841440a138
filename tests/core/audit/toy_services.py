"""What an auditor asks, as small as can be: logs, a store, a registry of barriers; each answers as its port says."""

from typing import Any, Final

from msgspec import Struct

from qim.core.contract.entities import CommitAuditFact, MembershipVersion
from qim.core.ports.completion import Fenced, StoreReset, StoreRole
from qim.core.ports.log import EndsRead, Fetch, Fetched, OutOfRange, ReadEnds, StoredRecord, Topic
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.store_audit import (
    AdvanceCoverage,
    CoverageAdvanced,
    CoverageOpened,
    OpenCoverage,
)
from qim.core.ports.store_mailbox import (
    MailboxesRead,
    MailboxRead,
    MailboxRows,
    Progress,
    ProgressRead,
    ReadMailboxes,
    ReadProgress,
    ReadShardState,
    ShardStateRead,
)
from qim.core.ports.store_reads import ReadVersions, VersionsRead
from qim.core.ports.store_source import FactsRead, ReadFacts, ReadSource, SourceRead
from qim.core.position import is_other

SHARDS: Final = 4
PARTITIONS: Final = 2


class Log(Struct):
    """A partition; offsets begin at ``base``."""

    base: int = 0
    values: list[tuple[bytes, bytes]] = []
    start: int = 0

    @property
    def end(self) -> int:
        return self.base + len(self.values)

    def append(self, value: bytes, key: bytes = b"") -> int:
        self.values.append((key, value))
        return self.end - 1

    def spoil(self, offset: int, value: bytes) -> None:
        self.values[offset - self.base] = (self.values[offset - self.base][0], value)

    def records(self, offset: int, limit: int) -> tuple[StoredRecord, ...]:
        places = range(offset, min(offset + limit, self.end))
        return tuple(
            StoredRecord(offset=at, append_time=1, key=key, value=value)
            for at in places
            for key, value in [self.values[at - self.base]]
        )


class Box(Struct):
    """A mailbox shard's state."""

    watermark: int = -1
    trim: int = 0
    incarnation: bytes = b"run/1"
    rows: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    progress: dict[bytes, Progress] = {}
    settled: tuple[tuple[int, int], ...] = ()


class Source(Struct):
    """An outbox partition as the store knows it."""

    checkpoint: int = -1
    lost: tuple[tuple[int, int], ...] = ()
    receipts: dict[int, bytes] = {}
    dead_letters: dict[int, bytes] = {}
    facts: dict[bytes, CommitAuditFact] = {}
    covered_to: int = 0
    fence: int = 0
    incarnation: bytes = b"run/m"


class Services:
    """They say what is true; a test may shorten their pages."""

    def __init__(self) -> None:
        self.logs = {(Topic.OUTBOX, n): Log() for n in range(PARTITIONS)}
        self.logs |= {(Topic.DISPATCH, n): Log() for n in range(SHARDS)}
        self.sources = [Source() for _ in range(PARTITIONS)]
        self.boxes = [Box() for _ in range(SHARDS)]
        self.versions: dict[tuple[bytes, int, bytes], MembershipVersion] = {}
        self.barriers: dict[int, list[tuple[int, int]]] = {}
        self.fetch_limit = 1_000
        self.page_limit = 1_000

    def outbox(self, partition: int = 0) -> Log:
        return self.logs[Topic.OUTBOX, partition]

    def dispatch(self, shard: int) -> Log:
        return self.logs[Topic.DISPATCH, shard]

    def answer(self, request: Any) -> Any:
        """The right answer."""
        match request:
            case ReadEnds():
                log = self.logs[request.topic, request.partition]
                return EndsRead(op=request.op, topic_id=b"", start=log.start, end=log.end)
            case Fetch():
                return self._fetched(request)
            case ReadLease():
                below = [
                    barrier
                    for barrier in self.barriers.get(request.resource.number, [])
                    if barrier[1] < request.barriers_below
                ]
                epoch, offset = max(below, default=(0, -1))
                return LeaseRead(
                    op=request.op,
                    resource=request.resource,
                    epoch=9,
                    owner="",
                    address="",
                    barrier_epoch=epoch,
                    barrier_offset=offset,
                )
            case ReadSource():
                return self._source(request)
            case ReadVersions():
                versions = tuple(self.versions.get(name[1:]) for name in request.names)
                return VersionsRead(op=request.op, versions=versions, applied=(0,) * len(versions))
            case _:
                return self._answer_store(request)

    def _answer_store(self, request: Any) -> Any:
        match request:
            case ReadShardState():
                box = self.boxes[request.shard]
                return ShardStateRead(
                    op=request.op,
                    incarnation=box.incarnation,
                    base=box.watermark,
                    min_watermark=box.watermark,
                    trim=box.trim,
                    settled=box.settled,
                )
            case ReadMailboxes():
                box = self.boxes[request.shard]
                assert request.incarnation == box.incarnation
                results = tuple(self._rows(box, read) for read in request.reads)
                return MailboxesRead(op=request.op, results=results)
            case ReadProgress():
                box = self.boxes[request.shard]
                progress = tuple(box.progress.get(one) for one in request.dispatch_ids)
                return ProgressRead(op=request.op, progress=progress)
            case ReadFacts():
                facts = sorted(self.sources[request.shard].facts.items())
                behind = [fact for key, fact in facts if key > request.after]
                limit = min(request.limit, self.page_limit)
                return FactsRead(
                    op=request.op, facts=tuple(behind[:limit]), more=len(behind) > limit
                )
            case OpenCoverage():
                source = self.sources[request.partition]
                if request.epoch < source.fence:
                    return Fenced(op=request.op, epoch=source.fence)
                source.fence = request.epoch
                return CoverageOpened(
                    op=request.op, incarnation=source.incarnation, covered_to=source.covered_to
                )
            case AdvanceCoverage():
                source = self.sources[request.partition]
                if request.incarnation != source.incarnation or request.epoch > source.fence:
                    return StoreReset(op=request.op, store=StoreRole.MESSAGE)
                if request.epoch < source.fence:
                    return Fenced(op=request.op, epoch=source.fence)
                source.covered_to = max(source.covered_to, request.covered_to)
                for fact in request.drop_facts:
                    source.facts.pop(fact, None)
                return CoverageAdvanced(op=request.op)
        raise AssertionError(request)

    def _fetched(self, request: Fetch) -> Any:
        log = self.logs[request.topic, request.partition]
        common = {"op": request.op, "topic_id": b"", "start": log.start, "end": log.end}
        if not log.start <= request.offset <= log.end:
            return OutOfRange(**common)
        before = log.records(request.offset - 1, 1) if request.offset > log.start else ()
        if before and is_other(request.before, before[0]):
            return OutOfRange(**common, other_record=True)
        limit = min(request.limit, self.fetch_limit)
        return Fetched(**common, records=log.records(request.offset, limit))

    def _source(self, request: ReadSource) -> SourceRead:
        source = self.sources[request.partition]
        limit = min(request.limit, self.page_limit)
        lists = [
            [(at, row) for at, row in sorted(rows.items()) if request.low <= at < request.high]
            for rows in (source.receipts, source.dead_letters)
        ]
        cuts = [rows[limit][0] for rows in lists if len(rows) > limit]
        receipts, letters = [
            tuple((at, row) for at, row in rows if not cuts or at < min(cuts)) for rows in lists
        ]
        return SourceRead(
            op=request.op,
            incarnation=source.incarnation,
            checkpoint=source.checkpoint,
            applied=0,
            receipts=receipts,
            dead_letters=letters,
            lost=source.lost,
            more=bool(cuts),
        )

    def _rows(self, box: Box, read: MailboxRead) -> MailboxRows:
        limit = min(read.limit, self.page_limit)
        rows = [
            row
            for seq, row in box.rows.get((read.tenant_id, read.user_id), [])
            if read.after < seq <= min(read.up_to, box.watermark)
        ]
        if read.after < box.trim:
            rows = []
        return MailboxRows(box.watermark, box.trim, tuple(rows[:limit]), len(rows) > limit)
