"""OPEN: the only way to serve a shard (pipeline.md §1.6). Each step waits for the answer of the one before.

LeaseHeld (a)  --> OpenShard (b) --> ReadEnds --> ReadLease
OpenShard      --> the archive's position, where the store knows nothing of the log --> ReadEnds
ReadEnds       --> Fetch: the record before ``applied`` is the one that was applied (tail.py) --> ReadLease
ReadEnds       --> the archive restores what the log has not any more (restoring.py) --> ReadLease
ReadLease      --> barrier (c)          only while no epoch but ours is granted
barrier        --> RegisterBarrier --> Fetch
Fetch          --> ApplyOutbox (d) --> Fetch, until the barrier is reached: the last one marks the shard as whole
barrier reached --> the pending index is finished (e), then SERVING (f): finishing.py

Whatever is learnt here dies with the attempt: a fresh epoch starts at (a). It never serves a shard whose log begins
above what the store has applied, and never skips a record it cannot read.
"""

from typing import Final

from qim.core.contract.logvalue import (
    Barrier,
    NewerFormat,
    Outboxed,
    Undecodable,
    barrier_value,
    read_outbox,
)
from qim.core.ports.archive import ArchivedConversationsRead
from qim.core.ports.completion import FailReason
from qim.core.ports.local import LeaseHeld
from qim.core.ports.log import (
    Append,
    Appended,
    EndsRead,
    Fetch,
    Fetched,
    LogRecord,
    OutOfRange,
    ReadEnds,
    StoredRecord,
    Topic,
)
from qim.core.ports.registry import LeaseRead, ReadLease, RegisterBarrier
from qim.core.ports.store_message import AppliedRecord, ApplyOutbox, OpenShard, ShardOpened
from qim.core.position import record_digest
from qim.core.writer.finishing import Finishing
from qim.core.writer.freeze import applied_record
from qim.core.writer.lifecycle import refresh, restart, stop
from qim.core.writer.orders import Call, Handler, Orders, Pending
from qim.core.writer.restoring import Restoring
from qim.core.writer.shard import OPENING, REFRESHING, Shard
from qim.core.writer.tail import confirmed, other_record, read_before, truncated
from qim.core.writer.trimming import Trimming
from qim.core.writer.vocabulary import Answer

NO_LIMIT: Final = 2**63 - 1
APPLY_ARGS: Final = 24
"""Script arguments one restored record costs besides its changed users; an upper estimate."""


class Opening:
    """Walks shards from LeaseHeld to SERVING; keeps nothing of its own, the walk is in the shard."""

    def __init__(self, orders: Orders, trimming: Trimming) -> None:
        self._orders: Final = orders
        self.finishing: Final = Finishing(orders, trimming)
        self.restoring: Final = Restoring(orders, self._ask_lease_at_start)

    def by_call(self) -> dict[Call, Handler]:
        """Which step goes on with the answer to what was asked."""
        return {
            Call.OPEN: self.on_open,
            Call.ENDS: self.on_ends,
            Call.BEFORE: self.on_before,
            Call.LEASE: self.on_lease,
            Call.BARRIER: self.on_barrier,
            Call.REGISTER: self.on_register,
            Call.FETCH: self.on_fetch,
            Call.APPLY: self.on_apply,
            Call.PENDING: self.finishing.on_pending,
            Call.ARCHIVED: self.on_archived,
            Call.BELOW: self.restoring.on_below,
            Call.INTENTS: self.restoring.on_intents,
            Call.CONVERSATIONS: self.restoring.on_conversations,
            Call.RESTORE: self.restoring.on_restored,
        }

    # ------------------------------------------------------------- (a), (b)

    def begin(self, shard: Shard, held: LeaseHeld) -> None:
        """A fresh epoch: forget pending work, raise the fence."""
        orders = self._orders
        if shard.stage is not REFRESHING:
            # In between the log was not ours: an operator may have filled it up.
            shard.confirmed = 0
        restart(orders, shard)
        shard.move(OPENING)
        shard.epoch = held.epoch
        orders.count("shard_open")
        op = orders.next_op()
        request = OpenShard(
            op=op,
            shard=shard.number,
            epoch=shard.epoch,
            fresh_key=orders.opener.fresh_key(shard.number, shard.epoch, op),
            opener=orders.opener.name,
        )
        orders.ask(Call.OPEN, shard, request)

    def on_open(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """The incarnation of this OPEN, and how far the outbox is in the store."""
        assert isinstance(answer, ShardOpened)
        shard.incarnation = answer.incarnation
        shard.walk.applied = answer.applied
        shard.walk.before = answer.before
        shard.walk.filter.epoch = answer.filter_epoch
        self._orders.clock.raise_above(answer.hlc_floor)
        if answer.filter_epoch >= shard.epoch:
            refresh(self._orders, shard, "filter_above", answer.filter_epoch)
        elif self._orders.config.tiered and not answer.applied:
            self.restoring.ask_position(shard)
        else:
            self._ask_ends(shard)

    def on_archived(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Asked before the log's ends: what is archived meanwhile stands below the ends that are read then."""
        assert isinstance(answer, ArchivedConversationsRead)
        shard.walk.archived = answer.position
        self._ask_ends(shard)

    def _ask_ends(self, shard: Shard) -> None:
        op = self._orders.next_op()
        self._orders.ask(
            Call.ENDS, shard, ReadEnds(op=op, topic=Topic.OUTBOX, partition=shard.number)
        )

    def on_ends(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Can the log restore at all what this store lacks?"""
        assert isinstance(answer, EndsRead)
        applied, shard.walk.log_start = shard.walk.applied, answer.start
        if shard.walk.archived > answer.end:
            # Another log than the archive's, or one cut short. Once longer, it would pass for archived (§1.8).
            detail = (
                f"outbox {shard.number}: archive at {shard.walk.archived}, log ends at {answer.end}"
            )
            stop(self._orders, shard, "outbox_truncated", detail)
        elif answer.start > applied:
            self.restoring.behind(shard, answer.start)
        elif applied > answer.end:
            truncated(self._orders, shard, f"store applied {applied}, log ends at {answer.end}")
        elif shard.walk.before and applied > answer.start:
            read_before(self._orders, shard)
        else:
            # Retention may have taken the barrier that voids the first records; the registry kept it (§1.7).
            self._ask_lease(shard, answer.start if applied == answer.start else NO_LIMIT)

    def on_before(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Is what was applied still what stands there?"""
        if isinstance(answer, Fetched):
            self._ask_lease(shard, NO_LIMIT)
            return
        assert isinstance(answer, OutOfRange)
        if answer.other_record:
            other_record(self._orders, shard, shard.walk.applied)
        else:
            # The log moved since its ends were read: they decide again.
            self._ask_ends(shard)

    def _ask_lease(self, shard: Shard, barriers_below: int) -> None:
        op = self._orders.next_op()
        request = ReadLease(op=op, resource=shard.resource, barriers_below=barriers_below)
        self._orders.ask(Call.LEASE, shard, request)

    def _ask_lease_at_start(self, shard: Shard) -> None:
        self._ask_lease(shard, shard.walk.log_start)

    def on_lease(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Asked AFTER OpenShard answered: no OpenShard of a lower epoch than any granted goes further."""
        assert isinstance(answer, LeaseRead)
        assert isinstance(pending.request, ReadLease)
        if answer.epoch != shard.epoch:
            refresh(self._orders, shard, "epoch_moved", max(answer.epoch, shard.epoch))
            return
        if answer.barrier_epoch >= shard.epoch and answer.barrier_offset != shard.walk.barrier:
            refresh(self._orders, shard, "barrier_above", answer.barrier_epoch)
            return
        if pending.request.barriers_below != NO_LIMIT and answer.barrier_offset >= 0:
            shard.walk.filter.epoch = max(shard.walk.filter.epoch, answer.barrier_epoch)
        if shard.walk.barrier >= 0:
            # Retention overtook the walk behind its barrier, and the archive stood in.
            self._advance(shard)
        else:
            shard.walk.barrier_due = True

    # ------------------------------------------------------------- (c)

    def flush(self, shard: Shard) -> None:
        """At the end of a step: the barrier once no older append is in flight, or what finishes the pending index."""
        walk = shard.walk
        if walk.barrier_due and shard.append_busy is None:
            walk.barrier_due = False
            op = self._orders.next_op()
            record = LogRecord(key=b"", value=barrier_value(shard.epoch))
            request = Append(
                op=op,
                topic=Topic.OUTBOX,
                partition=shard.number,
                epoch=shard.epoch,
                records=(record,),
            )
            self._orders.ask(Call.BARRIER, shard, request)
        else:
            self.finishing.flush(shard)

    def on_barrier(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """It stands at b: a late append of any lower epoch lands behind it and means nothing."""
        if not isinstance(answer, Appended):
            stop(self._orders, shard, "barrier_refused", f"outbox {shard.number}: {answer}")
            return
        self._orders.clock.compare(pending.asked_wall, answer.append_time)
        walk = shard.walk
        shard.confirmed = max(shard.confirmed, walk.applied)
        if not confirmed(self._orders, shard, answer.offsets):
            return
        walk.barrier = answer.offsets[0]
        walk.barrier_time = answer.append_time
        walk.fetched = walk.applied
        op = self._orders.next_op()
        request = RegisterBarrier(
            op=op,
            resource=shard.resource,
            epoch=shard.epoch,
            offset=walk.barrier,
            log_start=walk.log_start,
        )
        self._orders.ask(Call.REGISTER, shard, request)

    def on_register(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Beside the lease for whoever starts when retention has taken it."""
        self._advance(shard)

    # ------------------------------------------------------------- (d)

    def _advance(self, shard: Shard) -> None:
        walk, config = shard.walk, self._orders.config
        if walk.records:
            self._apply(shard)
        elif walk.applied >= walk.barrier:
            if walk.whole:
                self.finishing.read_page(shard)
            else:
                self._order_apply(shard, walk.applied, ())
        else:
            op = self._orders.next_op()
            request = Fetch(
                op=op,
                topic=Topic.OUTBOX,
                partition=shard.number,
                offset=walk.fetched,
                limit=config.fetch_records_max,
                bytes_max=config.fetch_bytes_max,
                wait_ms=config.retry_delay_max_ms,
                before=walk.before,
            )
            self._orders.ask(Call.FETCH, shard, request)

    def on_fetch(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """The next stretch of [applied, b)."""
        walk = shard.walk
        if isinstance(answer, OutOfRange):
            if answer.other_record:
                other_record(self._orders, shard, walk.fetched)
            else:
                self.restoring.begin(shard, answer.start)
            return
        assert isinstance(answer, Fetched)
        if not answer.records:
            # The barrier stands beyond, so the log owes us records: a short fetch, asked again.
            self._orders.retry(pending)
            return
        if answer.records[0].offset > walk.fetched:
            self.restoring.begin(shard, answer.records[0].offset)
            return
        for record in answer.records:
            if walk.fetched <= record.offset < walk.barrier:
                walk.records.append(record)
                walk.fetched = record.offset + 1
        if walk.records:
            walk.before = record_digest(walk.records[-1])
        self._advance(shard)

    def _apply(self, shard: Shard) -> None:
        """One batch bounded by count, arguments and bytes; it moves ``applied`` also when it restores nothing."""
        walk, config, orders = shard.walk, self._orders.config, self._orders
        batch: list[AppliedRecord] = []
        position, args, size = walk.applied, 0, 0
        last: StoredRecord | None = None
        while walk.records and len(batch) < config.apply_records_max:
            raw = walk.records[0]
            entry = read_outbox(raw.value)
            if isinstance(entry, NewerFormat):
                detail = f"outbox {shard.number} offset {raw.offset}: format {entry.version}"
                stop(orders, shard, "outbox_newer_format", detail)
                return
            if isinstance(entry, Outboxed):
                users = len(entry.record.delta.users) if entry.record.delta is not None else 0
                args, size = args + APPLY_ARGS + users, size + len(raw.value)
                if batch and (args > config.apply_args_max or size > config.apply_bytes_max):
                    break
            if isinstance(entry, Undecodable):
                orders.count("outbox_undecodable")
            elif not self._admit(shard, raw.offset, entry, batch):
                return
            walk.records.popleft()
            position, last = raw.offset + 1, raw
        before = record_digest(last) if last is not None else b""
        self._order_apply(shard, position, tuple(batch), before)

    def _admit(
        self, shard: Shard, offset: int, entry: Barrier | Outboxed, batch: list[AppliedRecord]
    ) -> bool:
        if entry.epoch >= shard.epoch:
            # Ours come after our barrier: this is of another owner, of an epoch that the registry has granted twice.
            refresh(self._orders, shard, "barrier_above", entry.epoch)
            return False
        effective = shard.walk.filter.admits(entry)
        if isinstance(entry, Outboxed):
            self._orders.clock.raise_above(entry.record.message_id)
            if effective:
                batch.append(applied_record(offset, entry.stored, entry.record))
            else:
                self._orders.count("outbox_ineffective")
        return True

    def _order_apply(
        self, shard: Shard, to: int, batch: tuple[AppliedRecord, ...], before: bytes = b""
    ) -> None:
        orders = self._orders
        op = orders.next_op()
        request = ApplyOutbox(
            op=op,
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            # A clock ahead would leave out commits that their clients may still repeat.
            now_wall=min(orders.clock.wall(orders.now), shard.walk.barrier_time),
            applied_from=shard.walk.applied,
            applied_to=to,
            filter_epoch=shard.walk.filter.epoch,
            records=batch,
            whole=to >= shard.walk.barrier,
            before=before,
        )
        orders.ask(Call.APPLY, shard, request)

    def on_apply(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """``applied`` stands where the batch ended."""
        assert isinstance(pending.request, ApplyOutbox)
        shard.walk.applied = pending.request.applied_to
        shard.walk.whole = pending.request.whole
        self._orders.count("outbox_restored", len(pending.request.records))
        self._advance(shard)

    # ------------------------------------------------------------- stops

    def failed(self, shard: Shard, call: Call, why: FailReason) -> bool:
        """Two failures no retry can mend. True: the shard is stopped."""
        if call is Call.OPEN and why is FailReason.KEYSPACE_UNMARKED:
            # With data but no incarnation key it is somebody else's or damaged: never mark it.
            stop(self._orders, shard, "keyspace_unmarked", f"writer shard {shard.number}")
            return True
        if call is Call.APPLY and why is FailReason.INVALID:
            detail = f"writer shard {shard.number}: from {shard.walk.applied} on, a version before is not there"
            stop(self._orders, shard, "version_missing", detail)
            return True
        return False
