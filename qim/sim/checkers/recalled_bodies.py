"""What was recalled leaves no mailbox any more: whoever pulls after the recall was acked gets no body (pipeline.md §5).

Also across incarnations of the message store: one that lost its tail has lost recalls, and nothing may leave on its word.
"""

from typing import TYPE_CHECKING

from qim.core.contract.entities import MessageKind
from qim.core.contract.rpc import AskPull, PullAnswer, SendDone
from qim.core.ports.network import Send
from qim.sim.history import History
from qim.sim.node import Host
from qim.sim.oracle import Effective

if TYPE_CHECKING:
    from qim.sim.scene import Scene

ASKS_MAX = 4_096


class RecalledBodies:
    """Judges pulls as they are answered; a recall counts once its sender was told that it stands."""

    def __init__(self) -> None:
        self._asks: dict[tuple[str, int], int] = {}
        self._acked: dict[bytes, int] = {}
        self._recalls: dict[tuple[bytes, int], bytes] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_effective.append(self.on_effective)
        history.on_sent.setdefault(SendDone, []).append(self.on_done)
        history.on_sent.setdefault(AskPull, []).append(self.on_ask)
        history.on_sent.setdefault(PullAnswer, []).append(self.on_answer)

    def on_effective(self, effective: Effective) -> None:
        """A recall, and what it lies on."""
        record = effective.record
        if record.kind == MessageKind.RECALL:
            self._recalls[record.conversation_id, record.target_seq] = record.message_id

    def on_done(self, host: Host, effect: Send) -> None:
        """An ack, in the order of acks."""
        message = effect.message
        assert isinstance(message, SendDone)
        self._acked.setdefault(message.message_id, len(self._acked))

    def on_ask(self, host: Host, effect: Send) -> None:
        """How much was acked when it was asked."""
        message = effect.message
        assert isinstance(message, AskPull)
        while len(self._asks) >= ASKS_MAX:
            del self._asks[next(iter(self._asks))]
        self._asks[host.node.name, message.rid] = len(self._acked)

    def on_answer(self, host: Host, effect: Send) -> None:
        """No body of what was recalled before."""
        answer = effect.message
        assert isinstance(answer, PullAnswer)
        asked = self._asks.get((effect.address, answer.rid))
        if asked is None or not self._recalls:
            return
        for entry in answer.entries:
            recall = self._recalls.get((entry.conversation_id, entry.conversation_seq))
            if recall is None or entry.body is None:
                continue
            if self._acked.get(recall, asked) < asked:
                text = f"seq {entry.conversation_seq} of {entry.conversation_id.hex()[:8]}"
                self.history.found("recalled_body", "mailbox", text, entry.message_id)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
