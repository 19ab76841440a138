"""A mailbox shard whose dispatch log was lost or made anew begins again under the next shard_epoch (pipeline.md §7).

    leases of mailbox and session --> old W, what was dispatched above it --> fanout put back to the first of these
    --> old mailboxes trimmed --> claims above the old W void, W = trim = the predecessor of (new | start of the log)
    --> the projection restarted --> leases given back

In this order a stop anywhere leaves a shard that does not serve and a procedure that can be run again.
"""

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract.hashing import H
from qim.core.contract.sequences import U16_MAX, before_first, split_mailbox_seq
from qim.core.mending import source
from qim.core.mending.asking import (
    NothingYet,
    NotMended,
    Procedure,
    ask,
    ends,
    epoch_of,
    leased,
    record_at,
)
from qim.core.ports.log import EndsRead, Topic
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_mailbox import (
    MailboxOpened,
    MailboxTrimmed,
    OpenMailbox,
    ReadShardState,
    ShardStateRead,
    TrimMailbox,
)
from qim.core.ports.store_operator import (
    BumpShard,
    ProjectionRestarted,
    RestartProjection,
    ShardBumped,
)
from qim.core.ports.store_session import OpenSession, SessionOpened
from qim.core.position import Verdict, judge_ends, judge_predecessor

TRIM_KEYS = 1_000


class BumpPlan(Struct, frozen=True, kw_only=True):
    """What is known, and what would be done. ``redo``: (outbox partition, its checkpoint, from where fanout goes again)."""

    shard: int
    shard_epoch: int
    new_shard_epoch: int
    watermark_offset: int
    projected_offset: int
    log_start: int
    log_end: int
    whole: bool
    redo: tuple[tuple[int, int, int], ...]
    applied: bool = False
    voided_claims: int = 0


class Bump:
    """One run for one shard. ``force``: also where the position is in its log and nothing is to be mended."""

    def __init__(
        self,
        shard: int,
        outbox_partition_count: int,
        *,
        owner: str,
        address: str,
        fresh_key: bytes,
        force: bool = False,
    ) -> None:
        self._shard = shard
        self._partitions = outbox_partition_count
        self._owner = owner
        self._address = address
        self._fresh_key = fresh_key
        self._force = force

    def planned(self) -> Procedure[BumpPlan]:
        """A look that disturbs nobody: it opens under the epochs that stand."""
        yield from self._require_state()
        mailbox = yield from epoch_of(Role.MAILBOX, self._shard)
        session = yield from epoch_of(Role.SESSION, self._shard)
        return (yield from self._judged(mailbox, session))[0]

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

    def _require_state(self) -> Procedure[None]:
        request = ReadShardState(op=0, shard=self._shard)
        if (yield from ask(request, ShardStateRead)).base < 0:
            raise NothingYet(f"mailbox shard {self._shard} has no state: it begins by itself")

    def _judged(
        self, epoch: int, projecting: int
    ) -> Procedure[tuple[BumpPlan, MailboxOpened, SessionOpened]]:
        """Both opened, the position judged, the receipts read."""
        state = yield from self._open_mailbox(epoch)
        session = yield from self._open_session(projecting)
        log = yield from ends(Topic.DISPATCH, self._shard)
        whole = yield from self._whole(state, log)
        projected = session.dispatch.offset if session.dispatch is not None else 0
        plan = yield from self._plan(_min_watermark(state), projected, log, whole)
        return plan, state, session

    def _plan(
        self, watermark: int, projected: int, log: EndsRead, whole: bool
    ) -> Procedure[BumpPlan]:
        shard_epoch, offset = split_mailbox_seq(watermark + 1)
        if shard_epoch >= U16_MAX:
            raise NotMended(f"shard_epoch {shard_epoch} is the last there is")
        redo: list[tuple[int, int, int]] = []
        for partition in range(self._partitions):
            known = yield from source.evidence(partition)
            above = [
                receipt.source_offset
                for receipt in known.receipts.values()
                for place in receipt.shards
                if place.shard == self._shard and place.offset >= min(offset, projected)
            ]
            checkpoint = max(known.checkpoint, 0)
            redo.append((partition, checkpoint, min([*above, checkpoint])))
        return BumpPlan(
            shard=self._shard,
            shard_epoch=shard_epoch,
            new_shard_epoch=shard_epoch + 1,
            watermark_offset=offset,
            projected_offset=projected,
            log_start=log.start,
            log_end=log.end,
            whole=whole,
            redo=tuple(redo),
        )

    def _do(self, epoch: int, projecting: int) -> Procedure[BumpPlan]:
        yield from self._require_state()
        plan, state, session = yield from self._judged(epoch, projecting)
        if plan.whole and not self._force:
            raise NotMended(
                f"mailbox shard {self._shard}: its position is in its log, nothing is to be mended (--force all the same)"
            )
        watermark = _min_watermark(state)
        for partition, checkpoint, first in plan.redo:
            if first < checkpoint:
                yield from source.put_back(partition, self._fresh_key, first)
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
        )
        bumped = yield from ask(request, ShardBumped)
        restart = RestartProjection(
            op=0,
            shard=self._shard,
            epoch=projecting,
            incarnation=session.incarnation,
            shard_epoch=plan.new_shard_epoch,
        )
        yield from ask(restart, ProjectionRestarted)
        return replace(plan, applied=True, voided_claims=bumped.voided)

    def _open_mailbox(self, epoch: int) -> Procedure[MailboxOpened]:
        request = OpenMailbox(
            op=0,
            shard=self._shard,
            epoch=epoch,
            fresh_key=H("qim.incarnation", "operator", epoch, self._fresh_key),
            initial=before_first(1, 0),
        )
        state = yield from ask(request, MailboxOpened)
        if state.counter_lost:
            raise NotMended(
                f"mailbox shard {self._shard}: the store has data of it but not its watermark; put the store back that "
                "belongs to the log, or empty it, so that it is built anew from the log"
            )
        return state

    def _open_session(self, epoch: int) -> Procedure[SessionOpened]:
        request = OpenSession(
            op=0,
            shard=self._shard,
            epoch=epoch,
            fresh_key=H("qim.incarnation", "operator", epoch, self._fresh_key),
        )
        return (yield from ask(request, SessionOpened))

    def _whole(self, state: MailboxOpened, log: EndsRead) -> Procedure[bool]:
        """As the mailbox itself judges at its open."""
        position = state.position
        if position is None:
            return True
        verdict = judge_ends(position, log.topic_id, log.start, log.end)
        if verdict is Verdict.NEEDS_PREDECESSOR:
            before = yield from record_at(Topic.DISPATCH, self._shard, position.offset - 1)
            if before is None:
                raise NotMended(f"dispatch {self._shard} is not readable at {position.offset - 1}")
            verdict = judge_predecessor(position, before)
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
