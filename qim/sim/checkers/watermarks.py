"""A watermark never passes an undurable entry (pipeline.md §3.2): what a lane's W passes is written in the same script,
or was written before. Judged from the dispatch log's own content, never from what the node says it materialised. And trim
never passes a watermark (§3.4)."""

from typing import TYPE_CHECKING, Any

from qim.core.contract.entities import decode_entry
from qim.core.ports.store_mailbox import (
    AppendEntries,
    EntriesAppended,
    MailboxOpened,
    MailboxTrimmed,
    OpenMailbox,
    TrimMailbox,
)
from qim.sim.history import History
from qim.sim.node import Host

if TYPE_CHECKING:
    from qim.sim.scene import Scene

_OFFSET_MASK = (1 << 48) - 1


class _Shard:
    """W in one incarnation, as base and the lanes that differ from it, and the rows that stand."""

    __slots__ = ("base", "lanes", "rows")

    def __init__(self, base: int, lanes: dict[int, int]) -> None:
        self.base = base
        self.lanes = lanes
        self.rows: dict[tuple[int, int], bytes] = {}


class Watermarks:
    """Follows every shard through the scripts a store accepted; a reset is read back from the next Open."""

    def __init__(self) -> None:
        self.shards: dict[int, _Shard] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_store.setdefault(OpenMailbox, []).append(self.on_open)
        history.on_store.setdefault(AppendEntries, []).append(self.on_entries)
        history.on_store.setdefault(TrimMailbox, []).append(self.on_trimmed)

    def on_open(self, host: Host, request: OpenMailbox, answer: Any) -> None:
        if type(answer) is not MailboxOpened:
            return
        base, lanes = answer.base, dict(answer.lanes)
        before = self.shards.get(request.shard)
        shard = self.shards[request.shard] = _Shard(base, lanes)
        if before is not None:
            # Rows at or below W survive a lost tail with the W that passed them; those above must be written again.
            place = self.history.oracle.place
            shard.rows = {
                key: message_id
                for key, message_id in before.rows.items()
                if key[1] <= lanes.get(place(key[0])[1], base)
            }

    def on_entries(self, host: Host, request: AppendEntries, answer: Any) -> None:
        shard = self.shards.get(request.shard)
        if type(answer) is not EntriesAppended or shard is None:
            return
        oracle, rows = self.history.oracle, shard.rows
        for row in request.rows:
            rows[row.user_id, row.mailbox_seq] = decode_entry(row.entry).message_id
        base, lanes = shard.base, shard.lanes
        after = {move.lane: move.to for move in request.moves}
        low = min(base, *lanes.values()) if lanes else base
        high = max(request.base_to, *after.values()) if after else request.base_to
        epoch_bits = high & ~_OFFSET_MASK
        dispatches = oracle.rows(request.shard, high >> 48)
        start = (low & _OFFSET_MASK) + 1 if low >= epoch_bits else 0
        start = max(start, min(dispatches, default=0)) if start == 0 else start
        for offset in range(start, (high & _OFFSET_MASK) + 1):
            expected = dispatches.get(offset)
            if expected is None:
                continue
            seq = epoch_bits | offset
            for user in expected.users:
                number = oracle.place(user)[1]
                passed = lanes.get(number, base) < seq <= after.get(number, request.base_to)
                if passed and (user, seq) not in rows:
                    text = f"lane {number} of shard {request.shard} passed offset {offset} without user {user}"
                    self.history.found("watermarks", "mailbox", text, expected.dispatch.message_id)
        shard.base = request.base_to
        shard.lanes = {lane: to for lane, to in after.items() if to != request.base_to}

    def on_trimmed(self, host: Host, request: TrimMailbox, answer: Any) -> None:
        shard = self.shards.get(request.shard)
        if type(answer) is not MailboxTrimmed or shard is None:
            return
        least = min(shard.base, *shard.lanes.values()) if shard.lanes else shard.base
        if answer.trim > least and answer.trim >> 48 == least >> 48:
            text = f"shard {request.shard}: trim {answer.trim:#x} passed a lane at {least:#x}"
            self.history.found("trim_beyond_w", "mailbox", text)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
