"""Requests from their arrival to a judgement (pipeline.md §1.1): validate, admit, attach, freeze the audience or not.

arrives  --> attached   the same dedupe key is already on its way and the digest agrees
arrives  --> ready      valid and admitted; judged when its batch is frozen
ready    --> loading    its conversation's members are not known here
ready    --> frozen     the audience stands: the pipeline reserves it
ready    --> look-up    it would be rejected, changes nothing, or the outside must be asked (verdicts.py, moderating.py)

Nothing is looked up, reserved, appended or marked here.
"""

from typing import Final

from qim.core.contract.entities import ConversationKind, MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import dedupe_key, single_conversation_id
from qim.core.contract.rpc import SubmitOverlay, SubmitSend
from qim.core.ports.network import Received
from qim.core.ports.store_reads import MembershipRead, ReadMembership
from qim.core.writer.admission import TokenBuckets
from qim.core.writer.arrivals import Submit, commit_of, digest_of
from qim.core.writer.audience import NOWHERE, Audience, AudienceCache, audience_of
from qim.core.writer.commit import Ask, Commit, Waiter
from qim.core.writer.deadlines import Deadlines
from qim.core.writer.history import Reads
from qim.core.writer.membership import (
    GroupChange,
    GroupLimits,
    NoOp,
    Refusal,
    plan_change,
)
from qim.core.writer.moderating import Moderating
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.overlays import Target, judge_overlay
from qim.core.writer.shard import CLOSED, STOPPED, Shard
from qim.core.writer.validation import group_fault, overlay_fault, send_fault
from qim.core.writer.verdicts import Verdicts
from qim.core.writer.vocabulary import Answer

CREATE: Final = MembershipOp.CREATE


class Requests:
    """Takes writes and gives verdicts; a request lives in its shard's ``commits`` from arrival to answer."""

    def __init__(
        self,
        orders: Orders,
        deadlines: Deadlines,
        audiences: AudienceCache,
        verdicts: Verdicts,
        reads: Reads,
        moderating: Moderating,
    ) -> None:
        config = orders.config
        self._moderating: Final = moderating
        self._reads: Final = reads
        self._verdicts: Final = verdicts
        self._orders: Final = orders
        self._deadlines: Final = deadlines
        self._audiences: Final = audiences
        self._devices = TokenBuckets(
            config.device_rate_per_s, config.device_burst_max, config.admission_keys_max
        )
        self._conversations = TokenBuckets(
            config.conversation_rate_per_s, config.conversation_burst_max, config.admission_keys_max
        )
        self._tenants = TokenBuckets(
            config.tenant_rate_per_s, config.tenant_burst_max, config.admission_keys_max
        )
        self._limits: Final = GroupLimits(
            members_max=config.group_members_max,
            broadcast_max=config.membership_broadcast_max,
            recipients_max=config.explicit_recipients_max,
        )

    # -------------------------------------------------------------- arrival

    def fault(self, message: Submit) -> Refusal | None:
        """A request that could never have been committed in this form."""
        if isinstance(message, SubmitSend):
            return send_fault(message, self._orders.config)
        if isinstance(message, SubmitOverlay):
            return overlay_fault(message)
        return group_fault(message, self._orders.config)

    def submit(
        self,
        shard: Shard | None,
        number: int,
        received: Received,
        message: Submit,
        conversation_id: bytes,
    ) -> None:
        """A valid request, and the shard its conversation belongs to (None: not ours) with its number."""
        waiter = self._deadlines.waiter(received.source, message.rid, number)
        actor = message.actor
        if shard is None or shard.stage is CLOSED:
            self._orders.refuse(waiter, ErrorCode.NOT_OWNER, "another writer owns the conversation")
            return
        key = dedupe_key(actor.tenant_id, actor.user_id, message.client_message_id)
        digest = digest_of(message, conversation_id)
        known = shard.commits.get(key)
        if known is not None:
            self._attach(known, waiter, digest)
            return
        refused = self._admit(shard, message, conversation_id)
        if refused is not None:
            self._orders.refuse(waiter, *refused)
            return
        commit = commit_of(message, conversation_id, key, digest)
        commit.waiters.append(waiter)
        waiter.commit = commit
        self._deadlines.watch(waiter)
        self._orders.hold(commit)
        shard.commits[key] = commit
        shard.ready.append(commit)
        self._orders.touch(shard)

    def _attach(self, commit: Commit, waiter: Waiter, digest: bytes) -> None:
        """Requests with one key share one commit, however many rids ask for it."""
        self._orders.count("duplicate_send", label="attached")
        if commit.digest != digest:
            self._orders.refuse(
                waiter, ErrorCode.IDEMPOTENCY_CONFLICT, "this client_message_id is another request"
            )
            return
        known = [(other.address, other.rid) for other in commit.waiters]
        if (waiter.address, waiter.rid) in known:
            return  # the network doubled the question; one answer is owed
        if len(commit.waiters) >= self._orders.config.waiters_max or self._deadlines.full():
            retry = self._orders.config.retry_after_ms
            self._orders.refuse(waiter, ErrorCode.RATE_LIMITED, "it is on its way already", retry)
            return
        commit.waiters.append(waiter)
        waiter.commit = commit
        self._deadlines.watch(waiter)

    def _admit(
        self, shard: Shard, message: Submit, conversation_id: bytes
    ) -> tuple[ErrorCode, str, int] | None:
        orders, config = self._orders, self._orders.config
        if shard.stage is STOPPED:
            return ErrorCode.UNAVAILABLE, "the shard is stopped", config.retry_delay_max_ms
        if (
            orders.held_commits >= config.commits_max
            or orders.held_bytes >= config.commit_bytes_max
            or self._deadlines.full()
        ):
            return ErrorCode.UNAVAILABLE, "too many requests in flight", config.retry_after_ms
        actor = message.actor
        wait = self._devices.admit((actor.tenant_id, actor.user_id, actor.device_id), orders.now)
        if wait:
            return ErrorCode.RATE_LIMITED, "the device sends too fast", wait
        wait = self._tenants.admit(actor.tenant_id, orders.now)
        if wait:
            return ErrorCode.RATE_LIMITED, "the tenant sends too fast", wait
        wait = self._conversations.admit(conversation_id, orders.now)
        if wait:
            return ErrorCode.RATE_LIMITED, "the conversation is too fast", wait
        return None

    # -------------------------------------------------------------- judgement

    def judge(self, shard: Shard, commit: Commit) -> Audience | GroupChange | None:
        """Freeze the audience at what is known now. None: the request went elsewhere (load, look-up, or gone)."""
        if not commit.waiters:
            # Nobody waits any more, and what was reserved before a fresh epoch OPEN has settled.
            self._verdicts.leave(shard, commit)
            return None
        verdict: Refusal | NoOp | Ask | None = self._untimely(commit)
        if verdict is None:
            audience = self._audience(shard, commit)
            if audience is None:
                self._load(shard, commit)
                return None
            if commit.target_seq and commit.target is None:
                self._inspect(shard, commit)
                return None
            judged = self._judge_members(commit, audience)
            if isinstance(judged, GroupChange):
                return judged
            if isinstance(judged, Audience):
                verdict = self._moderating.question(commit, judged)
                if verdict is None:
                    return judged
            else:
                verdict = judged
        commit.verdict = verdict
        shard.lookup_queue.append(commit)
        return None

    def _untimely(self, commit: Commit) -> Refusal | None:
        orders = self._orders
        if orders.clock.refuses:
            return Refusal(code=ErrorCode.UNAVAILABLE, message="this writer's clock runs ahead")
        wall = orders.clock.wall(orders.now)
        if commit.not_after < wall:
            return Refusal(code=ErrorCode.SEND_EXPIRED, message="not_after has passed")
        if commit.not_after > wall + orders.config.not_after_max_ms:
            return Refusal(code=ErrorCode.INVALID_ARGUMENT, message="not_after is too far ahead")
        return None

    def _audience(self, shard: Shard, commit: Commit) -> Audience | None:
        if commit.group is not None and commit.group.op == CREATE:
            return NOWHERE
        cached = self._audiences.get(commit.conversation_id, shard.generation)
        if cached is not None:
            return cached
        if commit.peer_user_id:
            # A single chat needs no read: its id is made of its two users.
            audience = _single(commit.actor.user_id, commit.peer_user_id)
            self._audiences.put(commit.conversation_id, shard.generation, audience)
            return audience
        return commit.audience

    def _judge_members(
        self, commit: Commit, audience: Audience
    ) -> Audience | GroupChange | NoOp | Refusal:
        if commit.group is not None:
            return plan_change(commit.group, commit.actor.user_id, audience, self._limits)
        if audience.kind == 0:
            text = "no such conversation; a single chat's first message names its peer"
            return Refusal(code=ErrorCode.NOT_FOUND, message=text)
        if audience.kind not in (ConversationKind.SINGLE, ConversationKind.GROUP):
            return Refusal(code=ErrorCode.UNSUPPORTED, message="not a conversation to send to")
        if commit.target is not None:
            return self._judge_target(commit, commit.target, audience)
        if commit.actor.user_id not in audience.present or not _of_tenant(commit, audience):
            return Refusal(code=ErrorCode.NOT_MEMBER, message="only members send")
        return audience

    # -------------------------------------------------------------- targets of overlays

    def _inspect(self, shard: Shard, commit: Commit) -> None:
        if not self._reads.inspect(shard, commit):
            text = "too many reads in flight"
            self._verdicts.refuse(shard, commit, ErrorCode.UNAVAILABLE, text)

    def on_target(self, shard: Shard, commit: Commit, target: Target) -> None:
        """The row is known, or that there is none: the request is judged in its turn."""
        commit.target = target
        shard.ready.appendleft(commit)

    def _judge_target(
        self, commit: Commit, target: Target, audience: Audience
    ) -> Audience | Refusal:
        orders = self._orders
        wall = orders.clock.wall(orders.now)
        window = orders.config.recall_window_ms
        refusal = judge_overlay(commit.kind, commit.actor, audience, target, wall, window)
        if refusal is not None:
            return refusal
        if not _of_tenant(commit, audience):
            return Refusal(code=ErrorCode.NOT_MEMBER, message="never a member of it")
        return audience

    # -------------------------------------------------------------- members

    def _load(self, shard: Shard, commit: Commit) -> None:
        waiting = shard.loads.get(commit.conversation_id)
        if waiting is not None:
            waiting.append(commit)
            return
        if len(shard.loads) >= self._orders.config.membership_loads_max:
            self._verdicts.refuse(
                shard, commit, ErrorCode.UNAVAILABLE, "too many conversations being read"
            )
            return
        shard.loads[commit.conversation_id] = [commit]
        request = ReadMembership(
            op=self._orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            conversation_id=commit.conversation_id,
        )
        self._orders.ask(Call.LOAD, shard, request, commit.conversation_id)

    def on_load(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """The waiting requests go back to the front in the order they came in."""
        assert isinstance(answer, MembershipRead)
        assert isinstance(pending.subject, bytes)
        waiting = shard.loads.pop(pending.subject)
        audience = audience_of(answer)
        self._audiences.put(pending.subject, shard.generation, audience)
        for commit in waiting:
            # Kept beside the cache, or a cache too small for its conversations would read for ever.
            commit.audience = audience
        shard.ready.extendleft(reversed(waiting))

    def refreeze(self, shard: Shard, moved: list[Commit]) -> None:
        """The store stands at another version: no seq was consumed, freeze again, at most so often (§1.2)."""
        again: list[Commit] = []
        for commit in moved:
            self._orders.count("refreeze")
            self._audiences.drop(commit.conversation_id)
            commit.audience = None
            commit.refreezes += 1
            if commit.group is not None and commit.group.op == CREATE:
                text = "a group of this client_message_id exists already"
                self._verdicts.refuse(shard, commit, ErrorCode.IDEMPOTENCY_CONFLICT, text)
            elif commit.refreezes > self._orders.config.refreeze_attempts_max:
                text = "members keep changing"
                self._verdicts.refuse(shard, commit, ErrorCode.MEMBERSHIP_CHANGED, text)
            else:
                again.append(commit)
        shard.ready.extendleft(reversed(again))

    def check(self) -> None:
        """The buckets' own."""
        self._devices.check()
        self._conversations.check()
        self._tenants.check()


def _single(user_id: int, peer_user_id: int) -> Audience:
    present = frozenset((user_id, peer_user_id))
    return Audience(
        kind=ConversationKind.SINGLE,
        version=0,
        digest=b"",
        control_seq=0,
        members=tuple(sorted(present)),
        present=present,
        creator=0,
        name="",
        meta=b"",
    )


def _of_tenant(commit: Commit, audience: Audience) -> bool:
    """A single chat's id names its tenant, so another tenant's user of the same number is a stranger to it."""
    if audience.kind != ConversationKind.SINGLE or commit.peer_user_id:
        return True
    first, last = audience.members[0], audience.members[-1]
    expected = single_conversation_id(commit.actor.tenant_id, first, last)
    return expected == commit.conversation_id
