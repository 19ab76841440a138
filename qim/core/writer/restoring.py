"""OPEN when the log begins above what the store has applied: the archive restores what it keeps (pipeline.md §1.8).

one offset missing --> ReadLease   where our own last barrier stood nothing is lost: an idle shard outlives retention
missing range --> ReadPending      an intent there may be archived already: only without any the way is safe
nothing pending --> ReadArchivedConversations, page by page --> RestoreConversations --> ``applied`` = the log's start
archive's position below the log's start --> stopped, the missing range named

The position is the archive's own: a store that comes back EMPTY has lost the archiver's. What the archive lacks and the
log still has is applied from the log as ever.
"""

from collections.abc import Callable
from typing import Final

from qim.core.ports.archive import (
    ArchivedConversation,
    ArchivedConversationsRead,
    ReadArchivedConversations,
)
from qim.core.ports.registry import LeaseRead, ReadLease
from qim.core.ports.store_history import RestoreConversations
from qim.core.ports.store_message import PendingRead, ReadPending
from qim.core.writer.lifecycle import stop
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.shard import Shard
from qim.core.writer.vocabulary import Answer

WEIGHT_BASE: Final = 24
"""Script arguments one conversation costs besides its versions, members and overlays; an upper estimate."""

Restored = Callable[[Shard], None]


class Restoring:
    """Keeps nothing of its own: how far it has come stands in the shard's walk."""

    def __init__(self, orders: Orders, restored: Restored) -> None:
        self._orders: Final = orders
        self._restored: Final = restored

    def ask_position(self, shard: Shard) -> None:
        """How far is the archive? It has no name of the log it was filled from; a store that is not empty has."""
        request = ReadArchivedConversations(
            op=self._orders.next_op(), partition=shard.number, after=b"", limit=0
        )
        self._orders.ask(Call.ARCHIVED, shard, request)

    def behind(self, shard: Shard, start: int) -> None:
        """``applied`` is below the log's start."""
        orders, walk = self._orders, shard.walk
        walk.log_start = start
        if start != walk.applied + 1:
            self.begin(shard, start)
            return
        request = ReadLease(op=orders.next_op(), resource=shard.resource, barriers_below=start)
        orders.ask(Call.BELOW, shard, request)

    def on_below(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Was the one missing offset a barrier?"""
        assert isinstance(answer, LeaseRead)
        if answer.barrier_offset == shard.walk.applied:
            shard.walk.restore_more = False
            self._restore(shard)
        else:
            self.begin(shard, shard.walk.log_start)

    def begin(self, shard: Shard, start: int) -> None:
        """[applied, start) is gone from the log."""
        orders, walk = self._orders, shard.walk
        if not orders.config.tiered:
            self.lost(shard, walk.applied, start)
            return
        walk.log_start = start
        walk.restore_after, walk.restore_more = b"", True
        request = ReadPending(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            after=b"",
            limit=1,
        )
        orders.ask(Call.INTENTS, shard, request)

    def lost(self, shard: Shard, low: int, high: int) -> None:
        """Refuse to serve, and say what is missing."""
        detail = f"outbox {shard.number}: [{low}, {high}) is gone from the log and not in the store"
        stop(self._orders, shard, "outbox_range_lost", detail)

    def on_intents(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Was an intent appended in the range that is gone? Nobody can say any more, so none may be left to finish."""
        assert isinstance(answer, PendingRead)
        if answer.stored:
            self.lost(shard, shard.walk.applied, shard.walk.log_start)
        else:
            self._read(shard)

    def _read(self, shard: Shard) -> None:
        orders = self._orders
        request = ReadArchivedConversations(
            op=orders.next_op(),
            partition=shard.number,
            after=shard.walk.restore_after,
            limit=orders.config.restore_page_max,
        )
        orders.ask(Call.CONVERSATIONS, shard, request)

    def on_conversations(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """A page, if the archive reaches the log's start at all."""
        assert isinstance(answer, ArchivedConversationsRead)
        walk = shard.walk
        if answer.position < walk.log_start:
            self.lost(shard, max(walk.applied, answer.position), walk.log_start)
            return
        walk.restoring.extend(answer.conversations)
        walk.restore_more = answer.more
        if answer.conversations:
            walk.restore_after = answer.conversations[-1].conversation_id
        self._restore(shard)

    def _restore(self, shard: Shard) -> None:
        orders, walk = self._orders, shard.walk
        batch: list[ArchivedConversation] = []
        weight = 0
        while walk.restoring:
            weight += _weight(walk.restoring[0])
            if batch and weight > orders.config.apply_args_max:
                break
            batch.append(walk.restoring.popleft())
        for conversation in batch:
            # Every id of the partition is at most its conversation's activity: later ids must be greater (contract).
            orders.clock.raise_above(conversation.last_activity_id)
        last = not walk.restoring and not walk.restore_more
        request = RestoreConversations(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            conversations=tuple(batch),
            applied_to=walk.log_start if last else 0,
        )
        orders.ask(Call.RESTORE, shard, request)

    def on_restored(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """So many are back."""
        assert isinstance(pending.request, RestoreConversations)
        walk = shard.walk
        self._orders.count("conversations_restored", len(pending.request.conversations))
        if pending.request.applied_to:
            walk.applied = walk.fetched = walk.log_start
            walk.before = b""
            self._restored(shard)
        elif walk.restoring:
            self._restore(shard)
        else:
            self._read(shard)


def _weight(conversation: ArchivedConversation) -> int:
    named = len(conversation.versions) + len(conversation.everyone) + len(conversation.overlays)
    return WEIGHT_BASE + 2 * named
