"""The walk over the OUTBOX: every offset is a barrier, ineffective, or a record that is judged (outbox_judge.py).

A window of one partition; it moves on whenever everything asked for is answered or given up:

    RECORDS --fetched--> RECEIPTS (and versions) --> PLACES (dispatches and progress marks named)
      --the shards have passed them, or were looked at often enough--> MAILBOXES --> judged, next window
    RECORDS --not readable--> the rest of the partition is left out
"""

from enum import IntEnum
from typing import Any

import msgspec

from qim.core.audit.cuts import take_state
from qim.core.audit.evidence import Evidence
from qim.core.audit.outbox_judge import Item, Window, judge
from qim.core.audit.reads import ProgressOf, Purpose, ReceiptsFrom, RecordsFrom, StateOf, UserKey
from qim.core.contract.entities import decode_receipt
from qim.core.contract.ids import dispatch_id
from qim.core.contract.logvalue import Barrier, NewerFormat, Outboxed, read_outbox
from qim.core.machine import Ms
from qim.core.ports.log import Fetched, StoredRecord, Topic
from qim.core.ports.store_mailbox import ProgressRead, ReadProgress, ReadShardState
from qim.core.ports.store_source import ReadSource, SourceRead
from qim.core.position import record_digest


class _Phase(IntEnum):
    RECORDS = 0
    RECEIPTS = 1
    PLACES = 2
    MAILBOXES = 3


class OutboxWalk:
    """Partition by partition, window by window."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._number = 0
        self._phase = _Phase.RECORDS
        self._window: Window | None = None

    def advance(self, now: Ms) -> bool:
        """Queue the next reads, or judge; False when every partition was walked."""
        window = self._window
        if window is None:
            return self._begin()
        match self._phase:
            case _Phase.RECORDS:
                if self._read(window):
                    self._ask_receipts(window)
                    self._phase = _Phase.RECEIPTS
            case _Phase.RECEIPTS:
                self._ask_places(window)
                self._phase = _Phase.PLACES
            case _Phase.PLACES:
                if not self._look_again(window, now):
                    self._evidence.mailboxes.want(self._recipients(window))
                    self._phase = _Phase.MAILBOXES
            case _:
                if judge(window, self._evidence):
                    self._window = None
        return True

    def take(self, purpose: Purpose, reply: Any) -> None:
        """One answer."""
        window = self._window
        assert window is not None
        match purpose:
            case RecordsFrom():
                if isinstance(reply, Fetched):
                    window.fetched = reply.records
            case ReceiptsFrom():
                self._take_receipts(window, reply)
            case ProgressOf():
                self._take_progress(window, purpose, reply)
            case _:
                assert isinstance(purpose, StateOf), purpose
                take_state(self._evidence.run, purpose, reply)

    def _begin(self) -> bool:
        """The next window; windows follow one another because the filter is a function of the prefix."""
        evidence = self._evidence
        evidence.lookup.clear()
        while self._number < len(evidence.run.partitions):
            cut = evidence.run.partitions[self._number]
            if cut.initial_epoch is None:
                why = "the barriers below it are not known"
                evidence.run.left_out(f"outbox {cut.number}", why)
            elif cut.walked_to < cut.end:
                low = cut.walked_to
                self._window = Window(cut=cut, low=low, high=low, receipts_to=low, covered_from=low)
                self._phase = _Phase.RECORDS
                request = evidence.window(Topic.OUTBOX, cut.number, low, cut.end)
                evidence.reads.ask(request, RecordsFrom(Topic.OUTBOX, cut.number, low))
                return True
            self._number += 1
        return False

    def _read(self, window: Window) -> bool:
        """Sort out the records fetched; False where there are none, and the partition ends here."""
        cut = window.cut
        for stored in window.fetched:
            if stored.offset != window.high or stored.offset >= cut.end:
                break
            if not self._admit(window, stored):
                self._leave_rest(window, "a newer format than this auditor's", cut.walked_to)
                return bool(window.items) or window.high > window.low
            window.high = cut.walked_to = stored.offset + 1
        if window.high == window.low:
            self._leave_rest(window, "not readable", window.low)
            return False
        return True

    def _leave_rest(self, window: Window, why: str, low: int) -> None:
        cut = window.cut
        self._evidence.run.left_out(f"outbox {cut.number}", why, low, cut.end)
        self._number += 1
        if window.high == window.low:
            self._window = None

    def _admit(self, window: Window, stored: StoredRecord) -> bool:
        """False: a newer format, behind which nothing can be judged (it may be a barrier)."""
        cut = window.cut
        match read_outbox(stored.value):
            case Outboxed() as entry:
                if entry.epoch >= cut.epoch_before(stored.offset):
                    window.items.append(Item(offset=stored.offset, key=stored.key, entry=entry))
            case Barrier() as barrier:
                cut.passed_barrier(stored.offset, barrier.epoch)
            case NewerFormat():
                return False
            case _:
                window.items.append(Item(offset=stored.offset, key=stored.key, entry=None))
        return True

    def _ask_receipts(self, window: Window) -> None:
        cut = window.cut
        self._evidence.walked[cut.number] = record_digest(
            window.fetched[window.high - window.low - 1]
        )
        self._ask_receipt_page(window, window.low)
        self._evidence.versions.want(
            (cut.number, item.entry.record) for item in window.items if item.entry is not None
        )

    def _ask_receipt_page(self, window: Window, low: int) -> None:
        request = ReadSource(
            op=0,
            partition=window.cut.number,
            low=low,
            high=window.high,
            limit=self._evidence.config.window_records_max,
        )
        self._evidence.reads.ask(request, ReceiptsFrom(window.cut.number, low))

    def _take_receipts(self, window: Window, reply: SourceRead) -> None:
        """The checkpoint counts that stood in the same script as the rows: a lost tail takes both or neither."""
        self._evidence.run.reset |= not window.cut.seen_in(reply.incarnation)
        first = window.receipts_to == window.low
        window.checkpoint = reply.checkpoint if first else min(window.checkpoint, reply.checkpoint)
        window.cut.lost = reply.lost
        for offset, encoded in reply.receipts:
            try:
                window.receipts[offset] = decode_receipt(encoded)
            except (msgspec.DecodeError, msgspec.ValidationError):
                window.receipts[offset] = None
        window.dead_letters.update(reply.dead_letters)
        rows = (*reply.receipts[-1:], *reply.dead_letters[-1:])
        if not reply.more:
            window.receipts_to = window.high
        elif rows:
            window.receipts_to = max(offset for offset, _ in rows) + 1
            self._ask_receipt_page(window, window.receipts_to)

    def _ask_places(self, window: Window) -> None:
        evidence = self._evidence
        named: dict[int, list[int]] = {}
        marks: dict[int, list[bytes]] = {}
        for item in window.items:
            receipt = window.receipts.get(item.offset)
            if receipt is None:
                continue
            if item.entry is not None:
                item.targets = evidence.versions.targets(item.entry.record)
            source = receipt.dispatched_under()
            for place in receipt.shards:
                if not 0 <= place.shard < len(evidence.run.shards):
                    continue
                if evidence.run.shards[place.shard].before_bump(window.cut.number, source):
                    continue
                window.needed[place.shard] = max(window.needed.get(place.shard, -1), place.offset)
                marks.setdefault(place.shard, []).append(
                    dispatch_id(receipt.message_id, place.shard)
                )
                if place.offset >= evidence.run.shards[place.shard].start:
                    named.setdefault(place.shard, []).append(place.offset)
        for shard, offsets in sorted(named.items()):
            evidence.lookup.want(Topic.DISPATCH, shard, offsets)
        for shard, ids in sorted(marks.items()):
            self._ask_progress(shard, ids)

    def _ask_progress(self, shard: int, ids: list[bytes]) -> None:
        state = self._evidence.run.shards[shard]
        step = self._evidence.config.window_records_max
        if state.min_watermark < 0:
            return
        for first in range(0, len(ids), step):
            page = tuple(ids[first : first + step])
            request = ReadProgress(
                op=0, shard=shard, incarnation=state.incarnation, dispatch_ids=page
            )
            self._evidence.reads.ask(request, ProgressOf(shard, page))

    def _take_progress(self, window: Window, asked: ProgressOf, reply: ProgressRead) -> None:
        for one, progress in zip(asked.dispatch_ids, reply.progress, strict=True):
            if progress is not None:
                window.progress[asked.number, one] = progress

    def _look_again(self, window: Window, now: Ms) -> bool:
        """Dispatches that came after the cut may stand where their shard has not been yet: wait a bounded while."""
        evidence = self._evidence
        behind = [
            number
            for number, offset in sorted(window.needed.items())
            if not evidence.run.shards[number].passed(offset)
        ]
        if not behind or window.looks >= evidence.config.attempts_max:
            return False
        window.looks += 1
        at = now + (evidence.config.retry_ms if window.looks > 1 else 0)
        for number in behind:
            evidence.reads.ask_at(at, ReadShardState(op=0, shard=number), StateOf(number))
        return True

    def _recipients(self, window: Window) -> list[UserKey]:
        return [
            (shard, item.entry.record.tenant_id, user)
            for item in window.items
            if item.entry is not None
            for shard, users in (item.targets or {}).items()
            if self._evidence.run.shards[shard].min_watermark >= 0
            for user in users
        ]
