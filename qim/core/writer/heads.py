"""ConversationHead follows the commits, asynchronously and never blocking them (pipeline.md §1.4).

Coalesced by conversation, bounded, best effort: a lost head is rebuilt by the conversation's next message.
"""

from typing import Final

from qim.core.ports.store_message import WriteHeads
from qim.core.writer.commit import Commit
from qim.core.writer.orders import Call, Orders, Pending
from qim.core.writer.shard import Shard
from qim.core.writer.vocabulary import Answer


class Heads:
    """Heads wait in their shard; nothing is kept here."""

    def __init__(self, orders: Orders) -> None:
        self._orders: Final = orders

    def note(self, shard: Shard, commit: Commit) -> None:
        """Marks come in seq order, so the last one is the newest; beyond heads_max conversations one is dropped and counted."""
        heads, limit = shard.heads, self._orders.config.heads_max
        if len(heads) >= limit and commit.conversation_id not in heads:
            self._orders.count("heads_dropped")
        else:
            shard.heads[commit.conversation_id] = (
                commit.conversation_id,
                commit.conversation_seq,
                commit.last_activity_id,
                commit.message_id,
            )

    def flush(self, shard: Shard) -> None:
        """One WriteHeads in flight a shard."""
        if shard.heads_busy or not shard.heads:
            return
        orders = self._orders
        names = list(shard.heads)[: orders.config.head_items_max]
        shard.heads_busy = True
        request = WriteHeads(
            op=orders.next_op(),
            shard=shard.number,
            epoch=shard.epoch,
            incarnation=shard.incarnation,
            heads=tuple([shard.heads.pop(name) for name in names]),
        )
        orders.ask(Call.HEADS, shard, request)

    def on_heads(self, shard: Shard, pending: Pending, answer: Answer) -> None:
        """Written."""
        shard.heads_busy = False

    def lost(self, shard: Shard) -> None:
        """Best effort: a head is rebuilt by the next message, nobody waits for it."""
        shard.heads_busy = False
        self._orders.count("heads_dropped")
