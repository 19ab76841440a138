"""A mailbox shard whose dispatch log was lost or made anew begins again under the next shard_epoch (pipeline.md §7).

    leases of mailbox and session --> old W --> fanout's fence raised --> what was dispatched above W
    --> what the projection had not, into the lists --> fanout put back to the first of these
    --> old mailboxes trimmed --> claims above the old W void, W = trim = the predecessor of (new | start of the log)
    --> the projection restarted --> leases given back

In this order a stop anywhere leaves a shard that does not serve and a procedure that can be run again: what is left of it
then is the projection alone, and its epoch tells.
"""

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract.entities import FanoutAuditReceipt
from qim.core.contract.ids import dispatch_id
from qim.core.contract.logvalue import Dispatched, read_dispatch
from qim.core.contract.sequences import U16_MAX, before_first, split_mailbox_seq
from qim.core.mending import looking, source
from qim.core.mending.asking import NotMended, Procedure, ask, ends, epoch_of, fetch, leased
from qim.core.mending.listed import Owed, gone_from, put_in_lists, rows_of
from qim.core.mending.source import Evidence
from qim.core.ports.log import EndsRead, Position, Topic
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_mailbox import (
    MailboxOpened,
    MailboxTrimmed,
    OpenMailbox,
    ShardStateRead,
    TrimMailbox,
)
from qim.core.ports.store_operator import (
    BumpShard,
    ProjectionRestarted,
    RestartProjection,
    ShardBumped,
)
from qim.core.ports.store_session import SessionOpened
from qim.core.position import Verdict

TRIM_KEYS = 1_000
Redo = tuple[tuple[int, int, int], ...]
Unsettled = tuple[tuple[int, int], ...]
Placed = tuple[int, FanoutAuditReceipt]
"""An offset that a receipt names for this shard."""


class BumpPlan(Struct, frozen=True, kw_only=True):
    """What is known, and what would be done. ``redo``: (outbox partition, its checkpoint, from where fanout goes again).

    ``new_shard_epoch`` is the one that stands where only the projection of an earlier bump is left to be restarted.
    """

    shard: int
    shard_epoch: int
    new_shard_epoch: int
    watermark_offset: int
    projected_offset: int
    log_start: int
    log_end: int
    whole: bool
    redo: Redo
    applied: bool = False
    voided_claims: int = 0


class _Judged(Struct, frozen=True, kw_only=True):
    """``begun``: a bump before this one came to the mailbox and not to its projection. ``unsettled``: of BumpShard.
    ``owed``: what the projection may not have read."""

    state: MailboxOpened
    session: SessionOpened
    plan: BumpPlan
    begun: bool
    unsettled: Unsettled
    owed: Owed
    log: EndsRead


class Bump:
    """One run for one shard. ``force``: also where the position is in its log and nothing is to be mended."""

    def __init__(
        self,
        shard: int,
        outbox_partition_count: int,
        *,
        shard_count: int,
        owner: str,
        address: str,
        fresh_key: bytes,
        force: bool = False,
    ) -> None:
        self._shard = shard
        self._partitions = outbox_partition_count
        self._shard_count = shard_count
        self._owner = owner
        self._address = address
        self._fresh_key = fresh_key
        self._force = force

    def planned(self) -> Procedure[BumpPlan]:
        """A look that disturbs nobody: it opens under the epochs that stand."""
        left = yield from looking.left(self._shard)
        mailbox = yield from epoch_of(Role.MAILBOX, self._shard)
        session = yield from epoch_of(Role.SESSION, self._shard)
        return (yield from self._judged(mailbox, session, left, fencing=False)).plan

    def applied(self) -> Procedure[BumpPlan]:
        """The whole of it, while we hold both leases."""
        mailbox = Resource(role=Role.MAILBOX, number=self._shard)
        session = Resource(role=Role.SESSION, number=self._shard)

        def with_mailbox(epoch: int) -> Procedure[BumpPlan]:
            return leased(
                session,
                self._owner,
                self._address,
                lambda projecting: self._do(epoch, projecting),
            )

        return (yield from leased(mailbox, self._owner, self._address, with_mailbox))

    def _judged(
        self, epoch: int, projecting: int, left: ShardStateRead, *, fencing: bool
    ) -> Procedure[_Judged]:
        """Both opened, their positions judged, the receipts read. ``fencing``: no other receipt may be written any more."""
        state = yield from self._open_mailbox(epoch)
        session = yield from looking.session(self._shard, projecting, self._fresh_key)
        log = yield from ends(Topic.DISPATCH, self._shard)
        shard_epoch, offset = split_mailbox_seq(_min_watermark(state) + 1)
        if shard_epoch >= U16_MAX:
            raise NotMended(f"shard_epoch {shard_epoch} is the last there is")
        held = yield from self._is_in(log, state.position)
        begun = held and session.shard_epoch < shard_epoch
        whole = held and not begun and (yield from self._is_in(log, session.dispatch))
        projected = session.dispatch.offset if session.dispatch is not None else 0
        redo: Redo = ()
        unsettled: Unsettled = ()
        owed: Owed = ()
        if not begun:
            if fencing and (self._force or not whole):
                # A commit under way names what the log lost since: its receipt would come when nobody looks again.
                for partition in range(self._partitions):
                    yield from source.fenced(partition, self._fresh_key)
            position = session.dispatch
            here = position is not None and position.topic_id == log.topic_id
            redo, unsettled, owed = yield from self._wanted(
                left, state, log, projected, read_here=here
            )
        plan = BumpPlan(
            shard=self._shard,
            shard_epoch=shard_epoch,
            new_shard_epoch=shard_epoch if begun else shard_epoch + 1,
            watermark_offset=offset,
            projected_offset=projected,
            log_start=log.start,
            log_end=log.end,
            whole=whole,
            redo=redo,
        )
        return _Judged(
            state=state,
            session=session,
            plan=plan,
            begun=begun,
            unsettled=unsettled,
            owed=owed,
            log=log,
        )

    def _wanted(
        self,
        left: ShardStateRead,
        state: MailboxOpened,
        log: EndsRead,
        projected: int,
        *,
        read_here: bool,
    ) -> Procedure[tuple[Redo, Unsettled, Owed]]:
        """``redo`` of the plan, the first record of each partition that the mailbox had not, and what no list may have."""
        _, offset = split_mailbox_seq(_min_watermark(state) + 1)
        redo: list[tuple[int, int, int]] = []
        unsettled: list[tuple[int, int]] = []
        settled, before, floors = dict(left.settled), dict(left.redo), dict(state.floors)
        evidence: list[Evidence] = []
        for partition in range(self._partitions):
            evidence.append((yield from source.evidence(partition)))
        # Asked again: fanout goes on, and what a receipt names stands behind the end of before.
        log = yield from ends(Topic.DISPATCH, self._shard)
        # What an earlier epoch had is left out by its mark: its receipts name offsets of a log that is gone.
        named = [self._dispatched(one, 0, settled.get(one.partition, 0)) for one in evidence]
        counts = Counter(at for placed in named for at, _ in placed)
        listing = [self._dispatched(one, 0, before.get(one.partition, 0)) for one in evidence]
        owed = yield from self._owed(listing, projected, log, read_here=read_here)
        for known, placed, listed in zip(evidence, named, listing, strict=True):
            partition = known.partition
            lists = [(at, one) for at, one in listed if at >= projected]
            outbox = yield from ends(Topic.OUTBOX, partition)
            low = max(floors.get(partition, 0), outbox.start)
            late = _late(placed, counts)
            doubtful = [
                (at, one)
                for at, one in placed
                if at >= offset or (one.source_offset in late and one.dispatched_under() >= low)
            ]
            lost = yield from self._lost([one for one in doubtful if one[0] >= log.start], log)
            unread = [one.source_offset for at, one in lost if at >= offset]
            if unread:
                # A copy of what the mailbox had may stand above W, after another shard's bump: no floor is lowered for it.
                unsettled.append((partition, min(unread)))
            again = [one.source_offset for at, one in placed if at >= offset]
            again += [one.source_offset for _, one in (*lists, *lost)]
            checkpoint = max(known.checkpoint, 0)
            redo.append((partition, checkpoint, min([*again, checkpoint])))
        return tuple(redo), tuple(unsettled), owed

    def _owed(
        self, listing: list[list[Placed]], projected: int, log: EndsRead, *, read_here: bool
    ) -> Procedure[Owed]:
        """Above where the projection stood, at the place of what it had read, or gone from the log that it has read
        (``read_here``), maybe before it came there: a bump leaves none of these to a log."""
        counts = Counter(at for listed in listing for at, _ in listed)
        gone: dict[int, None] = {}
        if read_here:
            named = [
                (at, dispatch_id(one.message_id, self._shard))
                for listed in listing
                for at, one in listed
                if log.start <= at < min(projected, log.end)
            ]
            gone = yield from gone_from(log, self._shard, named)
        owed: list[tuple[int, FanoutAuditReceipt]] = []
        for partition, listed in enumerate(listing):
            late = _late(listed, counts)
            owed += [
                (partition, one)
                for at, one in listed
                if at >= projected or at in gone or one.source_offset in late
            ]
        return tuple(owed)

    def _dispatched(self, known: Evidence, offset: int, mark: int) -> list[Placed]:
        """What went to this shard's log at ``offset`` or above, from source offset ``mark`` on."""
        return [
            (place.offset, receipt)
            for receipt in known.receipts.values()
            for place in receipt.shards
            if place.shard == self._shard and place.offset >= offset
            if receipt.dispatched_under() >= mark
        ]

    def _lost(self, placed: list[Placed], log: EndsRead) -> Procedure[list[Placed]]:
        """Those of them that don't stand there.

        A log that lost its tail takes new records where its mailbox had read others, and may lose those too.
        """
        named = {(at, dispatch_id(one.message_id, self._shard)): one for at, one in placed}
        at = min([offset for offset, _ in named], default=log.end)
        while at < log.end:
            records = yield from fetch(Topic.DISPATCH, self._shard, at)
            if not records:
                raise NotMended(f"dispatch {self._shard} is not readable at {at}")
            for stored in records:
                at = stored.offset + 1
                read = read_dispatch(stored.value)
                if isinstance(read, Dispatched):
                    named.pop((stored.offset, read.dispatch.dispatch_id), None)
        return [(offset, one) for (offset, _), one in named.items()]

    def _do(self, epoch: int, projecting: int) -> Procedure[BumpPlan]:
        left = yield from looking.left(self._shard)
        judged = yield from self._judged(epoch, projecting, left, fencing=True)
        plan, state, session = judged.plan, judged.state, judged.session
        if judged.begun:
            yield from self._restart(projecting, session, plan.shard_epoch)
            return replace(plan, applied=True)
        if plan.whole and not self._force:
            raise NotMended(
                f"mailbox shard {self._shard}: its position is in its log, nothing is to be mended (--force all the same)"
            )
        watermark = _min_watermark(state)
        # Before any receipt goes: a run that ends in between would know of none.
        rows = yield from rows_of(judged.owed, self._shard, self._shard_count)
        yield from put_in_lists(rows, self._shard, projecting, session, judged.log)
        for partition, checkpoint, first in plan.redo:
            if first < checkpoint:
                yield from source.put_back(partition, self._fresh_key, first)
        yield from looking.is_still(self._shard, judged.log)
        promised = yield from self._promised()
        yield from self._trim(epoch, state, watermark)
        to = before_first(plan.new_shard_epoch, plan.log_start)
        request = BumpShard(
            op=0,
            shard=self._shard,
            epoch=epoch,
            incarnation=state.incarnation,
            from_watermark=watermark,
            to_watermark=to,
            void_from=plan.watermark_offset,
            redo=tuple((partition, first) for partition, _, first in plan.redo),
            unsettled=judged.unsettled,
            promised=promised,
        )
        bumped = yield from ask(request, ShardBumped)
        yield from self._restart(projecting, session, plan.new_shard_epoch)
        return replace(plan, applied=True, voided_claims=bumped.voided)

    def _promised(self) -> Procedure[tuple[tuple[int, int], ...]]:
        """f of what was dispatched before fanout was put back: it counts what the dispatch log lost as durable.

        No checkpoint ever passed the end of its outbox, whatever became of a run of this before.
        """
        promised: list[tuple[int, int]] = []
        for partition in range(self._partitions):
            promised.append((partition, (yield from ends(Topic.OUTBOX, partition)).end))
        return tuple(promised)

    def _restart(
        self, projecting: int, session: SessionOpened, shard_epoch: int
    ) -> Procedure[None]:
        request = RestartProjection(
            op=0,
            shard=self._shard,
            epoch=projecting,
            incarnation=session.incarnation,
            shard_epoch=shard_epoch,
        )
        yield from ask(request, ProjectionRestarted)

    def _open_mailbox(self, epoch: int) -> Procedure[MailboxOpened]:
        request = OpenMailbox(
            op=0,
            shard=self._shard,
            epoch=epoch,
            fresh_key=looking.key_of(epoch, self._fresh_key),
            initial=before_first(1, 0),
        )
        state = yield from ask(request, MailboxOpened)
        if state.counter_lost:
            raise NotMended(
                f"mailbox shard {self._shard}: the store has data of it but not its watermark; put the store back that "
                "belongs to the log, or empty it, so that it is built anew from the log"
            )
        return state

    def _is_in(self, log: EndsRead, position: Position | None) -> Procedure[bool]:
        """As mailbox and projection judge theirs at their open."""
        if position is None:
            return True
        verdict = yield from looking.verdict(Topic.DISPATCH, self._shard, log, position)
        return verdict is Verdict.TRUSTED

    def _trim(self, epoch: int, state: MailboxOpened, watermark: int) -> Procedure[None]:
        """Mailboxes of the old epoch can't be read any more: they go, day by day."""
        for day, _ in state.days:
            more = True
            while more:
                request = TrimMailbox(
                    op=0,
                    shard=self._shard,
                    epoch=epoch,
                    incarnation=state.incarnation,
                    day=day,
                    to=watermark,
                    limit=TRIM_KEYS,
                )
                more = (yield from ask(request, MailboxTrimmed)).more


def _min_watermark(state: MailboxOpened) -> int:
    return min([state.base, *(seq for _, seq in state.lanes)])


def _late(placed: list[Placed], counts: Counter[int]) -> dict[int, None]:
    """Source offsets of what may have come to the place of what the mailbox had read: behind what names a later place, or at
    one that is named twice. The mailbox had it or had not: its claim tells, if it is dispatched again."""
    late: dict[int, None] = {}
    highest = -1
    for at, one in sorted(placed, key=lambda each: each[1].dispatched_under()):
        if at <= highest or counts[at] > 1:
            late[one.source_offset] = None
        highest = max(highest, at)
    return late
