"""Every page of history leaves out nothing between its rows that its reader may see (pipeline.md §5), at any time.

Marks are given in append order, so whoever is shown a record may be shown all visible ones before it. A recall that was
committed before the question is in its answer.
"""

from typing import TYPE_CHECKING, Any

from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.rpc import AskHistory, HistoryAnswer
from qim.core.ports.network import Send
from qim.core.ports.store_message import MarkCommitted, MarkedCommitted
from qim.core.retention import RetentionPolicy
from qim.sim.history import History
from qim.sim.node import Host
from qim.sim.visible import CLOCKS_APART_MS, Clock, Visible

if TYPE_CHECKING:
    from qim.sim.scene import Scene

ASKS_MAX = 4_096


class HistoryPages:
    """Judges answers as they are sent."""

    def __init__(self) -> None:
        self._asks: dict[tuple[str, int], tuple[AskHistory, int]] = {}
        self._committed: dict[bytes, int] = {}
        self._models: dict[bytes, tuple[int, Visible]] = {}
        """conversation -> how many records it had then, and what they show."""

    def attach(self, history: History) -> None:
        self.history = history
        history.on_sent.setdefault(AskHistory, []).append(self.on_ask)
        history.on_sent.setdefault(HistoryAnswer, []).append(self.on_answer)
        history.on_store.setdefault(MarkCommitted, []).append(self.on_marked)

    def on_marked(self, host: Host, request: MarkCommitted, answer: Any) -> None:
        """What is committed from now on."""
        if type(answer) is MarkedCommitted:
            for item in request.items:
                self._committed.setdefault(item.message_id, len(self._committed))

    def on_ask(self, host: Host, effect: Send) -> None:
        """Remember who asked what, and how much was committed then."""
        message = effect.message
        assert isinstance(message, AskHistory)
        while len(self._asks) >= ASKS_MAX:
            del self._asks[next(iter(self._asks))]
        self._asks[host.node.name, message.rid] = (message, len(self._committed))

    def on_answer(self, host: Host, effect: Send) -> None:
        """Compare with the model as of now: it can only know more than the answer shows beyond its last row."""
        answer = effect.message
        assert isinstance(answer, HistoryAnswer)
        known = self._asks.get((effect.address, answer.rid))
        if known is None or not answer.records:
            return
        ask, committed = known
        seqs = [int.from_bytes(stored[:8], "big") for stored in answer.records]
        visible = self._visible(ask.conversation_id)
        low = ask.anchor if ask.direction == HistoryDirection.NEWER else seqs[0] - 1
        rows = visible.rows(ask.actor.user_id, ask.conversation_id, self._clock(host))
        shown = dict.fromkeys(seqs)
        name = f"user {ask.actor.user_id}, conversation {ask.conversation_id.hex()[:8]}"
        missing = [row.seq for row in rows if low < row.seq < seqs[-1] and row.seq not in shown]
        if missing:
            self.history.found("history_gap", "writer", f"{name}: {seqs} lacks {missing}")
        for recall in visible.recalls(ask.conversation_id):
            late = self._committed.get(recall.message_id, committed) >= committed
            if recall.target_seq in shown and recall.target_seq not in answer.recalled and not late:
                text = f"{name}: seq {recall.target_seq} was recalled before the question"
                self.history.found("recalled_body", "writer", text, recall.message_id)

    def _visible(self, conversation_id: bytes) -> Visible:
        """The model of one conversation: a function of its records, which only become more."""
        count = len(self.history.oracle.conversations.get(conversation_id, ()))
        known = self._models.get(conversation_id)
        if known is None or known[0] != count:
            known = (count, Visible(self.history.oracle, conversation_id))
            self._models[conversation_id] = known
        return known[1]

    def _clock(self, host: Host) -> Clock:
        """Only what no clock of the world could take for expired is owed."""
        wall = host.node.wall.read(host.world.now)
        policy = RetentionPolicy(ephemeral_ms=self.history.ephemeral_ms)
        return Clock(earliest=wall, latest=wall + CLOCKS_APART_MS, policy=policy)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
