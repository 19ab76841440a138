"""The walk over the OUTBOX: every effective record has a receipt whose shards, digests and mailbox entries are right.

A window of one partition goes: fetch and receipts -> versions -> dispatches named -> mailboxes -> judged.
"""

from msgspec import Struct

from qim.core.audience import VersionAudience, VersionKey, audience_by_shard, named_version
from qim.core.audit.log_lookup import LogLookup
from qim.core.audit.mailboxes import Mailboxes
from qim.core.audit.reads import Reads
from qim.core.audit.run import AuditRun, PartitionCut
from qim.core.audit.vocabulary import AuditConfig, OrphanKind
from qim.core.contract.entities import (
    FanoutAuditReceipt,
    ReceiptShard,
    decode_receipt,
)
from qim.core.contract.ids import dispatch_id
from qim.core.contract.logvalue import (
    Barrier,
    Dispatched,
    NewerFormat,
    Outboxed,
    Undecodable,
    read_dispatch,
    read_outbox,
)
from qim.core.contract.sequences import mailbox_seq
from qim.core.dispatch_digest import materialisation_digest
from qim.core.effective import EffectiveFilter
from qim.core.ports.log import Fetch, Fetched, OutOfRange, Topic
from qim.core.ports.store_message import ReadSource, ReadVersions, SourceRead, VersionsRead

Targets = dict[int, tuple[int, ...]]
"""shard -> recipients there."""


class _Judged(Struct, kw_only=True):
    offset: int
    entry: Outboxed
    targets: Targets | None = None


class OutboxWindow:
    """One window of one partition; ``stage`` methods queue reads, the machine calls the next once all are settled."""

    def __init__(
        self,
        run: AuditRun,
        config: AuditConfig,
        reads: Reads,
        lookup: LogLookup,
        mailboxes: Mailboxes,
        partition: int,
        low: int,
    ) -> None:
        self._run = run
        self._config = config
        self._reads = reads
        self._lookup = lookup
        self._mailboxes = mailboxes
        self._partition = partition
        self._cut: PartitionCut = run.partitions[partition]
        self.low = low
        self.high = low
        self._fetched: Fetched | None = None
        self._receipts: dict[int, FanoutAuditReceipt] = {}
        self._dead: list[int] = []
        self._records: list[_Judged] = []
        self._audiences: dict[VersionKey, VersionAudience] = {}
        self._asked: tuple[VersionKey, ...] = ()

    def begin(self) -> None:
        """Ask for the records."""
        limit = min(self._config.window_records_max, self._cut.end - self.low)
        fetch = Fetch(
            op=0,
            topic=Topic.OUTBOX,
            partition=self._partition,
            offset=self.low,
            limit=limit,
            bytes_max=self._config.fetch_bytes_max,
            wait_ms=0,
        )
        self._reads.ask(fetch, self._on_fetched, self._name(self.low, self.low + limit))

    def ask_receipts(self) -> None:
        """Ask for receipts of what was fetched, and for the frozen versions its records name."""
        if self._fetched is None or not self._fetched.records:
            self._cut.stopped = True
            self._run.left_out(f"outbox {self._partition} from offset {self.low}: not readable")
            return
        entries = self._walk(self._fetched)
        self.high = min(self._fetched.records[-1].offset + 1, self._cut.end)
        self._records = [_Judged(offset=offset, entry=entry) for offset, entry in entries]
        request = ReadSource(
            op=0,
            partition=self._partition,
            low=self.low,
            high=self.high,
            limit=self._config.window_records_max,
        )
        self._reads.ask(request, self._on_receipts, self._name(self.low, self.high))
        named = [named_version(one.record) for _, one in entries]
        self._asked = tuple(dict.fromkeys(name for name in named if name is not None))
        if self._asked:
            versions = ReadVersions(
                op=0, names=tuple((self._partition, *name) for name in self._asked)
            )
            self._reads.ask(versions, self._on_versions, self._name(self.low, self.high))

    def ask_dispatches(self) -> None:
        """Ask for the dispatches that the receipts name."""
        named: dict[int, list[int]] = {}
        for one in self._records:
            record = one.entry.record
            name = named_version(record)
            audience = self._audiences.get(name) if name is not None else None
            if name is not None and audience is None:
                continue
            one.targets = dict(audience_by_shard(record, audience, self._config.shard_count))
            receipt = self._receipts.get(one.offset)
            for place in receipt.shards if receipt else ():
                if 0 <= place.shard < self._config.shard_count:
                    named.setdefault(place.shard, []).append(place.offset)
        for shard, offsets in sorted(named.items()):
            self._lookup.want(Topic.DISPATCH, shard, offsets)

    def ask_mailboxes(self) -> None:
        """Ask for the mailboxes of every recipient."""
        keys = [
            (shard, one.entry.record.tenant_id, user)
            for one in self._records
            if one.targets is not None
            for shard, users in sorted(one.targets.items())
            if self._run.shards[shard].min_watermark >= 0
            for user in users
        ]
        cuts = {
            number: (shard.incarnation, shard.trim, shard.min_watermark)
            for number, shard in enumerate(self._run.shards)
        }
        self._mailboxes.want(keys, cuts)

    def judge(self) -> None:
        """Judge in offset order; coverage stops at the first record that can't be judged."""
        for offset in self._dead:
            self._run.orphan(
                OrphanKind.DEAD_LETTERED, self._partition, offset, b"", "no version can decode it"
            )
        for one in self._records:
            if not self._judge_record(one):
                self._cut.stopped = True
                self._cut.judged_to = one.offset
                return
            self._run.records += 1
            self._cut.records += 1
            self._cut.covered_facts.append(one.entry.record.message_id)
        self._cut.judged_to = self.high

    def _judge_record(self, one: _Judged) -> bool:
        record = one.entry.record
        place = self._name(one.offset, one.offset + 1)
        if one.targets is None:
            self._run.left_out(f"{place}: version {record.version} is not in the store")
            return False
        receipt = self._receipts.get(one.offset)
        if receipt is None:
            if one.offset >= self._cut.checkpoint:
                self._run.left_out(f"{place}: fanout has not passed it")
                return False
            self._finding(OrphanKind.RECEIPT_MISSING, one, "checkpoint passed it without a receipt")
            return True
        if receipt.message_id != record.message_id:
            self._finding(OrphanKind.RECEIPT_MISSING, one, "the receipt is of another message")
            return True
        named = {at.shard: at for at in receipt.shards}
        if sorted(named) != sorted(one.targets):
            self._finding(
                OrphanKind.WRONG_SHARD_SET,
                one,
                f"shards {sorted(named)}, expected {sorted(one.targets)}",
            )
            return True
        return all(
            self._judge_shard(one, named[shard], users)
            for shard, users in sorted(one.targets.items())
        )

    def _judge_shard(self, one: _Judged, at: ReceiptShard, users: tuple[int, ...]) -> bool:
        record, shard = one.entry.record, self._run.shards[at.shard]
        if at.offset >= shard.start and not self._judge_dispatch(one, at):
            return True
        seq = mailbox_seq(max(shard.epoch, 1), at.offset)
        if shard.min_watermark < seq:
            self._run.left_out(
                f"{self._name(one.offset, one.offset + 1)}: mailbox shard {at.shard} has not passed offset {at.offset}"
            )
            return False
        if seq <= shard.trim:
            return True
        for user in users:
            found = self._mailboxes.seqs((at.shard, record.tenant_id, user))
            if found is None:
                self._run.left_out(f"mailbox of user {user} in shard {at.shard}: not readable")
                return False
            seqs = found.get(record.message_id, [])
            if len(seqs) != 1 or seqs[0] > seq:
                detail = f"user {user}: {len(seqs)} entries at {seqs[:3]}, expected one at or below {seq}"
                self._finding(OrphanKind.NOT_MATERIALISED, one, detail, at.shard)
                return True
        return True

    def _judge_dispatch(self, one: _Judged, at: ReceiptShard) -> bool:
        record = one.entry.record
        stored = self._lookup.found.get((Topic.DISPATCH, at.shard, at.offset))
        read = read_dispatch(stored.value) if stored is not None else None
        if not isinstance(read, Dispatched):
            self._finding(
                OrphanKind.RECORD_WITHOUT_DISPATCH,
                one,
                f"nothing readable at offset {at.offset}",
                at.shard,
            )
            return False
        if read.dispatch.dispatch_id != dispatch_id(record.message_id, at.shard):
            self._finding(
                OrphanKind.RECORD_WITHOUT_DISPATCH,
                one,
                f"another dispatch at offset {at.offset}",
                at.shard,
            )
            return False
        if materialisation_digest(read.dispatch) != at.digest:
            self._finding(OrphanKind.WRONG_DIGEST, one, f"at offset {at.offset}", at.shard)
            return False
        return True

    def _finding(self, kind: OrphanKind, one: _Judged, detail: str, shard: int = -1) -> None:
        message_id = one.entry.record.message_id
        self._run.orphan(kind, self._partition, one.offset, message_id, detail, shard)

    def _name(self, low: int, high: int) -> str:
        return f"outbox {self._partition} offsets {low}..{high - 1}"

    def _walk(self, fetched: Fetched) -> list[tuple[int, Outboxed]]:
        """Effective records of the window, raising the partition's barrier list on the way."""
        cut = self._cut
        greatest = max([cut.initial_epoch, *(epoch for _, epoch in cut.barriers)])
        filter_ = EffectiveFilter(greatest)
        taken: list[tuple[int, Outboxed]] = []
        for stored in fetched.records:
            if stored.offset >= cut.end:
                break
            match read_outbox(stored.value):
                case Outboxed() as entry:
                    if filter_.admits(entry):
                        taken.append((stored.offset, entry))
                case Barrier() as barrier:
                    filter_.admits(barrier)
                    cut.barriers.append((stored.offset, barrier.epoch))
                case Undecodable():
                    self._dead.append(stored.offset)
                case NewerFormat(version=version):
                    self._run.left_out(
                        f"{self._name(stored.offset, stored.offset + 1)}: format {version} is newer than this auditor"
                    )
        return taken

    def _on_fetched(self, reply: Fetched | OutOfRange) -> None:
        if isinstance(reply, Fetched):
            self._fetched = reply

    def _on_receipts(self, reply: SourceRead) -> None:
        for offset, encoded in reply.receipts:
            self._receipts[offset] = decode_receipt(encoded)
        if reply.more and reply.receipts:
            last = reply.receipts[-1][0] + 1
            request = ReadSource(
                op=0,
                partition=self._partition,
                low=last,
                high=self.high,
                limit=self._config.window_records_max,
            )
            self._reads.ask(request, self._on_receipts, self._name(last, self.high))

    def _on_versions(self, reply: VersionsRead) -> None:
        for name, version in zip(self._asked, reply.versions, strict=True):
            if version is not None:
                self._audiences[name] = VersionAudience(version, self._config.shard_count)
