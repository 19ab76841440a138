"""The commit pipeline of a shard: reserve, append, mark (pipeline.md §1.2 to §1.5), each coalesced at the end of a step.

ready    --> RECORDED   ReserveAndRecord or MembershipChange; one in flight a shard, the next batch gathers meanwhile
RECORDED --> OUTBOXED   Append in order of reservation; one in flight a shard
RECORDED --> REFUSED    the log names the record itself
OUTBOXED --> COMMITTED  MarkCommitted in append order; one in flight a shard; then, and only then, the ack

Order holds because each stage is a FIFO with one batch in flight: nothing reserved after an unanswered reservation can
be appended before it is settled, and no mark overtakes an earlier append. An append is never repeated after Unknown.
It does not judge requests (requests.py) and does not open shards (opening.py).
"""

from typing import Final

from qim.core.contract.entities import CommitState, MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.invariants import Stage
from qim.core.contract.logvalue import outbox_value
from qim.core.contract.rpc import GroupDone, SendDone
from qim.core.ports.completion import FailReason
from qim.core.ports.log import Append, Appended, AppendRefused, LogRecord, Topic
from qim.core.ports.store_message import (
    Existing,
    Fresh,
    MarkCommitted,
    MarkedCommitted,
    MarkItem,
    MarkLost,
    MarkRefused,
    MembershipChange,
    ReserveAndRecord,
    Reserved,
    ReserveItem,
)
from qim.core.writer.audience import Audience, AudienceCache
from qim.core.writer.commit import Commit
from qim.core.writer.freeze import freeze_control, freeze_message, stored_of
from qim.core.writer.heads import Heads
from qim.core.writer.lifecycle import refresh, stop
from qim.core.writer.membership import GroupChange, audience_after, membership_write
from qim.core.writer.moderating import Moderating
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.requests import Requests
from qim.core.writer.shard import SERVING, Shard
from qim.core.writer.tail import confirmed, digest_of
from qim.core.writer.verdicts import Verdicts
from qim.core.writer.vocabulary import Answer

TRACES_MAX: Final = 4
RECORDED: Final = Stage.RECORDED
OUTBOXED: Final = Stage.OUTBOXED
COMMITTED: Final = Stage.COMMITTED


class Pipeline:
    """Moves commits along their shard's queues; keeps nothing of its own."""

    def __init__(
        self,
        orders: Orders,
        requests: Requests,
        verdicts: Verdicts,
        audiences: AudienceCache,
        moderating: Moderating,
    ) -> None:
        self._moderating: Final = moderating
        self._orders: Final = orders
        self._verdicts: Final = verdicts
        self._heads: Final = Heads(orders)
        self._requests: Final = requests
        self._audiences: Final = audiences

    def flush(self, shard: Shard) -> None:
        """At the end of a step: whatever may go out goes out, as one batch a stage."""
        if shard.stage is SERVING:
            self._reserve(shard)
            self._heads.flush(shard)
        if shard.append_queue:
            self._append(shard)
        if shard.mark_queue and not shard.mark_inflight:
            self._mark(shard)

    # ------------------------------------------------------------- reserve

    def _reserve(self, shard: Shard) -> None:
        config = self._orders.config
        if shard.reserve_inflight or len(shard.append_queue) >= config.unappended_max:
            return
        items: list[ReserveItem] = []
        commits: list[Commit] = []
        size = 0
        while shard.ready and len(items) < config.reserve_items_max:
            commit = shard.ready[0]
            if items and (
                commit.group is not None or size + commit.size > config.reserve_bytes_max
            ):
                break
            shard.ready.popleft()
            judged = self._requests.judge(shard, commit)
            if judged is None:
                continue
            if isinstance(judged, GroupChange):
                self._order_change(shard, commit, judged)
                return
            items.append(self._frozen(commit, judged))
            commits.append(commit)
            size += commit.size
        if items:
            self._order_reserve(shard, tuple(items), tuple(commits))

    def _frozen(self, commit: Commit, audience: Audience) -> ReserveItem:
        orders = self._orders
        message_id = orders.clock.message_id(orders.now)
        return freeze_message(commit, audience, message_id, orders.clock.wall(orders.now))

    def _order_reserve(
        self, shard: Shard, items: tuple[ReserveItem, ...], commits: tuple[Commit, ...]
    ) -> None:
        orders = self._orders
        for commit in commits:
            commit.sent = True
        shard.reserve_inflight = commits
        request = ReserveAndRecord(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            now_wall=orders.clock.wall(orders.now),
            items=items,
            traces=_traces(commits),
        )
        orders.ask(Call.RESERVE, shard, request)

    def _order_change(self, shard: Shard, commit: Commit, change: GroupChange) -> None:
        orders = self._orders
        wall = orders.clock.wall(orders.now)
        item, write = freeze_control(commit, change, orders.clock.message_id(orders.now), wall)
        if len(item.record) > orders.config.record_bytes_max:
            # Checked before anything is reserved: a membership record the log refuses stops the shard (§1.5).
            self._verdicts.refuse(
                shard, commit, ErrorCode.INVALID_ARGUMENT, "the change is too large for one record"
            )
            orders.touch(shard)
            return
        commit.sent = True
        shard.reserve_inflight = (commit,)
        request = MembershipChange(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            now_wall=wall,
            item=item,
            membership=write,
            traces=(commit.trace_id,),
        )
        orders.ask(Call.RESERVE, shard, request)

    def on_reserved(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Settled, item by item; one bad item never spoils the rest of its batch."""
        assert isinstance(answer, Reserved)
        commits, shard.reserve_inflight = shard.reserve_inflight, ()
        assert len(answer.results) == len(commits)
        moved: list[Commit] = []
        for index, (commit, result) in enumerate(zip(commits, answer.results, strict=True)):
            if isinstance(result, Fresh):
                self._recorded(shard, commit, result.conversation_seq, result.last_activity_id)
            elif isinstance(result, Existing):
                if _is_ours(commit, result):
                    self._recorded(shard, commit, result.conversation_seq, result.last_activity_id)
                elif not self._verdicts.settle(shard, commit, result):
                    # An intent that is not of this pipeline: only OPEN (e) may append it.
                    shard.reserve_inflight = (*moved, *commits[index:])
                    refresh(self._orders, shard, "stray_intent")
                    return
            else:
                moved.append(commit)
        self._requests.refreeze(shard, moved)

    def failed_reserve(self, shard: Shard, pending: Pending, why: FailReason) -> bool:
        """Surely not applied, again and again: say so, unless one attempt is in doubt. True: given up."""
        config = self._orders.config
        if pending.unknown or pending.attempts < config.unavailable_after_attempts:
            return False
        commits, shard.reserve_inflight = shard.reserve_inflight, ()
        for commit in commits:
            self._verdicts.refuse(shard, commit, ErrorCode.UNAVAILABLE, f"store: {why.value}")
        return True

    def unsettled(self, shard: Shard, pending: Pending) -> bool:
        """A reservation in doubt for so long that its dedupe entry may be forgotten: OPEN settles it. True: refreshed."""
        if self._orders.now - pending.first_asked_at < self._orders.config.reserve_settle_ms:
            return False
        refresh(self._orders, shard, "reserve_unsettled")
        return True

    def _recorded(self, shard: Shard, commit: Commit, seq: int, activity: bytes) -> None:
        commit.conversation_seq = seq
        commit.last_activity_id = activity
        change = commit.change
        if change is not None:
            assert commit.group is not None
            write = membership_write(change, commit.group, commit.actor, commit.message_id)
            after = audience_after(change, write, seq)
            self._audiences.put(commit.conversation_id, shard.generation, after)
            shard.controls[commit.conversation_id, after.version] = []
        shard.append_queue.append(commit)
        self._orders.stage(commit, RECORDED)

    # ------------------------------------------------------------- append

    def _append(self, shard: Shard) -> None:
        if shard.append_inflight or shard.append_busy is not None or shard.refusing is not None:
            return
        config, epoch = self._orders.config, shard.epoch
        limit = 1 if shard.append_single else config.append_records_max
        commits: list[Commit] = []
        records: list[LogRecord] = []
        size = 0
        while shard.append_queue and len(commits) < limit:
            commit = shard.append_queue[0]
            value = outbox_value(epoch, stored_of(commit))
            size += len(value)
            if commits and size > config.append_bytes_max:
                break
            shard.append_queue.popleft()
            commits.append(commit)
            records.append(LogRecord(key=commit.message_id, value=value))
        shard.append_inflight = tuple(commits)
        request = Append(
            op=self._orders.next_op(),
            topic=Topic.OUTBOX,
            partition=shard.number,
            epoch=epoch,
            records=tuple(records),
            traces=_traces(commits),
        )
        self._orders.ask(Call.APPEND, shard, request)

    def on_appended(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Confirmed under the present epoch, or one record refused and nothing appended."""
        if isinstance(answer, AppendRefused):
            self._refused(shard, answer.index, answer.why)
            return
        assert isinstance(answer, Appended)
        orders = self._orders
        orders.clock.compare(pending.asked_wall, answer.append_time)
        if not confirmed(orders, shard, answer.offsets):
            return
        commits, shard.append_inflight = shard.append_inflight, ()
        shard.append_single = False
        for commit, offset in zip(commits, answer.offsets, strict=True):
            commit.offset = offset
            orders.stage(commit, OUTBOXED)
        shard.mark_queue.extend(commits)

    def failed_append(self, shard: Shard, pending: Pending, why: FailReason) -> bool:
        """TOO_LARGE or INVALID: halve the doubt to a single record, then it names the record. True: handled."""
        if why is not FailReason.TOO_LARGE and why is not FailReason.INVALID:
            return False
        if len(shard.append_inflight) == 1:
            self._refused(shard, 0, why.value)
        else:
            shard.append_single = True
            shard.append_queue.extendleft(reversed(shard.append_inflight))
            shard.append_inflight = ()
            self._orders.touch(shard)
        return True

    def _refused(self, shard: Shard, index: int, why: str) -> None:
        orders = self._orders
        commits, shard.append_inflight = shard.append_inflight, ()
        refused = commits[index]
        orders.count("record_refused")
        if _is_control(refused):
            shard.append_queue.extendleft(reversed(commits))
            detail = f"membership record {refused.message_id.hex()} refused by the log: {why}"
            stop(orders, shard, "membership_refused", detail)
            return
        shard.append_queue.extendleft(reversed(commits[:index] + commits[index + 1 :]))
        # Its successors in the conversation wait until it is out of the pending index (§1.3).
        shard.refusing = refused
        request = MarkRefused(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            items=(_mark_item(refused),),
        )
        orders.ask(Call.REFUSE, shard, request)

    def on_refused(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """REFUSED for ever: the next retry of this request hears the same."""
        if isinstance(answer, MarkLost):
            refresh(self._orders, shard, "mark_lost")
            return
        refused, shard.refusing = shard.refusing, None
        assert refused is not None
        if not refused.resumed:
            text = "the log refuses this record"
            self._verdicts.refuse(shard, refused, ErrorCode.INVALID_ARGUMENT, text)

    # ------------------------------------------------------------- mark

    def _mark(self, shard: Shard) -> None:
        orders = self._orders
        count = min(len(shard.mark_queue), orders.config.mark_items_max)
        commits = tuple(shard.mark_queue.popleft() for _ in range(count))
        shard.mark_inflight = commits
        request = MarkCommitted(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            applied_to=commits[-1].offset + 1,
            items=tuple([_mark_item(commit) for commit in commits]),
            traces=_traces(commits),
            before=digest_of(shard, commits[-1]),
        )
        orders.ask(Call.MARK, shard, request)

    def on_marked(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """COMMITTED in the present incarnation: the ack."""
        if isinstance(answer, MarkLost):
            # The intent is gone: the store lost a tail it had answered for (§0), never upserted.
            refresh(self._orders, shard, "mark_lost")
            return
        assert isinstance(answer, MarkedCommitted)
        commits, shard.mark_inflight = shard.mark_inflight, ()
        self._orders.count("messages", len(commits))
        for commit in commits:
            self._orders.stage(commit, COMMITTED)
            self._heads.note(shard, commit)
            self._acknowledge(shard, commit)
            self._moderating.tell(commit)

    def _acknowledge(self, shard: Shard, commit: Commit) -> None:
        if commit.resumed:
            return
        change = commit.change
        self._verdicts.leave(shard, commit)
        for waiter in commit.waiters:
            done: SendDone | GroupDone
            if change is None:
                done = SendDone(
                    rid=waiter.rid,
                    client_message_id=commit.client_message_id,
                    message_id=commit.message_id,
                    conversation_id=commit.conversation_id,
                    conversation_seq=commit.conversation_seq,
                    last_activity_id=commit.last_activity_id,
                    sent_at=commit.sent_at,
                )
            else:
                done = GroupDone(
                    rid=waiter.rid,
                    client_message_id=commit.client_message_id,
                    conversation_id=commit.conversation_id,
                    version=commit.version,
                    control_seq=commit.conversation_seq,
                    noop=False,
                )
            self._orders.answer(waiter, done, commit.trace_id)
        if change is not None:
            self._verdicts.version_committed(shard, commit)


def _mark_item(commit: Commit) -> MarkItem:
    return MarkItem(
        dedupe_key=commit.key,
        message_id=commit.message_id,
        conversation_id=commit.conversation_id,
        conversation_seq=commit.conversation_seq,
        offset=commit.offset,
    )


def _is_control(commit: Commit) -> bool:
    return commit.kind == MessageKind.CONTROL


def _is_ours(commit: Commit, existing: Existing) -> bool:
    """Our own reservation, answered once as Unknown and now found again (§1.1)."""
    return existing.state == CommitState.RECORDED and existing.message_id == commit.message_id


def _traces(commits: tuple[Commit, ...] | list[Commit]) -> tuple[int, ...]:
    return tuple([commit.trace_id for commit in commits[:TRACES_MAX]])
