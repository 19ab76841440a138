"""An outbox partition that lost committed records, filled up and published again from hot store and facts (pipeline.md §7).

    leases of writer, fanout, archiver --> their fences raised --> facts compared with the log: what it lacks, and from where on
    it differs
    --> barriers up to where positions and floors stood, so that no offset means two things
    --> a fanout that had passed some of it held, until its position is put
    --> lost records that were dispatched, published again, their receipts moved to where they stand now
    --> records nobody dispatched since, dispatched --> fanout put behind all these
    --> lost records that were not dispatched, published again: fanout takes them from there
    --> the archiver put to where it stood, in the log as it is now --> leases given back

What its writer appended last, where others had stood, is published again with the lost ones: its OPEN or the archiver would
pass over it; and so is what was committed since where the archiver had read others (unarchived.py). What is published is read back
before anything rests on it: another owner's barrier may have come first (publishing.py). What retention or an audit took
out of the facts was covered and needs nothing. Run again after a stop, it finds in the log what it had published.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from qim.core.contract.logvalue import Outboxed
from qim.core.fanout.vocabulary import FanoutConfig
from qim.core.mending import applied, dispatching, source
from qim.core.mending.asking import NotMended, Procedure, ask, leased
from qim.core.mending.audits import end_audits
from qim.core.mending.fencing import fenced
from qim.core.mending.looking import key_of
from qim.core.mending.lost import Found, bodies_of, look
from qim.core.mending.passed import Barriers, barriers, passed_at
from qim.core.mending.publishing import Publishing
from qim.core.mending.settling import hold, settle
from qim.core.mending.unarchived import refuse_hole
from qim.core.ports.log import Topic
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_history import (
    ArchiveCommitted,
    ArchiveOpened,
    CommitArchive,
    OpenArchive,
)

PADDING_MAX: Final = 1_000_000
"""Barriers a run will append: more are a day's work of a log, and a question for a person."""
DISPATCHED_MOST: Final = FanoutConfig(shard_count=1).window_records_max
"""Records that fanout has dispatched above its checkpoint, at most: their dispatches name offsets that nothing else remembers."""


class OutboxPlan(Struct, frozen=True, kw_only=True):
    """What the log lacks. ``differs_from``: the first offset at which it is not the log of the facts; equal to its end
    where only its tail is gone. ``unreadable``: lost and no longer hot, so only the archive has them, if it has.
    ``unarchived``: they stand where the archiver had read others, and the archive doesn't have them."""

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
    unarchived: int
    applied_repair: bool = False
    republished: int = 0
    redispatched: int = 0

    def nothing(self) -> bool:
        """The log has everything that stands in the facts, and every position is in it."""
        behind = max(self.applied, self.checkpoint, self.archived) <= self.log_end
        return (
            self.trusted
            and behind
            and not (self.lost_dispatched or self.lost_undispatched or self.unreadable)
        )


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
        found, bodies = yield from self._look()
        plan = self._plan(found, bodies)
        if plan.nothing():
            refuse_hole(self._partition, found.log, found.archived)
        return plan

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

    def _look(self) -> Procedure[tuple[Found, dict[bytes, bytes]]]:
        """What is there, and of what is lost the records that are still hot, by message_id."""
        found = yield from look(self._partition, self._fresh_key, tiered=self._tiered)
        return found, (yield from bodies_of(found.lost))

    def _plan(self, found: Found, bodies: dict[bytes, bytes]) -> OutboxPlan:
        receipted = {one.message_id for one in found.known.receipts.values()}
        lost = [one.message_id() for one in found.lost if one.message_id() in bodies]
        dispatched_before = sum(one in receipted for one in lost)
        return OutboxPlan(
            partition=self._partition,
            log_start=found.log.start,
            log_end=found.log.end,
            applied=found.known.applied,
            checkpoint=found.known.checkpoint,
            archived=max(found.archived.offset, found.archived.kept),
            differs_from=found.differs_from,
            lost_dispatched=dispatched_before,
            lost_undispatched=len(lost) - dispatched_before,
            unreadable=tuple(
                one.message_id().hex() for one in found.lost if one.message_id() not in bodies
            ),
            padding=max(0, found.stood() - found.log.end),
            trusted=found.trusted,
            unarchived=len(found.unarchived),
        )

    # ------------------------------------------------------------ mending

    def _do(self, epochs: dict[Role, int]) -> Procedure[OutboxPlan]:
        epoch = epochs[Role.WRITER]
        yield from fenced(self._partition, epochs, self._fresh_key)
        found, bodies = yield from self._look()
        plan = self._plan(found, bodies)
        if plan.nothing():
            refuse_hole(self._partition, found.log, found.archived)
            return plan
        if plan.padding > PADDING_MAX:
            raise NotMended(
                f"outbox {self._partition} would need {plan.padding} barriers to come to where it stood, more than "
                f"{PADDING_MAX}: put back the log that belongs to the store instead"
            )
        receipts = {one.message_id: one for one in found.known.receipts.values()}
        yield from end_audits(self._partition, self._fresh_key)
        log = Publishing(self._partition, epoch, found)
        yield from log.pad(plan.padding)
        standing = yield from barriers(self._partition)
        lost = [one.message_id() for one in found.lost if one.message_id() in bodies]
        again = yield from found.written_over()
        before = [bodies[one] for one in lost if one in receipts]
        after = [bodies[one] for one in lost if one not in receipts]
        passed = max(found.known.checkpoint, 0) > found.differs_from
        (before if passed else after).extend(entry.stored for entry in again)
        redispatched = 0
        if passed:
            yield from hold(self._partition, self._fresh_key)
        yield from log.publish(before)
        yield from self._remember(found, plan)
        if passed:
            redispatched = yield from settle(
                self._partition,
                found.differs_from,
                receipts,
                self._shard_count,
                self._fresh_key,
            )
        else:
            yield from self._claim(again)
        yield from log.publish(after)
        if self._tiered:
            # Last of all: once it is trusted again, nothing tells a later run what was still to be published for it.
            yield from self._put_archiver(epochs[Role.ARCHIVER], found, standing)
        yield from applied.told(found.log, found.known, standing, epoch, self._fresh_key)
        yield from source.woken(self._partition)
        return msgspec.structs.replace(
            plan,
            applied_repair=True,
            republished=len(before) + len(after),
            redispatched=redispatched,
        )

    def _remember(self, found: Found, plan: OutboxPlan) -> Procedure[None]:
        """Which offsets stood for other records: dispatches of these name them still, and the audit must know."""
        if found.known.checkpoint < 0:
            return
        opened = yield from source.opened(self._partition, self._fresh_key)
        above = max(found.log.end + max(plan.padding, 1), found.known.checkpoint + DISPATCHED_MOST)
        lost = (found.differs_from, above)
        yield from source.amend(opened, opened.position, opened.filter_epoch, lost=lost)

    def _claim(self, again: Sequence[Outboxed]) -> Procedure[None]:
        """Fanout will meet these twice, and a claim with a source may be gone by then: one without stays."""
        for entry in again:
            made = yield from dispatching.dispatches_of(
                self._partition, entry.record, self._shard_count
            )
            yield from dispatching.append(made)

    def _put_archiver(self, epoch: int, found: Found, standing: Barriers) -> Procedure[None]:
        """Behind the padding: what it had archived is archived, what was published again it takes once more."""
        archived = found.archived
        if archived.offset <= found.differs_from and not archived.astray():
            return
        fresh_key = key_of(epoch, self._fresh_key)
        request = OpenArchive(op=0, partition=self._partition, epoch=epoch, fresh_key=fresh_key)
        opened = yield from ask(request, ArchiveOpened)
        place = max(archived.offset, found.log.start)
        to = yield from source.position_at(Topic.OUTBOX, self._partition, place)
        commit = CommitArchive(
            op=0,
            partition=self._partition,
            epoch=epoch,
            incarnation=opened.incarnation,
            from_offset=archived.offset,
            to=to,
            filter_epoch=passed_at(standing, place),
        )
        yield from ask(commit, ArchiveCommitted)
