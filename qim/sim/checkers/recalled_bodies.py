"""What was recalled leaves no server any more: whoever asks after the recall was acked gets no body (pipeline.md §5).

Pulls, history and summaries are judged from when they were asked, pushes from when their row was stored. Also across
incarnations of the message store: one that lost its tail has lost recalls, and nothing may leave on its word.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qim.core.contract.entities import MessageKind, decode_stored_record
from qim.core.contract.rpc import (
    AskHistory,
    AskPull,
    HistoryAnswer,
    PullAnswer,
    PushBatch,
    SendDone,
)
from qim.core.contract.rpc_session import AskSummaries, SummariesAnswer
from qim.core.ports.network import Send
from qim.core.ports.store_mailbox import AppendEntries, EntriesAppended
from qim.sim.history import History
from qim.sim.node import Host
from qim.sim.oracle import Effective

if TYPE_CHECKING:
    from qim.sim.scene import Scene

ASKS_MAX = 4_096
ROWS_MAX = 16_384
Shown = Iterator[tuple[bytes, int, bytes]]
"""(conversation_id, conversation_seq, message_id) of each body in an answer."""


class RecalledBodies:
    """A recall counts once its sender was told that it stands."""

    def __init__(self) -> None:
        self._asks: dict[tuple[str, str, int], int] = {}
        self._acked: dict[bytes, int] = {}
        self._recalls: dict[tuple[bytes, int], bytes] = {}
        self._stored: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(mailbox, shard, mailbox_seq) -> epoch, and how much was acked when it first stored a row of it under that."""

    def attach(self, history: History) -> None:
        self.history = history
        history.on_effective.append(self.on_effective)
        history.on_sent.setdefault(SendDone, []).append(self.on_done)
        for ask, answer in (
            (AskPull, PullAnswer),
            (AskHistory, HistoryAnswer),
            (AskSummaries, SummariesAnswer),
        ):
            history.on_sent.setdefault(ask, []).append(self.on_ask)
            history.on_sent.setdefault(answer, []).append(self.on_answer)
        history.on_store.setdefault(AppendEntries, []).append(self.on_rows)
        history.on_sent.setdefault(PushBatch, []).append(self.on_push)

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
        assert isinstance(message, AskPull | AskHistory | AskSummaries)
        while len(self._asks) >= ASKS_MAX:
            del self._asks[next(iter(self._asks))]
        key = (host.node.name, _ANSWERS[type(message)], message.rid)
        self._asks[key] = len(self._acked)

    def on_answer(self, host: Host, effect: Send) -> None:
        """No body of what was recalled before."""
        answer = effect.message
        assert isinstance(answer, PullAnswer | HistoryAnswer | SummariesAnswer)
        asked = self._asks.get((effect.address, type(answer).__name__, answer.rid))
        if asked is not None and self._recalls:
            for shown in _bodies(answer):
                self._judge(host, shown, asked)

    def on_rows(self, host: Host, request: AppendEntries, answer: Any) -> None:
        """From now on these rows may be pushed."""
        if type(answer) is not EntriesAppended:
            return
        for row in request.rows:
            key = (host.node.name, request.shard, row.mailbox_seq)
            if self._stored.get(key, (-1, 0))[0] < request.epoch:
                while len(self._stored) >= ROWS_MAX:
                    del self._stored[next(iter(self._stored))]
                self._stored[key] = (request.epoch, len(self._acked))

    def on_push(self, host: Host, effect: Send) -> None:
        """A mailbox that replays its log pushes what was said long ago."""
        batch = effect.message
        assert isinstance(batch, PushBatch)
        for push in batch.pushes:
            entry = push.entry
            _, stored = self._stored.get((host.node.name, batch.shard, entry.mailbox_seq), (0, 0))
            if entry.body is not None:
                shown = (entry.conversation_id, entry.conversation_seq, entry.message_id)
                self._judge(host, shown, stored)

    def _judge(self, host: Host, shown: tuple[bytes, int, bytes], since: int) -> None:
        conversation_id, seq, message_id = shown
        recall = self._recalls.get((conversation_id, seq))
        if recall is not None and self._acked.get(recall, since) < since:
            text = f"seq {seq} of {conversation_id.hex()[:8]}"
            self.history.found("recalled_body", host.node.role, text, message_id)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""


_ANSWERS = {
    AskPull: PullAnswer.__name__,
    AskHistory: HistoryAnswer.__name__,
    AskSummaries: SummariesAnswer.__name__,
}


def _bodies(answer: PullAnswer | HistoryAnswer | SummariesAnswer) -> Shown:
    if isinstance(answer, PullAnswer):
        for entry in answer.entries:
            if entry.body is not None:
                yield entry.conversation_id, entry.conversation_seq, entry.message_id
        return
    if isinstance(answer, HistoryAnswer):
        stored = answer.records
        hidden = answer.recalled
    else:
        stored = tuple(summary.head for summary in answer.summaries if summary.head)
        hidden = ()
    for head in stored:
        record = decode_stored_record(head)
        if record.conversation_seq not in hidden:
            yield record.conversation_id, record.conversation_seq, record.message_id
