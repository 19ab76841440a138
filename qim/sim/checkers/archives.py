"""The archive: nothing is trimmed and no position passes what it doesn't hold; at the end it holds exactly what was said."""

from typing import TYPE_CHECKING, Any

from qim.core.contract.entities import decode_stored_record
from qim.core.ports.store_history import ArchiveCommitted, CommitArchive, HotTrimmed, TrimHot
from qim.core.ports.store_reads import HistoryItem, HistoryRead, ReadHistory
from qim.core.retention import RetentionPolicy, retained_until
from qim.sim.history import History
from qim.sim.node import Host

if TYPE_CHECKING:
    from qim.sim.scene import Scene

CLOCKS_APART_MS = 600_000
"""A row may be expired by any clock of the world; those are never further apart."""


class Archives:
    """Judges positions as they move, and the rows at the end."""

    def __init__(self) -> None:
        self._judged: dict[int, int] = {}

    def attach(self, history: History) -> None:
        self.history = history
        history.on_store.setdefault(CommitArchive, []).append(self.on_commit)
        history.on_store.setdefault(TrimHot, []).append(self.on_trim)
        history.on_outbox_lost.append(self.on_lost)

    def on_commit(self, host: Host, request: CommitArchive, answer: Any) -> None:
        """All effective records below the position are in the archive, or their time is up."""
        if type(answer) is ArchiveCommitted:
            self._covered(request.partition, request.to.offset)

    def on_lost(self, partition: int) -> None:
        """What stands there now is judged when a position passes it."""
        standing = len(self.history.oracle.in_order[partition])
        self._judged[partition] = min(self._judged.get(partition, 0), standing)

    def on_trim(self, host: Host, request: TrimHot, answer: Any) -> None:
        """Counted: that worlds meet the seam is part of the census."""
        if type(answer) is HotTrimmed and answer.removed:
            self.history.count("hot_trimmed", answer.removed)
            self._trimmed(request)

    def _trimmed(self, request: TrimHot) -> None:
        """Everything below the floors that stand now is in the archive."""
        records = [one.record for one in self.history.oracle.in_order.get(request.shard, [])]
        names = tuple(dict.fromkeys(record.conversation_id for record in records))
        items = tuple(
            HistoryItem(conversation_id=name, low=0, high=0, newest_first=True, limit=0, user_id=1)
            for name in names
        )
        read = self.history.peek(
            ReadHistory(
                op=0,
                shard=request.shard,
                epoch=request.epoch,
                incarnation=request.incarnation,
                items=items,
            )
        )
        if not isinstance(read, HistoryRead):
            return
        floors = {name: page.floor for name, page in zip(names, read.pages, strict=True)}
        for record in records:
            gone = record.conversation_seq < floors[record.conversation_id]
            if gone and record.message_id not in self.history.archived:
                text = f"shard {request.shard}: seq {record.conversation_seq} is nowhere"
                self.history.found("trimmed_unarchived", "writer", text, record.message_id)

    def _covered(self, partition: int, to: int) -> None:
        records = self.history.oracle.in_order.get(partition, [])
        index = self._judged.get(partition, 0)
        while index < len(records) and records[index].offset < to:
            record = records[index].record
            # Others had been read where a log lost its tail; who lacks what stands there now is found in the end.
            read = (partition, records[index].offset) not in self.history.oracle.was
            if read and record.message_id not in self.history.archived:
                text = f"partition {partition}: position {to} passed offset {records[index].offset}"
                self.history.found("archive_watermark", "archiver", text, record.message_id)
            index += 1
        self._judged[partition] = index

    def finish(self, scene: "Scene") -> None:
        """A row a message, with the stored bytes of its record; what retention may have taken may be gone."""
        rows = scene.archive.rows
        policy = RetentionPolicy(ephemeral_ms=scene.plan.parameters.ephemeral_ms)
        wall = scene.plan.beginnings.wall_ms + scene.world.now + CLOCKS_APART_MS
        for message_id, effective in self.history.oracle.messages.items():
            record = effective.record
            name = (record.conversation_id, record.conversation_seq, message_id)
            stored = rows.body(name, stale=True)
            if stored is None:
                until = retained_until(
                    policy, record.tenant_id, record.retention_class, record.sent_at
                )
                if until > wall:
                    text = f"seq {record.conversation_seq} is not archived"
                    self.history.found("archived", "archiver", text, message_id)
            elif decode_stored_record(stored) != record:
                text = f"seq {record.conversation_seq} differs"
                self.history.found("archived", "archiver", text, message_id)
        for held in rows.conversations.values():
            for _, message_id in held.order:
                if message_id not in self.history.oracle.messages:
                    text = "a row of no effective record"
                    self.history.found("archived", "archiver", text, message_id)
