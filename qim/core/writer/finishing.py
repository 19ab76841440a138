"""The end of OPEN: the pending index finished in seq order under the new epoch, then the shard serves (pipeline.md §1.6 e, f).

barrier reached --> ReadPending --> the commit pipeline appends and marks the page --> ReadPending
nothing pending --> SERVING

An intent here was recorded by an owner of the past and is in no outbox that counts: it is appended as it stands, once.
"""

from typing import Final

from qim.core.contract.actor import Actor
from qim.core.contract.entities import decode_stored_record
from qim.core.contract.ids import dedupe_key
from qim.core.ports.store_message import PendingRead, ReadPending
from qim.core.writer.commit import Commit
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.shard import SERVING, Shard, Walk
from qim.core.writer.trimming import Trimming
from qim.core.writer.vocabulary import Answer


class Finishing:
    """Keeps nothing of its own: how far it has come stands in the shard's walk."""

    def __init__(self, orders: Orders, trimming: Trimming) -> None:
        self._orders: Final = orders
        self._trimming: Final = trimming

    def flush(self, shard: Shard) -> None:
        """At the end of a step: the next page once one is finished."""
        walk = shard.walk
        if walk.page_due and shard.drained():
            walk.page_due = False
            self.read_page(shard)
        elif walk.finished and shard.drained():
            self._serve(shard)

    def read_page(self, shard: Shard) -> None:
        """The next intents in order of conversation and seq."""
        orders = self._orders
        request = ReadPending(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            after=shard.walk.pending_after,
            limit=orders.config.pending_page_max,
        )
        orders.ask(Call.PENDING, shard, request)

    def on_pending(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """A page of intents goes through the pipeline under the new epoch before the next is read."""
        assert isinstance(answer, PendingRead)
        for stored in answer.stored:
            commit = resumed_commit(stored)
            self._orders.clock.raise_above(commit.message_id)
            shard.append_queue.append(commit)
        self._orders.count("intent_resumed", len(answer.stored))
        shard.walk.pending_after = answer.last
        shard.walk.page_due = answer.more
        shard.walk.finished = not answer.more

    def _serve(self, shard: Shard) -> None:
        shard.move(SERVING)
        shard.walk = Walk()
        self._trimming.serve(shard)
        self._orders.count("shard_serving")


def resumed_commit(stored: bytes) -> Commit:
    """An intent read back from the pending index, as the pipeline appends it: nobody waits for it here."""
    record = decode_stored_record(stored)
    return Commit(
        key=dedupe_key(record.tenant_id, record.sender_id, record.client_message_id),
        digest=record.request_digest,
        actor=Actor(record.tenant_id, record.sender_id, record.device_id),
        client_message_id=record.client_message_id,
        conversation_id=record.conversation_id,
        kind=record.kind,
        not_after=record.not_after,
        trace_id=record.trace_id,
        sent=True,
        resumed=True,
        message_id=record.message_id,
        record=stored[24:],
        sent_at=record.sent_at,
        conversation_seq=record.conversation_seq,
        last_activity_id=record.last_activity_id,
        version=record.version,
    )
