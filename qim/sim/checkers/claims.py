"""No dispatch_id is materialised at two offsets: each recipient has exactly one entry of a message, at the first offset
(pipeline.md §3.1), whatever was lost and replayed in between."""

from typing import TYPE_CHECKING, Any

from qim.core.contract.entities import decode_entry
from qim.core.contract.ids import dispatch_id, event_id
from qim.core.ports.store_mailbox import AppendEntries, EntriesAppended
from qim.sim.history import History
from qim.sim.node import Host

if TYPE_CHECKING:
    from qim.sim.scene import Scene

_OFFSET_MASK = (1 << 48) - 1


class Claims:
    """Every row that a store accepted, by (message, user)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, int], int] = {}
        self.written = 0

    def attach(self, history: History) -> None:
        self.history = history
        history.on_store.setdefault(AppendEntries, []).append(self.on_entries)

    def on_entries(self, host: Host, request: AppendEntries, answer: Any) -> None:
        if type(answer) is not EntriesAppended:
            return
        oracle, found = self.history.oracle, self.history.found
        for row in request.rows:
            self.written += 1
            entry = decode_entry(row.entry)
            offset = row.mailbox_seq & _OFFSET_MASK
            name = dispatch_id(entry.message_id, request.shard)
            first = oracle.firsts.get((request.shard, name))
            if first != row.mailbox_seq:
                text = f"user {row.user_id}: row at {row.mailbox_seq:#x}, first dispatch at {first}"
                found("claims", "mailbox", text, entry.message_id)
            before = self.rows.setdefault((entry.message_id, row.user_id), row.mailbox_seq)
            if before < row.mailbox_seq and before >> 48 < row.mailbox_seq >> 48:
                # A bump has voided the claim of what not all lanes had passed, and trimmed its rows.
                self.rows[entry.message_id, row.user_id] = row.mailbox_seq
            elif before != row.mailbox_seq:
                text = f"user {row.user_id}: rows at {before:#x} and {row.mailbox_seq:#x}"
                found("claims", "mailbox", text, entry.message_id)
            if entry.event_id != event_id(request.shard, row.mailbox_seq, row.user_id):
                found("event_id", "mailbox", f"user {row.user_id}", entry.message_id)
            expected = oracle.rows(request.shard, row.mailbox_seq >> 48).get(offset)
            if expected is not None and row.user_id not in expected.users:
                text = f"row for user {row.user_id}, who is not in its audience"
                found("visibility", "mailbox", text, entry.message_id)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
