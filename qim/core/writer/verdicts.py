"""What a request is told (pipeline.md §1.1): what stands under its key decides before any verdict of ours.

look-up --> replayed   COMMITTED with the same digest: its coordinates again, with today's request id
look-up --> conflict   another digest under the same key
look-up --> refused    REFUSED by the log once, refused for ever; or nothing found: the verdict
look-up --> waiting    nothing found and nothing to change: until the version named is COMMITTED
look-up --> asked      nothing found and the outside has not judged it: moderating.py

A stored commit is replayed before membership, not_after or the conversation's existence are held against a request. It
never resumes an intent: that is OPEN's alone.
"""

from typing import Final

from qim.core.contract.entities import CommitState
from qim.core.contract.errors import ErrorCode
from qim.core.contract.rpc import GroupDone, SendDone
from qim.core.ports.store_message import CommitsFound, Existing, LookupCommits
from qim.core.writer.commit import Ask, Commit, Waiter
from qim.core.writer.lifecycle import refresh
from qim.core.writer.membership import NoOp, Refusal
from qim.core.writer.moderating import Moderating
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.shard import Shard
from qim.core.writer.vocabulary import Answer


class Verdicts:
    """Looks up and answers; keeps nothing of its own."""

    def __init__(self, orders: Orders, moderating: Moderating) -> None:
        self._orders: Final = orders
        self._moderating: Final = moderating

    # -------------------------------------------------------------- look-up

    def flush(self, shard: Shard) -> None:
        """One LookupCommits in flight a shard; those that come meanwhile go with the next."""
        if shard.lookup_inflight or not shard.lookup_queue:
            return
        orders = self._orders
        count = min(len(shard.lookup_queue), orders.config.lookup_keys_max)
        commits = tuple(shard.lookup_queue.popleft() for _ in range(count))
        shard.lookup_inflight = commits
        request = LookupCommits(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            now_wall=orders.clock.wall(orders.now),
            dedupe_keys=tuple([commit.key for commit in commits]),
        )
        orders.ask(Call.LOOKUP, shard, request)

    def on_lookup(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Found: its coordinates, whatever the verdict was. None: the verdict."""
        assert isinstance(answer, CommitsFound)
        commits, shard.lookup_inflight = shard.lookup_inflight, ()
        for index, (commit, found) in enumerate(zip(commits, answer.commits, strict=True)):
            if found is None:
                self._pronounce(shard, commit)
            elif not self.settle(shard, commit, found):
                shard.lookup_inflight = commits[index:]
                refresh(self._orders, shard, "stray_intent")
                return

    def _pronounce(self, shard: Shard, commit: Commit) -> None:
        commit.doubtful = False
        verdict = commit.verdict
        assert verdict is not None
        if isinstance(verdict, Refusal):
            self.refuse(shard, commit, verdict.code, verdict.message)
            return
        if isinstance(verdict, Ask):
            self._moderating.enqueue(shard, commit)
            return
        waiting = shard.controls.get((commit.conversation_id, verdict.version))
        if waiting is None:
            self._answer_noop(shard, commit, verdict)
        else:
            waiting.append(commit)

    def version_committed(self, shard: Shard, control: Commit) -> None:
        """GROUP_OK of what changed nothing at this version may go out now (§1.9)."""
        noops = shard.controls.pop((control.conversation_id, control.version), [])
        for noop in noops:
            assert isinstance(noop.verdict, NoOp)
            self._answer_noop(shard, noop, noop.verdict)

    def _answer_noop(self, shard: Shard, commit: Commit, verdict: NoOp) -> None:
        self.leave(shard, commit)
        for waiter in commit.waiters:
            done = GroupDone(
                rid=waiter.rid,
                client_message_id=commit.client_message_id,
                conversation_id=commit.conversation_id,
                version=verdict.version,
                control_seq=verdict.control_seq,
                noop=True,
            )
            self._orders.answer(waiter, done, commit.trace_id)

    def settle(self, shard: Shard, commit: Commit, found: Existing) -> bool:
        """What stands under the key decides. False: an intent on its way that is not this pipeline's."""
        if found.request_digest != commit.digest:
            text = "this client_message_id is another request"
            self.refuse(shard, commit, ErrorCode.IDEMPOTENCY_CONFLICT, text)
        elif found.state == CommitState.REFUSED:
            text = "the log refused this record"
            self.refuse(shard, commit, ErrorCode.INVALID_ARGUMENT, text)
        elif found.state == CommitState.COMMITTED:
            self._replay(shard, commit, found)
        else:
            return False
        return True

    def _replay(self, shard: Shard, commit: Commit, found: Existing) -> None:
        """The ack again, with today's request id."""
        self._orders.count("duplicate_send", label="replayed")
        self.leave(shard, commit)
        for waiter in commit.waiters:
            done: SendDone | GroupDone
            if commit.group is None:
                done = SendDone(
                    rid=waiter.rid,
                    client_message_id=commit.client_message_id,
                    message_id=found.message_id,
                    conversation_id=found.conversation_id,
                    conversation_seq=found.conversation_seq,
                    last_activity_id=found.last_activity_id,
                    sent_at=found.sent_at,
                )
            else:
                done = GroupDone(
                    rid=waiter.rid,
                    client_message_id=commit.client_message_id,
                    conversation_id=found.conversation_id,
                    version=found.version,
                    control_seq=found.conversation_seq,
                    noop=False,
                )
            self._orders.answer(waiter, done, commit.trace_id)

    # -------------------------------------------------------------- ends

    def leave(self, shard: Shard, commit: Commit) -> None:
        """The shard knows it no more."""
        del shard.commits[commit.key]
        self._orders.release(commit)

    def refuse(self, shard: Shard, commit: Commit, code: ErrorCode, text: str) -> None:
        """Tell everybody who waits, and forget it. "Surely not done" is never said of a reservation in doubt."""
        retry = 0
        if code is ErrorCode.UNAVAILABLE:
            retry = self._orders.config.retry_after_ms
            if commit.doubtful:
                code = ErrorCode.TIMEOUT_UNKNOWN
        self.leave(shard, commit)
        for waiter in commit.waiters:
            self._orders.refuse(waiter, code, text, retry, commit.trace_id)

    def expire(self, waiter: Waiter) -> None:
        """request_timeout_ms are over: the work goes on if a reservation of it ever left this machine."""
        commit = waiter.commit
        retry = self._orders.config.retry_after_ms
        if commit is None:
            self._orders.refuse(waiter, ErrorCode.UNAVAILABLE, "the read took too long", retry)
            return
        commit.waiters.remove(waiter)
        code = ErrorCode.TIMEOUT_UNKNOWN if commit.sent else ErrorCode.UNAVAILABLE
        self._orders.refuse(waiter, code, "no answer in time", retry, commit.trace_id)
