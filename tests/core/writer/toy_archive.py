"""An archive as small as can be: rows of effective records by conversation and seq, and where it stands in the outbox."""

from qim.core.archived import (
    MembershipStep,
    founding_of,
    membership_after,
    overlay_of,
    single_users_of,
    step_of,
)
from qim.core.contract.entities import MessageRecord, decode_stored_record
from qim.core.ports.archive import (
    ArchivedConversation,
    ArchivedConversationsRead,
    ArchiveRead,
    ReadArchive,
    ReadArchivedConversations,
)


class ToyArchive:
    """Never wrong and never slow; ``position``: every effective record below it is here."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict[int, bytes]] = {}
        self.kept: dict[bytes, list[MessageRecord]] = {}
        self.position = 0
        self.reads: list[ReadArchive] = []

    def write(self, stored: bytes) -> None:
        """One effective record."""
        record = decode_stored_record(stored)
        self.rows.setdefault(record.conversation_id, {})[record.conversation_seq] = stored
        self.kept.setdefault(record.conversation_id, []).append(record)

    def read(self, ask: ReadArchive) -> ArchiveRead:
        """As ports/archive.py says."""
        self.reads.append(ask)
        assert ask.limit > 0
        rows = self.rows.get(ask.conversation_id, {})
        seqs = sorted([s for s in rows if ask.low < s < ask.high], reverse=ask.newest_first)
        found = tuple(rows[seq] for seq in seqs[: ask.limit])
        return ArchiveRead(op=ask.op, stored=found, more=len(seqs) > ask.limit)

    def conversations(self, ask: ReadArchivedConversations) -> ArchivedConversationsRead:
        """A page in id order."""
        names = sorted([name for name in self.kept if name > ask.after])
        return ArchivedConversationsRead(
            op=ask.op,
            conversations=tuple([self._conversation(name) for name in names[: ask.limit]]),
            more=len(names) > ask.limit,
            position=self.position,
        )

    def _conversation(self, name: bytes) -> ArchivedConversation:
        records = self.kept[name]
        steps: list[MembershipStep] = [s for s in map(step_of, records) if s is not None]
        versions, everyone = membership_after(name, steps)
        founded = [f for f in map(founding_of, records) if f is not None]
        return ArchivedConversation(
            conversation_id=name,
            conversation_kind=records[0].conversation_kind,
            greatest_seq=max(record.conversation_seq for record in records),
            last_activity_id=max(record.last_activity_id for record in records),
            single_users=single_users_of(records[0]),
            versions=versions,
            everyone=everyone,
            creator=founded[0].creator if founded else 0,
            name=founded[0].name if founded else "",
            meta=founded[0].meta if founded else b"",
            overlays=tuple([o for o in map(overlay_of, records) if o is not None]),
        )
