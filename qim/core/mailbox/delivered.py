"""How far each device has its mailbox: what a pulled-from cursor proves, noted now and then (pipeline.md §4).

    cursor judged good --greater than what is noted--> waiting --delivered_ms--> NoteDelivered --noted--> known
                           |--no room: dropped                       |--any other answer: dropped

Lossy by design: whatever is dropped the device's next pull says again. No pull waits for it, no cursor moves by it.
"""

from msgspec import Struct, field

from qim.core.contract.cursor import Cursor
from qim.core.machine import Ms
from qim.core.mailbox.orders import Orders, What
from qim.core.mailbox.shard import Shard
from qim.core.mailbox.vocabulary import MailboxConfig
from qim.core.ports.observe import Count
from qim.core.ports.store_session import NoteDelivered
from qim.core.timers import earliest

Device = tuple[str, int, bytes]
"""(tenant_id, user_id, device_id)."""


class ShardDelivered(Struct):
    """Of one shard object. ``known``: what the store holds at least, so that an idle device's pulls write nothing."""

    shard: Shard
    waiting: dict[Device, int] = field(default_factory=dict)
    known: dict[Device, int] = field(default_factory=dict)
    asked: tuple[tuple[str, int, bytes, int], ...] = ()
    due: Ms | None = None


class Delivered:
    """The notes of all shards: both tables bounded a shard, one request a shard in flight."""

    def __init__(self, config: MailboxConfig, orders: Orders) -> None:
        self._config = config
        self._orders = orders
        self._shards: dict[int, ShardDelivered] = {}
        self._ops: dict[int, ShardDelivered] = {}

    def note(self, now: Ms, shard: Shard, cursor: Cursor) -> None:
        """A device showed this cursor: it holds everything up to it."""
        part = self._shards.get(shard.number)
        if part is None or part.shard is not shard:
            part = self._shards[shard.number] = ShardDelivered(shard)
        device = (cursor.tenant_id, cursor.user_id, cursor.device_id)
        if cursor.seq <= max(part.known.get(device, 0), part.waiting.get(device, 0)):
            return
        if device not in part.waiting and len(part.waiting) >= self._config.delivered_items_max:
            self._orders.give(Count(name="mailbox_delivered_dropped"))
            return
        part.waiting[device] = cursor.seq
        if part.due is None:
            part.due = now + self._config.delivered_ms

    def forget(self, number: int) -> None:
        """The shard is a thing of the past."""
        self._shards.pop(number, None)

    def flush(self, now: Ms) -> None:
        """Write what is due, a shard with a request in flight later."""
        for number, part in self._shards.items():
            if part.asked or part.due is None or part.due > now:
                continue
            part.due = None
            part.asked = tuple((*device, seq) for device, seq in part.waiting.items())
            part.waiting.clear()
            op = self._orders.op(What.DELIVERED)
            self._ops[op] = part
            self._orders.give(
                NoteDelivered(
                    op=op, shard=number, incarnation=part.shard.incarnation, items=part.asked
                )
            )

    def on_answer(self, op: int, *, noted: bool) -> None:
        """Noted, or lost: then the next pull says it again."""
        part = self._ops.pop(op)
        if noted:
            for tenant_id, user_id, device_id, seq in part.asked:
                self._learn(part.known, (tenant_id, user_id, device_id), seq)
        part.asked = ()

    def _learn(self, known: dict[Device, int], device: Device, seq: int) -> None:
        known.pop(device, None)
        known[device] = seq
        if len(known) > self._config.delivered_known_max:
            del known[next(iter(known))]

    def deadline(self) -> Ms | None:
        """When something is due that doesn't wait for an answer."""
        return earliest(*[part.due for part in self._shards.values() if not part.asked])

    def check(self) -> None:
        """Bounded; what waits has a time."""
        for part in self._shards.values():
            assert len(part.waiting) <= self._config.delivered_items_max
            assert len(part.known) <= self._config.delivered_known_max
            assert part.shard.live and bool(part.waiting) == (part.due is not None)
