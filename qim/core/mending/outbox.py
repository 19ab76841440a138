"""An outbox partition that lost committed records, filled up and published again from hot store and facts (pipeline.md §7).

    leases of writer, fanout, archiver --> facts compared with the log: what it lacks, and from where on it differs
    --> barriers up to where positions and floors stood, so that no offset means two things
    --> lost records that were dispatched, published again, their receipts moved to where they stand now
    --> records nobody dispatched since, dispatched --> fanout and archiver put behind all these
    --> lost records that were not dispatched, published again: fanout takes them from there --> leases given back

What retention or an audit took out of the facts was covered and needs nothing. Run again after a stop, it finds in the log
what it had published.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from qim.core.contract.entities import (
    CommitAuditFact,
    CommitState,
    FanoutAuditReceipt,
    decode_stored_record,
    encode_receipt,
)
from qim.core.contract.hashing import H
from qim.core.contract.logvalue import Barrier, Outboxed, barrier_value, outbox_value
from qim.core.effective import EffectiveFilter
from qim.core.mending import applied, source
from qim.core.mending.asking import (
    NotMended,
    Procedure,
    ask,
    barrier_below,
    ends,
    fetch,
    leased,
    read,
    record_at,
)
from qim.core.mending.audits import end_audits
from qim.core.mending.dead_letters import dispatched
from qim.core.mending.source import Evidence
from qim.core.ports.archive import ArchivedConversationsRead, ReadArchivedConversations
from qim.core.ports.log import Append, Appended, EndsRead, LogRecord, StoredRecord, Topic
from qim.core.ports.registry import BarrierRegistered, RegisterBarrier, Resource, Role
from qim.core.ports.store_history import (
    ArchiveCommitted,
    ArchiveOpened,
    ArchivePositionRead,
    CommitArchive,
    OpenArchive,
    ReadArchivePosition,
)
from qim.core.ports.store_message import (
    BodiesRead,
    FactsRead,
    ReadBodies,
    ReadFacts,
)
from qim.core.ports.store_operator import HotRead, ReadHot
from qim.core.position import Verdict, judge_ends, judge_predecessor

BATCH_RECORDS: Final = 256
BATCH_BYTES: Final = 512 * 1024
FACTS_PAGE: Final = 1_000
BODIES_PAGE: Final = 64
HOT_PAGE: Final = 256
PADDING_MAX: Final = 1_000_000
"""Barriers a run will append: more are a day's work of a log, and a question for a person."""
_COMMITTED: Final = int(CommitState.COMMITTED)


class OutboxPlan(Struct, frozen=True, kw_only=True):
    """What the log lacks. ``differs_from``: the first offset at which it is not the log of the facts; equal to its end
    where only its tail is gone. ``unreadable``: lost and no longer hot, so only the archive has them, if it has."""

    partition: int
    log_start: int
    log_end: int
    applied: int
    checkpoint: int
    archived: int
    differs_from: int
    lost_dispatched: int
    lost_undispatched: int
    unreadable: tuple[str, ...]
    padding: int
    trusted: bool
    applied_repair: bool = False
    republished: int = 0
    redispatched: int = 0

    def nothing(self) -> bool:
        """The log has everything that stands in the facts, and ends behind every position."""
        behind = max(self.applied, self.checkpoint, self.archived) <= self.log_end
        return (
            self.trusted
            and behind
            and not (self.lost_dispatched or self.lost_undispatched or self.unreadable)
        )


class _Lost(Struct):
    """A committed message the log doesn't have: where it stood, its fact or its stored record, or both."""

    offset: int
    fact: CommitAuditFact | None = None
    stored: bytes | None = None

    def message_id(self) -> bytes:
        if self.fact is not None:
            return self.fact.message_id
        assert self.stored is not None
        return decode_stored_record(self.stored).message_id


class _Found(Struct):
    """The log as it is, in the light of the facts."""

    log: EndsRead
    known: Evidence
    archived: int
    """Where the archiver's position stands; ``kept``: where the archive says to be, which outlives the hot store."""
    kept: int
    trusted: bool
    differs_from: int
    effective: dict[bytes, tuple[int, StoredRecord]]
    lost: list[_Lost]


class OutboxRepair:
    """One run for one partition. ``tiered``: the archiver's position is put too."""

    def __init__(
        self,
        partition: int,
        shard_count: int,
        *,
        owner: str,
        address: str,
        fresh_key: bytes,
        tiered: bool,
    ) -> None:
        self._partition = partition
        self._shard_count = shard_count
        self._owner = owner
        self._address = address
        self._fresh_key = fresh_key
        self._tiered = tiered

    def planned(self) -> Procedure[OutboxPlan]:
        """A look that writes nothing."""
        found = yield from self._look()
        bodies = yield from self._bodies(found.lost)
        return self._plan(found, bodies)

    def applied(self) -> Procedure[OutboxPlan]:
        """The whole of it, while we hold the leases of the partition."""
        roles = [Role.WRITER, Role.FANOUT, *([Role.ARCHIVER] if self._tiered else [])]

        def holding(left: Sequence[Role], epochs: dict[Role, int]) -> Procedure[OutboxPlan]:
            if not left:
                return self._do(epochs)
            resource = Resource(role=left[0], number=self._partition)
            return leased(
                resource,
                self._owner,
                self._address,
                lambda epoch: holding(left[1:], epochs | {left[0]: epoch}),
            )

        return (yield from holding(roles, {}))

    # ------------------------------------------------------------ looking

    def _look(self) -> Procedure[_Found]:
        partition = self._partition
        log = yield from ends(Topic.OUTBOX, partition)
        known = yield from source.evidence(partition)
        archived = kept = 0
        if self._tiered:
            request = ReadArchivePosition(op=0, partition=partition)
            archived = max(0, (yield from ask(request, ArchivePositionRead)).offset)
            own = ReadArchivedConversations(op=0, partition=partition, after=b"", limit=0)
            kept = (yield from ask(own, ArchivedConversationsRead)).position
        verdict = yield from self._judged(log, known)
        effective, keys = yield from self._walk(log)
        lost: dict[bytes, _Lost] = {}
        differs_from, matched_to = log.end, log.start
        for fact in (yield from self._facts()):
            if fact.outbox_offset < log.start and fact.message_id not in effective:
                continue  # retention took it; what it took was archived and delivered
            if keys.get(fact.outbox_offset) != fact.message_id:
                differs_from = min(differs_from, fact.outbox_offset)
            elif fact.outbox_offset < differs_from:
                matched_to = fact.outbox_offset + 1
            if fact.message_id not in effective:
                lost[fact.message_id] = _Lost(offset=fact.outbox_offset, fact=fact)
        if verdict is not Verdict.TRUSTED:
            # Barriers alone may differ, which no fact tells: nothing above the last record that matches is believed.
            differs_from = min(differs_from, matched_to)
        if verdict is not Verdict.TRUSTED or known.applied > log.end or archived > log.end:
            # Facts behind an audit are gone; what it covered was delivered, but the archive may not have it yet.
            low = min(max(known.checkpoint, 0), archived) if self._tiered else known.checkpoint
            yield from self._add_hot(max(low, 0), effective, lost)
        return _Found(
            log=log,
            known=known,
            archived=archived,
            kept=kept,
            trusted=verdict is Verdict.TRUSTED,
            differs_from=max(differs_from, log.start),
            effective=effective,
            lost=sorted(lost.values(), key=lambda one: one.offset),
        )

    def _add_hot(
        self, low: int, effective: dict[bytes, tuple[int, StoredRecord]], lost: dict[bytes, _Lost]
    ) -> Procedure[None]:
        """Committed records of the hot store from an offset on that the log doesn't have."""
        while True:
            request = ReadHot(op=0, shard=self._partition, low=low, limit=HOT_PAGE)
            page = yield from ask(request, HotRead)
            for offset, stored in page.rows:
                low = offset + 1
                message_id = decode_stored_record(stored).message_id
                if message_id in effective:
                    continue
                if message_id in lost:
                    lost[message_id].stored = stored
                else:
                    lost[message_id] = _Lost(offset=offset, stored=stored)
            if not page.more or not page.rows:
                return

    def _judged(self, log: EndsRead, known: Evidence) -> Procedure[Verdict]:
        """Fanout's position, as fanout itself judges it at its open; then the writer's, as OPEN does."""
        if known.checkpoint < 0:
            return (yield from applied.judged(log, known))
        position = (yield from source.opened(self._partition, self._fresh_key)).position
        verdict = judge_ends(position, log.topic_id, log.start, log.end)
        if verdict is Verdict.NEEDS_PREDECESSOR:
            before = yield from record_at(Topic.OUTBOX, self._partition, position.offset - 1)
            if before is None:
                raise NotMended(
                    f"outbox {self._partition} is not readable at {position.offset - 1}"
                )
            verdict = judge_predecessor(position, before)
        if verdict is not Verdict.TRUSTED:
            return verdict
        return (yield from applied.judged(log, known))

    def _facts(self) -> Procedure[list[CommitAuditFact]]:
        """COMMITTED ones, in the order in which they were published."""
        found: list[CommitAuditFact] = []
        after = b""
        while True:
            request = ReadFacts(op=0, shard=self._partition, after=after, limit=FACTS_PAGE)
            page = yield from ask(request, FactsRead)
            found += [one for one in page.facts if one.state == _COMMITTED]
            if not page.more or not page.facts:
                return sorted(found, key=lambda one: one.outbox_offset)
            after = page.facts[-1].message_id

    def _walk(
        self, log: EndsRead
    ) -> Procedure[tuple[dict[bytes, tuple[int, StoredRecord]], dict[int, bytes]]]:
        """Effective records by message_id, and what stands at each offset."""
        effective: dict[bytes, tuple[int, StoredRecord]] = {}
        keys: dict[int, bytes] = {}
        offset = log.start
        passed = EffectiveFilter((yield from barrier_below(self._partition, log.start)))
        while offset < log.end:
            records = yield from fetch(Topic.OUTBOX, self._partition, offset)
            if not records:
                raise NotMended(f"outbox {self._partition} is not readable at {offset}")
            for stored in records:
                offset = stored.offset + 1
                entry = read(stored)
                if isinstance(entry, Barrier | Outboxed) and passed.admits(entry):
                    assert isinstance(entry, Outboxed)
                    keys[stored.offset] = entry.record.message_id
                    effective[entry.record.message_id] = (stored.offset, stored)
        return effective, keys

    def _bodies(self, lost: Sequence[_Lost]) -> Procedure[dict[bytes, bytes]]:
        """Stored records that are still hot, by message_id."""
        found = {one.message_id(): one.stored for one in lost if one.stored is not None}
        facts = [one.fact for one in lost if one.fact is not None and one.stored is None]
        for first in range(0, len(facts), BODIES_PAGE):
            page = facts[first : first + BODIES_PAGE]
            names = tuple((f.conversation_id, f.conversation_seq, f.message_id) for f in page)
            reply = yield from ask(ReadBodies(op=0, names=names), BodiesRead)
            for fact, stored in zip(page, reply.stored, strict=True):
                if stored is not None:
                    found[fact.message_id] = stored
        return found

    def _plan(self, found: _Found, bodies: dict[bytes, bytes]) -> OutboxPlan:
        receipted = {one.message_id for one in found.known.receipts.values()}
        lost = [one.message_id() for one in found.lost if one.message_id() in bodies]
        dispatched_before = sum(one in receipted for one in lost)
        reached = [one.offset + 1 for one in found.lost]
        archived = max(found.archived, found.kept)
        stood = max([found.known.applied, found.known.checkpoint, archived, *reached])
        return OutboxPlan(
            partition=self._partition,
            log_start=found.log.start,
            log_end=found.log.end,
            applied=found.known.applied,
            checkpoint=found.known.checkpoint,
            archived=archived,
            differs_from=found.differs_from,
            lost_dispatched=dispatched_before,
            lost_undispatched=len(lost) - dispatched_before,
            unreadable=tuple(
                one.message_id().hex() for one in found.lost if one.message_id() not in bodies
            ),
            padding=max(0, stood - found.log.end),
            trusted=found.trusted,
        )

    # ------------------------------------------------------------ mending

    def _do(self, epochs: dict[Role, int]) -> Procedure[OutboxPlan]:
        epoch = epochs[Role.WRITER]
        found = yield from self._look()
        bodies = yield from self._bodies(found.lost)
        plan = self._plan(found, bodies)
        if plan.nothing():
            return plan
        if plan.padding > PADDING_MAX:
            raise NotMended(
                f"outbox {self._partition} would need {plan.padding} barriers to come to where it stood, more than "
                f"{PADDING_MAX}: put back the log that belongs to the store instead"
            )
        receipts = {one.message_id: one for one in found.known.receipts.values()}
        written_over = [
            offset
            for message_id, (offset, _) in found.effective.items()
            if found.differs_from <= offset < found.archived and message_id not in receipts
        ]
        if written_over:
            raise NotMended(
                f"outbox {self._partition}: {len(written_over)} records stand where others had been archived (the first at "
                f"{min(written_over)}): a log was written to after it had lost records. Put back the log that belongs to the "
                "store, or report it"
            )
        yield from end_audits(self._partition, self._fresh_key)
        yield from self._pad(epoch, plan.padding)
        lost = [one.message_id() for one in found.lost if one.message_id() in bodies]
        before = [bodies[one] for one in lost if one in receipts]
        yield from self._publish(epoch, before)
        redispatched = 0
        yield from self._remember(found, plan)
        if max(found.known.checkpoint, 0) > found.differs_from:
            redispatched = yield from self._settle(found, receipts)
        if self._tiered:
            yield from self._put_archiver(epochs[Role.ARCHIVER], found)
        after = [bodies[one] for one in lost if one not in receipts]
        yield from self._publish(epoch, after)
        yield from applied.told(found.log, found.known, epoch, self._fresh_key)
        yield from source.woken(self._partition)
        return msgspec.structs.replace(
            plan,
            applied_repair=True,
            republished=len(before) + len(after),
            redispatched=redispatched,
        )

    def _remember(self, found: _Found, plan: OutboxPlan) -> Procedure[None]:
        """Which offsets stood for other records: dispatches of these name them still, and the audit must know."""
        if found.known.checkpoint < 0:
            return
        opened = yield from source.opened(self._partition, self._fresh_key)
        lost = (found.differs_from, found.log.end + max(plan.padding, 1))
        yield from source.amend(opened, opened.position, opened.filter_epoch, lost=lost)

    def _pad(self, epoch: int, count: int) -> Procedure[None]:
        """At least one barrier: whatever a dead owner appends late means nothing behind it."""
        left = max(count, 1)
        first = True
        while left:
            batch = min(left, BATCH_RECORDS)
            records = (LogRecord(key=b"", value=barrier_value(epoch)),) * batch
            offsets = yield from self._append(epoch, records)
            left -= batch
            if first:
                first = False
                request = RegisterBarrier(
                    op=0,
                    resource=Resource(role=Role.WRITER, number=self._partition),
                    epoch=epoch,
                    offset=offsets[0],
                )
                yield from ask(request, BarrierRegistered)

    def _publish(self, epoch: int, stored: Sequence[bytes]) -> Procedure[None]:
        """In the order in which they stood: within a conversation that is the order of seq."""
        batch: list[LogRecord] = []
        size = 0
        for one in stored:
            value = outbox_value(epoch, one)
            entry = read(StoredRecord(offset=0, append_time=0, key=b"", value=value))
            if not isinstance(entry, Outboxed):
                raise NotMended("the hot store holds a record that this version can't read")
            if batch and (len(batch) == BATCH_RECORDS or size + len(value) > BATCH_BYTES):
                yield from self._append(epoch, tuple(batch))
                batch, size = [], 0
            batch.append(LogRecord(key=entry.record.message_id, value=value))
            size += len(value)
        if batch:
            yield from self._append(epoch, tuple(batch))

    def _append(self, epoch: int, records: tuple[LogRecord, ...]) -> Procedure[tuple[int, ...]]:
        request = Append(
            op=0, topic=Topic.OUTBOX, partition=self._partition, epoch=epoch, records=records
        )
        return (yield from ask(request, Appended)).offsets

    def _settle(self, found: _Found, receipts: dict[bytes, FanoutAuditReceipt]) -> Procedure[int]:
        """Put fanout behind everything that stands now, with a receipt for each record of it; dispatches what has none."""
        partition = self._partition
        log = yield from ends(Topic.OUTBOX, partition)
        effective, _ = yield from self._walk(log)
        moved: list[tuple[int, bytes]] = []
        bare: list[tuple[int, bytes]] = []
        for message_id, (offset, stored) in effective.items():
            if offset < found.differs_from:
                continue
            receipt = receipts.get(message_id)
            if receipt is None:
                bare.append((offset, stored.value))
            else:
                told = msgspec.structs.replace(
                    receipt, source_offset=offset, moved_from=receipt.dispatched_under()
                )
                moved.append((offset, encode_receipt(told)))
        opened = yield from source.opened(partition, self._fresh_key)
        to = yield from source.position_at(Topic.OUTBOX, partition, log.end)
        filter_epoch = yield from barrier_below(partition, log.end)
        step = source.AMENDED_RECEIPTS_MAX
        pages = [tuple(moved[at : at + step]) for at in range(0, len(moved), step)] or [()]
        for number, page in enumerate(pages):
            last = number == len(pages) - 1
            yield from source.amend(
                opened,
                to if last else opened.position,
                filter_epoch if last else opened.filter_epoch,
                drop_from=-1 if number else found.differs_from,
                receipts=page,
            )
        for offset, value in bare:
            yield from dispatched(
                partition, offset, value, self._shard_count, self._fresh_key, apply=True
            )
        return len(bare)

    def _put_archiver(self, epoch: int, found: _Found) -> Procedure[None]:
        """Behind the padding: what it had archived is archived, what was published again it takes once more."""
        if found.archived <= found.differs_from:
            return
        fresh_key = H("qim.incarnation", "operator", epoch, self._fresh_key)
        request = OpenArchive(op=0, partition=self._partition, epoch=epoch, fresh_key=fresh_key)
        opened = yield from ask(request, ArchiveOpened)
        to = yield from source.position_at(Topic.OUTBOX, self._partition, found.archived)
        filter_epoch = yield from barrier_below(self._partition, found.archived)
        commit = CommitArchive(
            op=0,
            partition=self._partition,
            epoch=epoch,
            incarnation=opened.incarnation,
            from_offset=found.archived,
            to=to,
            filter_epoch=filter_epoch,
        )
        yield from ask(commit, ArchiveCommitted)
