"""(tenant, sender, cmid) commits once, ever; a message_id stands once in the effective outbox; a seq belongs to one
message; inside a conversation append order is seq order (pipeline.md §1.1, §1.3, §1.7)."""

from typing import TYPE_CHECKING, Final

from qim.sim.history import History
from qim.sim.oracle import Effective

if TYPE_CHECKING:
    from qim.sim.scene import Scene

TWICE: Final = 2


class CommitOnce:
    """Judges every effective record as it lands."""

    def __init__(self) -> None:
        self.by_request: dict[tuple[str, int, bytes], bytes] = {}
        self.by_seq: dict[tuple[bytes, int], bytes] = {}
        self.last_seq: dict[bytes, int] = {}
        self.seen: dict[bytes, Effective] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_effective.append(self.effective)

    def effective(self, message: Effective) -> None:
        record, found = message.record, self.history.found
        message_id = record.message_id
        where = (
            f"partition {message.partition} offset {message.offset} seq {record.conversation_seq}"
        )
        before = self.seen.get(message_id)
        self.seen[message_id] = message
        if before is not None:
            if not self._may_come_again(before, message):
                found("effective_once", "writer", f"again at {where}", message_id)
            return
        request = (record.tenant_id, record.sender_id, record.client_message_id)
        other = self.by_request.setdefault(request, message_id)
        if other != message_id:
            text = f"request {record.client_message_id.hex()} committed twice, {where}"
            found("commit_once", "writer", text, message_id)
        place = (record.conversation_id, record.conversation_seq)
        if self.by_seq.setdefault(place, message_id) != message_id:
            found("seq_unique", "writer", f"two messages at {where}", message_id)
        last = self.last_seq.get(record.conversation_id, 0)
        if record.conversation_seq <= last:
            text = f"{where} stands behind seq {last}"
            found("append_order", "writer", text, message_id)
        self.last_seq[record.conversation_id] = max(last, record.conversation_seq)

    def _may_come_again(self, before: Effective, message: Effective) -> bool:
        """What its log had lost; what stands there since a barrier was lost that had voided it; and once behind its place,
        where others had been read there (decision 0021, Price)."""
        oracle = self.history.oracle
        unfenced = oracle.unfenced.get(message.partition, 0)
        if oracle.was_lost(before) or before.epoch < unfenced:
            return True
        message_id = message.record.message_id
        standing = [
            one
            for one in oracle.in_order[message.partition]
            if one.record.message_id == message_id and one.epoch >= unfenced
        ]
        return message.again and len(standing) <= TWICE

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
