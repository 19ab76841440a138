"""Asking before a message is taken, telling after it was committed (pipeline.md §1.2; ports/moderation.py).

looked up, nothing there --> asked      by message, several at a time
asked                    --> allowed    goes back to be judged and reserved
asked                    --> rejected   looked up once more, then MODERATION_REJECTED
asked                    --> unjudged   open: as allowed; closed: UNAVAILABLE, a retry asks again

What is committed or recorded under its key is found by the look-up before, so an accepted message is neither asked again
nor refused afterwards. Verdicts of a conversation take effect in the order its messages came in, whatever was answered
first. Membership changes and overlays are not asked about.
"""

from collections import deque
from typing import Final

from qim.core.contract.entities import ConversationKind, MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.ports.moderation import AskVerdict, FailPolicy, NotifySent, Verdict, VerdictGiven
from qim.core.writer.audience import Audience
from qim.core.writer.commit import Ask, Commit
from qim.core.writer.freeze import stored_of
from qim.core.writer.membership import Refusal
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.shard import SERVING, Shard
from qim.core.writer.vocabulary import Answer

UNTOLD: Final = (MessageKind.CONTROL, MessageKind.RECALL, MessageKind.DELETE_FOR_ME)


class Moderating:
    """Asks and releases; keeps nothing of its own."""

    def __init__(self, orders: Orders) -> None:
        self._orders: Final = orders

    def question(self, commit: Commit, audience: Audience) -> Ask | None:
        """What must be asked before ``commit`` may be reserved, once a message whatever is frozen anew."""
        if self._orders.config.before_send is FailPolicy.OFF or commit.moderated:
            return None
        if commit.kind in UNTOLD:
            return None
        sender, peer = commit.actor.user_id, 0
        if audience.kind == ConversationKind.SINGLE:
            first, last = audience.members[0], audience.members[-1]
            peer = last if first == sender else first
        return Ask(conversation_kind=audience.kind, peer_user_id=peer)

    def enqueue(self, shard: Shard, commit: Commit) -> None:
        """Nothing stands under its key: it waits for its turn to be asked about."""
        shard.moderating.setdefault(commit.conversation_id, deque()).append(commit)
        shard.unasked.append(commit)
        self._orders.touch(shard)

    def flush(self, shard: Shard) -> None:
        """At the end of a step: as many asks as may be in flight."""
        config = self._orders.config
        while shard.stage is SERVING and shard.unasked and shard.asking < config.asks_inflight_max:
            commit = shard.unasked.popleft()
            if commit.waiters:
                self._ask(shard, commit)
            else:
                # Nobody waits any more: it goes to its end without anybody being bothered.
                commit.opinion = Verdict.ALLOW
                self._release(shard, commit.conversation_id)

    def _ask(self, shard: Shard, commit: Commit) -> None:
        about, actor = commit.verdict, commit.actor
        assert isinstance(about, Ask)
        shard.asking += 1
        request = AskVerdict(
            op=self._orders.next_op(),
            dedupe_key=commit.key,
            tenant_id=actor.tenant_id,
            sender_id=actor.user_id,
            device_id=actor.device_id,
            client_message_id=commit.client_message_id,
            conversation_id=commit.conversation_id,
            conversation_kind=about.conversation_kind,
            peer_user_id=about.peer_user_id,
            kind=commit.kind,
            custom_type=commit.custom_type,
            body=commit.body,
            traces=(commit.trace_id,),
        )
        self._orders.ask(Call.MODERATE, shard, request, commit.key)

    def on_verdict(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """The outside has spoken."""
        assert isinstance(answer, VerdictGiven)
        self._hear(shard, pending, answer.verdict)

    def unheard(self, shard: Shard, pending: Pending) -> None:
        """Failed or Unknown: nobody has judged it."""
        self._hear(shard, pending, Verdict.UNAVAILABLE)

    def _hear(self, shard: Shard, pending: Pending, verdict: Verdict) -> None:
        assert isinstance(pending.subject, bytes)
        shard.asking -= 1
        self._orders.count("moderation_verdicts", label=verdict.value)
        commit = shard.commits[pending.subject]
        commit.opinion = verdict
        self._release(shard, commit.conversation_id)

    def _release(self, shard: Shard, conversation_id: bytes) -> None:
        waiting = shard.moderating[conversation_id]
        while waiting and waiting[0].opinion is not None:
            self._settle(shard, waiting.popleft())
        if not waiting:
            del shard.moderating[conversation_id]

    def _settle(self, shard: Shard, commit: Commit) -> None:
        self._orders.touch(shard)
        opinion, commit.opinion = commit.opinion, None
        commit.verdict = None
        if opinion is Verdict.REJECT:
            text = "the before-send check refused the message"
            commit.verdict = Refusal(code=ErrorCode.MODERATION_REJECTED, message=text)
        elif opinion is Verdict.UNAVAILABLE:
            if self._orders.config.before_send is FailPolicy.OPEN:
                self._orders.count("moderation_failed_open")
            else:
                text = "the before-send check can't be asked"
                commit.verdict = Refusal(code=ErrorCode.UNAVAILABLE, message=text)
        if commit.verdict is None:
            commit.moderated = True
            shard.ready.append(commit)
        else:
            # Refused only if nothing came to stand under its key meanwhile.
            shard.lookup_queue.append(commit)

    def tell(self, commit: Commit) -> None:
        """COMMITTED: whoever wants to know is told, whether a client of ours waited or OPEN finished it."""
        if not self._orders.config.after_send:
            return
        if commit.kind in UNTOLD:
            return
        notice = NotifySent(stored=stored_of(commit), traces=(commit.trace_id,))
        self._orders.emit(notice)
