"""The walks from the other side: dispatches without a record, and facts whose record the outbox doesn't hold."""

from qim.core.audit.log_lookup import LogLookup
from qim.core.audit.reads import Reads
from qim.core.audit.run import AuditRun
from qim.core.audit.vocabulary import AuditConfig, OrphanKind
from qim.core.contract.entities import NO_SOURCE, CommitAuditFact, CommitState, GroupDispatch
from qim.core.contract.logvalue import Dispatched, Outboxed, read_dispatch, read_outbox
from qim.core.ports.log import Fetch, Fetched, OutOfRange, Topic
from qim.core.ports.store_message import FactsRead, ReadFacts


class DispatchWindow:
    """One window of one dispatch partition: each dispatch's source offset holds its effective record."""

    def __init__(
        self,
        run: AuditRun,
        config: AuditConfig,
        reads: Reads,
        lookup: LogLookup,
        shard: int,
        low: int,
    ) -> None:
        self._run = run
        self._config = config
        self._reads = reads
        self._lookup = lookup
        self._shard = shard
        self.low = low
        self.high = run.shards[shard].end
        self._dispatches: list[tuple[int, GroupDispatch]] = []
        self._read = False

    def begin(self) -> None:
        """Ask for the dispatches."""
        fetch = Fetch(
            op=0,
            topic=Topic.DISPATCH,
            partition=self._shard,
            offset=self.low,
            limit=min(
                self._config.window_records_max, self._run.shards[self._shard].end - self.low
            ),
            bytes_max=self._config.fetch_bytes_max,
            wait_ms=0,
        )
        self._reads.ask(fetch, self._on_fetched, f"dispatch {self._shard} from offset {self.low}")

    def ask_records(self) -> None:
        """Ask for the outbox records named; those outside the audited range are not judged."""
        wanted: dict[int, list[int]] = {}
        for _, dispatch in self._dispatches:
            if self._judgeable(dispatch):
                wanted.setdefault(dispatch.source_partition, []).append(dispatch.source_offset)
        for partition, offsets in sorted(wanted.items()):
            self._lookup.want(Topic.OUTBOX, partition, offsets)

    def judge(self) -> None:
        """Compare."""
        if not self._read:
            self._run.left_out(f"dispatch {self._shard} from offset {self.low}: not readable")
        for offset, dispatch in self._dispatches:
            self._run.dispatches += 1
            if not self._judgeable(dispatch):
                continue
            key = (Topic.OUTBOX, dispatch.source_partition, dispatch.source_offset)
            stored = self._lookup.found.get(key)
            entry = read_outbox(stored.value) if stored is not None else None
            cut = self._run.partitions[dispatch.source_partition]
            right = (
                isinstance(entry, Outboxed)
                and entry.record.message_id == dispatch.message_id
                and cut.effective(dispatch.source_offset, entry.epoch)
            )
            if not right:
                detail = f"outbox {dispatch.source_partition} offset {dispatch.source_offset} is not its record"
                self._run.orphan(
                    OrphanKind.DISPATCH_WITHOUT_RECORD,
                    dispatch.source_partition,
                    offset,
                    dispatch.message_id,
                    detail,
                    self._shard,
                )

    def _judgeable(self, dispatch: GroupDispatch) -> bool:
        if dispatch.source_partition == NO_SOURCE:
            return False
        if dispatch.source_partition >= len(self._run.partitions):
            return True
        cut = self._run.partitions[dispatch.source_partition]
        return cut.start <= dispatch.source_offset < cut.end

    def _on_fetched(self, reply: Fetched | OutOfRange) -> None:
        if not isinstance(reply, Fetched) or not reply.records:
            return
        self._read = True
        end = self._run.shards[self._shard].end
        self.high = min(reply.records[-1].offset + 1, end)
        for stored in reply.records:
            read = read_dispatch(stored.value) if stored.offset < end else None
            if isinstance(read, Dispatched):
                self._dispatches.append((stored.offset, read.dispatch))


class FactWindow:
    """One page of CommitAuditFacts: each committed one stands in the outbox where it says."""

    def __init__(
        self,
        run: AuditRun,
        config: AuditConfig,
        reads: Reads,
        lookup: LogLookup,
        partition: int,
        after: bytes,
    ) -> None:
        self._run = run
        self._config = config
        self._reads = reads
        self._lookup = lookup
        self._partition = partition
        self.last = after
        self.more = False
        self._facts: tuple[CommitAuditFact, ...] = ()

    def begin(self) -> None:
        """Ask for the page."""
        request = ReadFacts(
            op=0, shard=self._partition, after=self.last, limit=self._config.window_records_max
        )
        self._reads.ask(request, self._on_facts, f"facts of writer shard {self._partition}")

    def ask_records(self) -> None:
        """Ask for the outbox records of the committed ones."""
        cut = self._run.partitions[self._partition]
        offsets = [
            fact.outbox_offset
            for fact in self._facts
            if fact.state == CommitState.COMMITTED and cut.start <= fact.outbox_offset < cut.end
        ]
        self._lookup.want(Topic.OUTBOX, self._partition, offsets)

    def judge(self) -> None:
        """A rebuilt fact is no evidence for its own record; a pending one is in flight."""
        cut = self._run.partitions[self._partition]
        for fact in self._facts:
            if fact.state == CommitState.RECORDED:
                self._run.in_flight_seen(fact.message_id)
            if fact.state != CommitState.COMMITTED or fact.rebuilt:
                continue
            if not cut.start <= fact.outbox_offset < cut.end:
                continue
            stored = self._lookup.found.get((Topic.OUTBOX, self._partition, fact.outbox_offset))
            entry = read_outbox(stored.value) if stored is not None else None
            if not isinstance(entry, Outboxed) or entry.record.message_id != fact.message_id:
                self._run.orphan(
                    OrphanKind.FACT_WITHOUT_RECORD,
                    self._partition,
                    fact.outbox_offset,
                    fact.message_id,
                    "committed, but the outbox holds another record there",
                )

    def _on_facts(self, reply: FactsRead) -> None:
        self._facts = reply.facts
        self.more = reply.more and bool(reply.facts)
        if reply.facts:
            self.last = reply.facts[-1].message_id
