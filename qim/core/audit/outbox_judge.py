"""The judgement of a window of the outbox, once all evidence about it is in: pure comparison, offset by offset.

An offset that can't be judged is left out with its reason and the coverage has a hole there; everything else of the
window is judged all the same, so that a shard which is behind hides no orphan of another.
"""

from msgspec import Struct

from qim.core.audit.evidence import Evidence
from qim.core.audit.log_lookup import Absence
from qim.core.audit.run import PartitionCut
from qim.core.audit.versions import Targets
from qim.core.audit.vocabulary import Orphan, OrphanKind
from qim.core.contract.entities import FanoutAuditReceipt, MessageRecord, ReceiptShard
from qim.core.contract.ids import dispatch_id
from qim.core.contract.logvalue import Dispatched, NewerFormat, Outboxed, read_dispatch
from qim.core.dispatch_digest import expected_digest, materialisation_digest
from qim.core.ports.log import StoredRecord, Topic
from qim.core.ports.store_mailbox import Progress


class Item(Struct, kw_only=True):
    """An offset to judge; ``entry`` None: no version can decode it. ``targets`` None: its version is not known."""

    offset: int
    key: bytes
    entry: Outboxed | None
    targets: Targets | None = None


class Window(Struct, kw_only=True):
    """Evidence about offsets [low, high) of one partition; receipts were read below ``receipts_to``.

    ``receipts``: None where the row can't be decoded. ``needed``: the greatest dispatch offset named, by shard.
    ``judged`` items are done, ``records`` effective ones since ``covered_from``.
    """

    cut: PartitionCut
    low: int
    high: int
    fetched: tuple[StoredRecord, ...] = ()
    items: list[Item] = []
    receipts: dict[int, FanoutAuditReceipt | None] = {}
    dead_letters: dict[int, bytes] = {}
    checkpoint: int = -1
    receipts_to: int = 0
    progress: dict[tuple[int, bytes], Progress] = {}
    needed: dict[int, int] = {}
    looks: int = 0
    judged: int = 0
    covered_from: int = 0
    records: int = 0


class _Unjudged(Exception):
    """Evidence is missing, for this reason: neither whole nor an orphan."""


def judge(window: Window, evidence: Evidence) -> bool:
    """The next items of the window, as many as fit into one step; True when all are judged and covered."""
    cut = window.cut
    recipients = 0
    for item in window.items[window.judged :]:
        if recipients > evidence.config.judged_recipients_max:
            return False
        recipients += sum(len(users) for users in (item.targets or {}).values())
        window.judged += 1
        try:
            _Judgement(window, evidence, item).judge()
        except _Unjudged as reason:
            what = f"outbox {cut.number}"
            evidence.run.left_out(what, str(reason), item.offset, item.offset + 1)
            cut.cover(window.covered_from, item.offset, window.records)
            window.covered_from, window.records = item.offset + 1, 0
            continue
        if item.entry is not None:
            evidence.run.records += 1
            window.records += 1
    cut.cover(window.covered_from, window.high, window.records)
    return True


class _Judgement:
    """One item."""

    def __init__(self, window: Window, evidence: Evidence, item: Item) -> None:
        self._window = window
        self._evidence = evidence
        self._run = evidence.run
        self._item = item

    def judge(self) -> None:
        """Findings go to the run; raises _Unjudged."""
        window, item = self._window, self._item
        if item.offset >= window.receipts_to:
            raise _Unjudged("its receipts are not readable")
        if item.offset not in window.receipts:
            self._without_receipt()
            return
        receipt = window.receipts[item.offset]
        if receipt is None:
            self._finding(OrphanKind.RECEIPT_MISSING, "its receipt can't be decoded")
        elif item.entry is None:
            # A redriven dead letter: whoever could read it dispatched it and left a receipt.
            self._redriven(receipt)
        elif receipt.message_id != item.entry.record.message_id:
            self._finding(OrphanKind.RECEIPT_MISSING, "the receipt is of another message")
        elif item.targets is None:
            version = item.entry.record.version
            raise _Unjudged(f"version {version} of its group is not in the store")
        else:
            self._places(receipt, item.targets)

    def _without_receipt(self) -> None:
        item = self._item
        if item.offset >= self._window.checkpoint:
            raise _Unjudged("fanout has not passed it")
        if item.entry is None or item.offset in self._window.dead_letters:
            self._finding(OrphanKind.DEAD_LETTERED, "nobody has dispatched it since")
        else:
            self._finding(OrphanKind.RECEIPT_MISSING, "the checkpoint passed it without a receipt")

    def _redriven(self, receipt: FanoutAuditReceipt) -> None:
        """The audience can't be recomputed: that the named dispatches stand is all there is to see."""
        for at in receipt.shards:
            self._dispatch(receipt, at)

    def _places(self, receipt: FanoutAuditReceipt, targets: Targets) -> None:
        named = [at.shard for at in receipt.shards]
        if sorted(named) != sorted(targets):
            detail = f"shards {sorted(named)}, expected {sorted(targets)}"
            self._finding(OrphanKind.WRONG_SHARD_SET, detail)
            return
        unjudged: _Unjudged | None = None
        for at in receipt.shards:
            try:
                self._place(receipt, at, targets[at.shard])
            except _Unjudged as reason:
                unjudged = reason
        if unjudged is not None:
            raise unjudged

    def _place(self, receipt: FanoutAuditReceipt, at: ReceiptShard, users: tuple[int, ...]) -> None:
        assert self._item.entry is not None
        record = self._item.entry.record
        if at.digest != expected_digest(record, users):
            detail = "the receipt's digest is not that of its record"
            self._finding(OrphanKind.WRONG_DIGEST, detail, at.shard)
            return
        if not self._dispatch(receipt, at) or self._before_bump(receipt, at):
            return
        shard = self._run.shards[at.shard]
        if not shard.passed(at.offset):
            raise _Unjudged(f"mailbox shard {at.shard} has not passed its dispatch")
        if self._progress(at, users) and not shard.trimmed(at.offset):
            for user in users:
                self._entry(at, record, user)

    def _dispatch(self, receipt: FanoutAuditReceipt, at: ReceiptShard) -> bool:
        """Whether the right dispatch stands there, or stood before retention took it; findings otherwise."""
        if not 0 <= at.shard < len(self._run.shards):
            self._finding(OrphanKind.WRONG_SHARD_SET, f"there is no shard {at.shard}", at.shard)
            return False
        if self._before_bump(receipt, at):
            return True
        stored = self._evidence.lookup.get(Topic.DISPATCH, at.shard, at.offset)
        if at.offset < self._run.shards[at.shard].start or stored is Absence.TRIMMED:
            return True
        if stored is None:
            raise _Unjudged(f"dispatch {at.shard} is not readable where its receipt points")
        read = read_dispatch(stored.value) if isinstance(stored, StoredRecord) else None
        if isinstance(read, NewerFormat):
            raise _Unjudged(f"a dispatch of a newer format in shard {at.shard}")
        where = f"at offset {at.offset}"
        missing = OrphanKind.RECORD_WITHOUT_DISPATCH
        if not isinstance(read, Dispatched):
            self._finding(missing, f"nothing readable {where}", at.shard)
        elif read.dispatch.dispatch_id != dispatch_id(receipt.message_id, at.shard):
            self._finding(missing, f"another dispatch {where}", at.shard)
        elif materialisation_digest(read.dispatch) != at.digest:
            self._finding(OrphanKind.WRONG_DIGEST, f"the dispatch {where}", at.shard)
        else:
            return True
        return False

    def _before_bump(self, receipt: FanoutAuditReceipt, at: ReceiptShard) -> bool:
        """The mark counts offsets as they were when it was dispatched: a repair moves records, not when they came."""
        shard = self._run.shards[at.shard]
        return shard.before_bump(self._window.cut.number, receipt.dispatched_under())

    def _progress(self, at: ReceiptShard, users: tuple[int, ...]) -> bool:
        """A progress mark that still stands must agree; its absence means nothing."""
        progress = self._mark(at)
        if progress is None:
            return True
        if progress.digest != at.digest:
            detail = "the shard's progress mark has another digest"
            self._finding(OrphanKind.WRONG_DIGEST, detail, at.shard)
        elif progress.entry_count != len(users) or progress.offset > at.offset:
            detail = (
                f"progress counts {progress.entry_count} entries at offset {progress.offset}, "
                f"expected {len(users)} at or below {at.offset}"
            )
            self._finding(OrphanKind.NOT_MATERIALISED, detail, at.shard)
        else:
            return True
        return False

    def _mark(self, at: ReceiptShard) -> Progress | None:
        assert self._item.entry is not None
        message_id = self._item.entry.record.message_id
        return self._window.progress.get((at.shard, dispatch_id(message_id, at.shard)))

    def _entry(self, at: ReceiptShard, record: MessageRecord, user: int) -> None:
        """Exactly one entry at or below the named offset, since a dispatch is materialised where it stands first."""
        shard = self._run.shards[at.shard]
        highest = shard.seq(at.offset)
        seqs = self._evidence.mailboxes.seqs(
            (at.shard, record.tenant_id, user), record.message_id, highest
        )
        if seqs is None:
            raise _Unjudged(f"mailbox of user {user} in shard {at.shard} is not readable")
        if len(seqs) == 1 and seqs[0] <= highest:
            return
        detail = f"user {user}: entries at {seqs[:3]}, expected one at or below {highest}"
        orphan = Orphan(
            kind=OrphanKind.NOT_MATERIALISED,
            partition=self._window.cut.number,
            offset=self._item.offset,
            shard=at.shard,
            message_id=record.message_id,
            detail=detail,
        )
        progress = self._mark(at)
        if seqs:
            self._run.keep(orphan)
        elif progress is None or not shard.trimmed(progress.offset):
            self._run.suspect(dispatch_id(record.message_id, at.shard), orphan)

    def _finding(self, kind: OrphanKind, detail: str, shard: int = -1) -> None:
        item = self._item
        message_id = item.key if item.entry is None else item.entry.record.message_id
        self._run.orphan(kind, self._window.cut.number, item.offset, message_id, detail, shard)
