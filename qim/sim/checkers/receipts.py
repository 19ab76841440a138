"""Receipt before checkpoint: what a checkpoint passes has a receipt for each target shard, naming a durable dispatch
(pipeline.md §2); no ineffective record has one, and every dispatch comes from an effective record."""

from typing import TYPE_CHECKING, Any

from qim.core.contract.entities import decode_receipt
from qim.core.contract.ids import dispatch_id
from qim.core.ports.log import StoredRecord
from qim.core.ports.store_source import CommitSource, SourceCommitted
from qim.sim.history import History
from qim.sim.node import Host
from qim.sim.oracle import Effective, Expected

if TYPE_CHECKING:
    from qim.sim.scene import Scene


class ReceiptsBeforeCheckpoint:
    """Judges every accepted CommitSource against the logs, and every dispatch as it lands."""

    def attach(self, history: History) -> None:
        self.history = history
        history.on_store.setdefault(CommitSource, []).append(self.on_commit)
        history.on_dispatched.append(self.on_dispatched)

    def on_dispatched(
        self, host: Host, shard: int, stored: StoredRecord, expected: Expected | None
    ) -> None:
        if expected is None:
            return
        dispatch = expected.dispatch
        source = self.history.oracle.messages.get(dispatch.message_id)
        found = self.history.found
        if source is None:
            text = f"shard {shard} offset {stored.offset}: of no effective record"
            found("dispatch_without_record", "fanout", text, dispatch.message_id)
        elif not expected.users:
            text = f"shard {shard} offset {stored.offset}: nobody of the audience lives there"
            found("wrong_shard", "fanout", text, dispatch.message_id)

    def on_commit(self, host: Host, request: CommitSource, answer: Any) -> None:
        if type(answer) is not SourceCommitted:
            return
        oracle = self.history.oracle
        receipts = dict(request.receipts)
        dead = dict(request.dead_letters)
        for offset in range(request.from_offset, request.to.offset):
            message = oracle.at.get((request.partition, offset))
            if (request.partition, offset) in oracle.was:
                message = self._as_read(request.partition, offset, receipts.get(offset))
            if message is None:
                if offset in receipts:
                    text = f"a receipt for partition {request.partition} offset {offset}, no record"
                    self.history.found("receipt_of_nothing", "fanout", text)
                continue
            if offset in dead:
                text = f"a readable record dead-lettered at offset {offset}"
                self.history.found("dead_letter", "fanout", text, message.record.message_id)
            elif offset not in receipts:
                text = f"checkpoint passed partition {request.partition} offset {offset} without receipt"
                self.history.found("receipts", "fanout", text, message.record.message_id)
            else:
                self._judge(message, receipts[offset])

    def _as_read(self, partition: int, offset: int, packed: bytes | None) -> Effective | None:
        """What had stood there may be what was read: who is passed over so is found in the end, by whoever lacks it."""
        if packed is None:
            return None
        message_id = decode_receipt(packed).message_id
        return self.history.oracle.stood_at(partition, offset, message_id)

    def _judge(self, message: Effective, packed: bytes) -> None:
        oracle = self.history.oracle
        receipt = decode_receipt(packed)
        message_id = message.record.message_id
        shards = tuple(part.shard for part in receipt.shards)
        if tuple(sorted(shards)) != oracle.shards_of(message):
            text = f"receipt names shards {shards}, the audience has {oracle.shards_of(message)}"
            self.history.found("receipts", "fanout", text, message_id)
        for part in receipt.shards:
            name = dispatch_id(message_id, part.shard)
            if (part.shard, part.offset, name) not in oracle.stood:
                text = (
                    f"receipt names shard {part.shard} offset {part.offset}, where it never stood"
                )
                self.history.found("receipts", "fanout", text, message_id)

    def finish(self, scene: "Scene") -> None:
        """Everything was judged as it came."""
