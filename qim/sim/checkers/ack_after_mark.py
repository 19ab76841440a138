"""An ack only after the append is confirmed and MarkCommitted has run in the present incarnation (pipeline.md §1.4)."""

from typing import TYPE_CHECKING, Any

from qim.core.contract.entities import CommitState
from qim.core.contract.rpc import GroupDone, SendDone
from qim.core.ports.network import Send
from qim.core.ports.store_message import (
    ApplyOutbox,
    CommitsFound,
    Existing,
    LookupCommits,
    MarkCommitted,
    MarkedCommitted,
    MembershipChange,
    OpenShard,
    OutboxApplied,
    ReserveAndRecord,
    Reserved,
    ShardOpened,
)
from qim.sim.history import History
from qim.sim.node import Host

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class AckAfterMark:
    """Knows which message_ids an incarnation answered as committed, and which incarnation a writer has opened."""

    def __init__(self) -> None:
        self.committed: dict[tuple[bytes, bytes], bool] = {}
        self.opened: dict[tuple[str, int, int], bytes] = {}
        self.acks: dict[bytes, tuple[bytes, int]] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_store[OpenShard] = [*history.on_store.get(OpenShard, ()), self.on_open]
        for kind in (MarkCommitted, ApplyOutbox):
            history.on_store.setdefault(kind, []).append(self.on_marked)
        for asking in (LookupCommits, ReserveAndRecord, MembershipChange):
            history.on_store.setdefault(asking, []).append(self.on_looked_up)
        history.on_sent.setdefault(SendDone, []).append(self.on_ack)
        history.on_sent.setdefault(GroupDone, []).append(self.on_group_ack)

    def on_open(self, host: Host, request: OpenShard, answer: Any) -> None:
        if type(answer) is ShardOpened:
            process = (host.node.name, host.node.generation, request.shard)
            self.opened[process] = answer.incarnation

    def on_marked(self, host: Host, request: MarkCommitted | ApplyOutbox, answer: Any) -> None:
        oracle = self.history.oracle
        if type(answer) is MarkedCommitted and isinstance(request, MarkCommitted):
            for item in request.items:
                if oracle.stood_at(request.shard, item.offset, item.message_id) is None:
                    text = f"marked at offset {item.offset} of partition {request.shard}, which isn't it"
                    self.history.found("mark_effective", "writer", text, item.message_id)
                self.committed[item.message_id, request.incarnation] = True
        elif type(answer) is OutboxApplied and isinstance(request, ApplyOutbox):
            for record in request.records:
                if oracle.stood_at(request.shard, record.offset, record.message_id) is None:
                    text = f"applied offset {record.offset} of partition {request.shard}"
                    self.history.found("ineffective_applied", "writer", text, record.message_id)
                self.committed[record.message_id, request.incarnation] = True

    def on_looked_up(self, host: Host, request: Any, answer: Any) -> None:
        found: tuple[Any, ...] = ()
        if type(answer) is CommitsFound:
            found = answer.commits
        elif type(answer) is Reserved:
            found = answer.results
        for commit in found:
            if type(commit) is Existing and commit.state == CommitState.COMMITTED:
                self.committed[commit.message_id, request.incarnation] = True

    def on_ack(self, host: Host, effect: Send) -> None:
        done: SendDone = effect.message  # type: ignore[assignment]
        message = self.history.oracle.messages.get(done.message_id)
        found = self.history.found
        if message is None:
            text = "acked, but not in the effective outbox"
            found("ack_without_append", "writer", text, done.message_id)
            return
        record = message.record
        promised = (done.conversation_id, done.conversation_seq, done.last_activity_id)
        stands = (record.conversation_id, record.conversation_seq, record.last_activity_id)
        if promised != stands:
            text = f"acked seq {done.conversation_seq}, stands at {record.conversation_seq}"
            found("ack_coordinates", "writer", text, done.message_id)
        self.acks[done.message_id] = (record.client_message_id, self.history.now())
        self._marked(host, message.partition, done.message_id)

    def on_group_ack(self, host: Host, effect: Send) -> None:
        done: GroupDone = effect.message  # type: ignore[assignment]
        versions = self.history.oracle.versions.get(done.conversation_id, {})
        if done.version not in versions:
            text = f"GROUP_OK names version {done.version}, which no effective record made"
            self.history.found("ack_without_append", "writer", text)

    def _marked(self, host: Host, partition: int, message_id: bytes) -> None:
        process = (host.node.name, host.node.generation, partition)
        incarnation = self.opened.get(process)
        if incarnation is None or (message_id, incarnation) not in self.committed:
            text = "acked before it was marked in the incarnation this writer opened"
            self.history.found("ack_after_mark", "writer", text, message_id)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
