"""What the archive's fake holds: rows by (conversation, seq, message_id) with write stamps, and facts that never expire.

Shaped after a wide-column store: every insert carries a stamp (its outbox offset), the newer stamp wins, and a batch may be
applied in part. Greatest seq and position are written only once all rows of a batch are (ports/archive.py).
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from msgspec import Struct

from qim.core.archived import (
    Founding,
    MembershipStep,
    founding_of,
    membership_after,
    overlay_of,
    single_users_of,
    step_of,
)
from qim.core.contract.entities import EMPTY_ID, decode_stored_record
from qim.core.ports.archive import ArchivedConversation, ArchiveRow, WriteArchive
from qim.core.retention import FOREVER_MS

Place = tuple[int, bytes]
"""(conversation_seq, message_id)."""


class Cell(Struct):
    """One row; ``settled``: a write that holds it was applied whole, so no read may miss it any more."""

    row: ArchiveRow
    settled: bool = False


class Facts(Struct, kw_only=True):
    """What is kept of a conversation for ever."""

    partition: int
    kind: int = 0
    users: tuple[int, int] | None = None
    greatest: int = 0
    activity: bytes = EMPTY_ID
    founding: Founding | None = None
    steps: dict[tuple[int, bytes], MembershipStep] = {}
    overlays: dict[tuple[int, int, int], None] = {}


class Conversation:
    """Rows of one conversation in clustering order."""

    __slots__ = ("cells", "order")

    def __init__(self) -> None:
        self.cells: dict[Place, Cell] = {}
        self.order: list[Place] = []


class ArchiveRows:
    """The whole archive; every verb is applied at once."""

    def __init__(self) -> None:
        self.conversations: dict[bytes, Conversation] = {}
        self.facts: dict[bytes, Facts] = {}
        self.positions: dict[int, int] = {}
        self.let_go = 0

    # ------------------------------------------------------------ writing

    def insert(self, partition: int, rows: Sequence[ArchiveRow], *, settled: bool) -> None:
        """Rows with the facts that are rows of their own; nothing that claims completeness."""
        for row in rows:
            place = (row.conversation_seq, row.message_id)
            held = self.conversations.setdefault(row.conversation_id, Conversation())
            cell = held.cells.get(place)
            if cell is None:
                held.cells[place] = Cell(row=row, settled=settled)
                insort(held.order, place)
            else:
                if row.outbox_offset > cell.row.outbox_offset:
                    cell.row = row
                cell.settled = cell.settled or settled
            self._insert_facts(partition, row)

    def _insert_facts(self, partition: int, row: ArchiveRow) -> None:
        record = decode_stored_record(row.stored)
        facts = self.facts.setdefault(row.conversation_id, Facts(partition=partition))
        facts.kind = record.conversation_kind
        facts.users = single_users_of(record)
        founding, step, overlay = founding_of(record), step_of(record), overlay_of(record)
        if founding is not None:
            facts.founding = founding
        if step is not None:
            facts.steps[step.version, step.digest] = step
        if overlay is not None:
            facts.overlays[overlay] = None

    def write(self, request: WriteArchive) -> tuple[tuple[bytes, int], ...]:
        """The whole batch. Answers the places among its rows that hold more than one message_id."""
        self.insert(request.partition, request.rows, settled=True)
        reused: dict[tuple[bytes, int], None] = {}
        for row in request.rows:
            record = decode_stored_record(row.stored)
            facts = self.facts[row.conversation_id]
            facts.greatest = max(facts.greatest, record.conversation_seq)
            facts.activity = max(facts.activity, record.last_activity_id)
            order = self.conversations[row.conversation_id].order
            at = bisect_left(order, (row.conversation_seq, b""))
            if at + 1 < len(order) and order[at + 1][0] == row.conversation_seq:
                reused[row.conversation_id, row.conversation_seq] = None
        if request.through:
            held = self.positions.get(request.partition, 0)
            self.positions[request.partition] = max(held, request.through)
        return tuple(reused)

    def expire(self, before_wall: int, limit: int) -> tuple[int, bool]:
        """Rows that have run out, the earliest first; a hold never does."""
        before_wall = min(before_wall, FOREVER_MS)
        self.let_go = max(self.let_go, before_wall)
        due = sorted(
            (cell.row.retained_until, conversation_id, place)
            for conversation_id, held in self.conversations.items()
            for place, cell in held.cells.items()
            if cell.row.retained_until < before_wall
        )
        for _, conversation_id, place in due[:limit]:
            held = self.conversations[conversation_id]
            del held.cells[place]
            held.order.remove(place)
        return min(len(due), limit), len(due) > limit

    # ------------------------------------------------------------ reading

    def page(
        self,
        conversation_id: bytes,
        low: int,
        high: int,
        *,
        newest_first: bool,
        limit: int,
        stale: bool,
    ) -> tuple[tuple[bytes, ...], bool]:
        """``stale``: rows of writes that were never applied whole are not seen."""
        held = self.conversations.get(conversation_id)
        if held is None:
            return (), False
        places = held.order[
            bisect_left(held.order, (low + 1, b"")) : bisect_left(held.order, (high, b""))
        ]
        if newest_first:
            places.reverse()
        seen = [held.cells[place] for place in places]
        shown = [cell.row.stored for cell in seen if cell.settled or not stale]
        return tuple(shown[:limit]), len(shown) > limit

    def body(self, name: tuple[bytes, int, bytes], *, stale: bool) -> bytes | None:
        """One stored record."""
        conversation_id, seq, message_id = name
        held = self.conversations.get(conversation_id)
        cell = held.cells.get((seq, message_id)) if held is not None else None
        if cell is None or (stale and not cell.settled):
            return None
        return cell.row.stored

    def archived(
        self, partition: int, after: bytes, limit: int
    ) -> tuple[tuple[ArchivedConversation, ...], bool]:
        """Conversations of which a batch was applied whole, in id order."""
        names = sorted(
            name
            for name, facts in self.facts.items()
            if facts.partition == partition and facts.greatest and name > after
        )
        return tuple([self._archived(name) for name in names[:limit]]), len(names) > limit

    def _archived(self, conversation_id: bytes) -> ArchivedConversation:
        facts = self.facts[conversation_id]
        versions, everyone = membership_after(conversation_id, facts.steps.values())
        founding = facts.founding
        return ArchivedConversation(
            conversation_id=conversation_id,
            conversation_kind=facts.kind,
            greatest_seq=facts.greatest,
            last_activity_id=facts.activity,
            single_users=facts.users,
            versions=versions,
            everyone=everyone,
            creator=founding.creator if founding else 0,
            name=founding.name if founding else "",
            meta=founding.meta if founding else b"",
            overlays=tuple(sorted(facts.overlays)),
        )
