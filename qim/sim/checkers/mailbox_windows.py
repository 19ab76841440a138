"""What a mailbox may forget, and what it may pass over for a new device (pipeline.md §§3.4, 6): nothing within its windows.

Judged by the append times of the dispatch log alone. The mailbox trims by its own wall clock, but not while that and the
append times differ by more than a day: so nothing goes that is younger than retention less a day by the log's own clock.
"""

from typing import TYPE_CHECKING, Any

from qim.core.contract.cursor import decode_cursor
from qim.core.contract.rpc import AskSync, SyncAnswer
from qim.core.contract.sequences import mailbox_seq
from qim.core.ports.log import StoredRecord
from qim.core.ports.network import Send
from qim.core.ports.store_mailbox import MailboxTrimmed, TrimMailbox
from qim.sim.history import History
from qim.sim.node import Host
from qim.sim.secret import SECRET

if TYPE_CHECKING:
    from qim.sim.scene import Scene

ASKS_MAX = 4_096


class MailboxWindows:
    """Judges every trim that a store took, and every first cursor that a mailbox gave."""

    def __init__(self) -> None:
        self._appended: dict[int, dict[int, int]] = {}
        """shard -> mailbox_seq -> append time, rising."""
        self._newest: dict[int, int] = {}
        self._trimmed: dict[int, int] = {}
        """shard -> the greatest trim ever; a store that lost its tail has a lower one for a while."""
        self._asked: dict[tuple[str, int], int] = {}
        """(gateway, rid) -> shard of a device without a cursor."""

    def attach(self, history: History) -> None:
        self.history = history
        history.on_dispatched.append(self.on_dispatched)
        history.on_bumped.append(self.on_bumped)
        history.on_store.setdefault(TrimMailbox, []).append(self.on_trimmed)
        history.on_sent.setdefault(AskSync, []).append(self.on_ask)
        history.on_sent.setdefault(SyncAnswer, []).append(self.on_sync)

    def on_dispatched(
        self, host: Host | None, shard: int, stored: StoredRecord, expected: Any
    ) -> None:
        """When it came, as the log says."""
        oracle = self.history.oracle
        if shard in oracle.lost:
            return  # the mailbox reads it after the bump
        seq = mailbox_seq(oracle.epoch(shard), stored.offset)
        self._appended.setdefault(shard, {})[seq] = stored.append_time
        self._newest[shard] = max(self._newest.get(shard, 0), stored.append_time)

    def on_bumped(self, shard: int) -> None:
        """Nothing of an earlier epoch is in the mailbox any more, and what that had is no news in this one."""
        rows = self.history.oracle.dispatches.get(shard, {})
        self._appended[shard] = {}
        for stored in self.history.dispatch_log(shard):
            self._newest[shard] = max(self._newest.get(shard, 0), stored.append_time)
            if rows.get(stored.offset) is not None:
                self.on_dispatched(None, shard, stored, None)

    def on_trimmed(self, host: Host, request: TrimMailbox, answer: Any) -> None:
        """Whole leading days, none of it younger than retention."""
        if type(answer) is not MailboxTrimmed or host.node.role == "operator":
            return
        before = self._trimmed.get(request.shard, 0)
        if answer.trim <= before or answer.trim < request.to:
            return
        self._trimmed[request.shard] = answer.trim
        self.history.count("mailbox_trimmed")
        day_ms, kept_ms = self.history.mailbox_day_ms, self.history.mailbox_retention_ms
        latest = self._newest.get(request.shard, 0) + day_ms - kept_ms
        for offset, at in self._between(request.shard, before, answer.trim):
            if at > latest:
                text = f"shard {request.shard}: offset {offset}, {at - latest} ms too young"
                self.history.found("trim_too_young", "mailbox", text)
                return

    def on_ask(self, host: Host, effect: Send) -> None:
        """A device that has no cursor."""
        ask = effect.message
        assert isinstance(ask, AskSync)
        if ask.cursor is not None:
            return
        while len(self._asked) >= ASKS_MAX:
            del self._asked[next(iter(self._asked))]
        shard = self.history.oracle.place(ask.actor.user_id)[0]
        self._asked[host.node.name, ask.rid] = shard

    def on_sync(self, host: Host, effect: Send) -> None:
        """It begins before everything that is within the read-back window, or at trim if that is later."""
        answer = effect.message
        assert isinstance(answer, SyncAnswer)
        shard = self._asked.pop((effect.address, answer.rid), None)
        if shard is None:
            return
        begins = decode_cursor(answer.cursor, SECRET).seq
        oldest = host.node.wall.read(host.world.now) - self.history.read_back_ms
        self.history.count("read_back_judged")
        for offset, at in self._between(shard, self._trimmed.get(shard, 0), begins):
            if at >= oldest:
                text = f"shard {shard}: begins behind offset {offset}, {at - oldest} ms too late"
                self.history.found("read_back", "mailbox", text)
                return

    def _between(self, shard: int, low: int, high: int) -> list[tuple[int, int]]:
        """(mailbox_seq, append time) of the records behind mailbox_seq ``low`` up to ``high``."""
        rows = self._appended.get(shard, {})
        return [(seq, at) for seq, at in rows.items() if low < seq <= high]

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
