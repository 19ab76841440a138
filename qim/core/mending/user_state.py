"""A user-state partition that lost its tail or was made anew, filled up to where it stood and applied once more (pipeline.md §7).

    lease of session --> the position judged, as the projection does --> barriers up to where it had been applied
    --> the position put to the log's start: the projection applies all of it again --> lease given back

Values that the log lost stand in the store all the same: an older one that the log still has loses against them, and the
winner is published again (pipeline.md §4). Offsets never mean two things, since devices ask for what changed since one.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract.logvalue import barrier_value
from qim.core.mending import looking
from qim.core.mending.asking import NotMended, Procedure, ask, ends, epoch_of, leased
from qim.core.ports.log import Append, Appended, EndsRead, LogRecord, Position, Topic
from qim.core.ports.registry import Resource, Role
from qim.core.ports.store_session import ApplyStates, SessionOpened, StatesApplied
from qim.core.position import NO_DIGEST, Verdict

BATCH_RECORDS: Final = 1_000
PADDING_MAX: Final = 5_000_000
"""Barriers a run will append; a partition counts every mark and state ever set, and compaction takes them again."""


class UserStatePlan(Struct, frozen=True, kw_only=True):
    """What is known, and what would be done. ``applied_to``: where the projection stands in a log that may be gone."""

    shard: int
    applied_to: int
    log_start: int
    log_end: int
    whole: bool
    padding: int
    applied: bool = False


class UserStateRepair:
    """One run for one partition, which is a mailbox shard's."""

    def __init__(self, shard: int, *, owner: str, address: str, fresh_key: bytes) -> None:
        self._shard = shard
        self._owner = owner
        self._address = address
        self._fresh_key = fresh_key

    def planned(self) -> Procedure[UserStatePlan]:
        """A look that disturbs nobody: it opens under the epoch that stands. Raises NothingYet."""
        yield from looking.left(self._shard)
        epoch = yield from epoch_of(Role.SESSION, self._shard)
        return (yield from self._judged(epoch))[0]

    def applied(self) -> Procedure[UserStatePlan]:
        """The whole of it, while we hold the lease."""
        session = Resource(role=Role.SESSION, number=self._shard)
        return (yield from leased(session, self._owner, self._address, self._do))

    def _do(self, epoch: int) -> Procedure[UserStatePlan]:
        yield from looking.left(self._shard)
        plan, session = yield from self._judged(epoch)
        if plan.whole:
            return plan
        if plan.padding > PADDING_MAX:
            raise NotMended(
                f"user_state {self._shard} ends {plan.padding} below where it was applied to, more than the {PADDING_MAX} that "
                "are filled up: put the log back that belongs to the store"
            )
        left = plan.padding
        while left:
            batch = min(left, BATCH_RECORDS)
            yield from self._append(
                epoch, (LogRecord(key=b"", value=barrier_value(epoch)),) * batch
            )
            left -= batch
        log = yield from ends(Topic.USER_STATE, self._shard)
        assert session.state is not None, "judged"
        request = ApplyStates(
            op=0,
            shard=self._shard,
            epoch=epoch,
            incarnation=session.incarnation,
            from_offset=session.state.offset,
            to=Position(log.topic_id, log.start, NO_DIGEST),
            changes=(),
        )
        yield from ask(request, StatesApplied)
        return replace(plan, applied=True)

    def _append(self, epoch: int, records: Sequence[LogRecord]) -> Procedure[None]:
        request = Append(
            op=0,
            topic=Topic.USER_STATE,
            partition=self._shard,
            epoch=epoch,
            records=tuple(records),
        )
        yield from ask(request, Appended)

    def _judged(self, epoch: int) -> Procedure[tuple[UserStatePlan, SessionOpened]]:
        session = yield from looking.session(self._shard, epoch, self._fresh_key)
        log = yield from ends(Topic.USER_STATE, self._shard)
        position = session.state
        whole = position is None or (yield from self._whole(position, log))
        applied_to = 0 if position is None else position.offset
        plan = UserStatePlan(
            shard=self._shard,
            applied_to=applied_to,
            log_start=log.start,
            log_end=log.end,
            whole=whole,
            padding=0 if whole else max(0, applied_to - log.end),
        )
        return plan, session

    def _whole(self, position: Position, log: EndsRead) -> Procedure[bool]:
        """As the projection judges at its open: a record that compaction took can't be compared."""
        topic, number = Topic.USER_STATE, self._shard
        verdict = yield from looking.verdict(topic, number, log, position, compacted=True)
        return verdict is Verdict.TRUSTED
