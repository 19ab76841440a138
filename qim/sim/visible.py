"""What every user may see, computed from the logs alone: rows, overlays, unread, the list (pipeline.md §§4, 5).

A small model on purpose: no pages, no floors, no tiers, no caches. It is what the services' answers are compared with.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract.entities import (
    EMPTY_ID,
    ConversationKind,
    MembershipOp,
    MessageKind,
    MessageRecord,
    RetentionClass,
)
from qim.core.retention import RetentionPolicy, retained_until
from qim.sim.oracle import JOINING, Oracle

WINDOW: Final = 200
EVER: Final = 2**64 - 1
CLOCKS_APART_MS: Final = 600_000
"""More than any two clocks of a world differ."""
OVERLAYS: Final = (MessageKind.RECALL, MessageKind.DELETE_FOR_ME)


class Clock(Struct, frozen=True, kw_only=True, gc=False):
    """Between which wall times (ms) the owner judged retention, and under which policy."""

    earliest: int
    latest: int
    policy: RetentionPolicy


class ExpectedRow(Struct, frozen=True, kw_only=True, gc=False):
    """One visible record of a conversation, for one user."""

    seq: int
    record: MessageRecord
    recalled: bool


class ExpectedConversation(Struct, frozen=True, kw_only=True, gc=False):
    """One entry of a user's list. ``heads``: what it may show, 0: nothing.

    A change of a great group reaches few (pipeline.md §1.9). To all others it is news of the next page of history: what their
    list shows was read when a record last reached them, or at any time since.
    """

    conversation_id: bytes
    last_activity_id: bytes
    heads: tuple[int, ...]
    unread: int
    unread_exact: bool


class Visible:
    """The model of one world's end."""

    def __init__(self, oracle: Oracle, only: bytes | None = None) -> None:
        """``only``: of one conversation."""
        known = oracle.conversations
        names = known if only is None else (name for name in (only,) if name in known)
        self.records = {
            name: sorted(known[name], key=lambda record: record.conversation_seq) for name in names
        }
        self._intervals = {key: _intervals(records) for key, records in self.records.items()}
        self._recalled = {
            key: {r.target_seq for r in records if r.kind == MessageKind.RECALL}
            for key, records in self.records.items()
        }

    def conversations(self, user: int) -> list[bytes]:
        """Those the user is or was in, in id order."""
        return [key for key in sorted(self.records) if user in self._intervals[key]]

    def recalls(self, conversation_id: bytes) -> list[MessageRecord]:
        """All RECALL records, rising."""
        records = self.records.get(conversation_id, [])
        return [record for record in records if record.kind == MessageKind.RECALL]

    def recalled(self, record: MessageRecord) -> bool:
        """Somebody took it back."""
        return record.conversation_seq in self._recalled[record.conversation_id]

    def has_left(self, user: int, conversation_id: bytes) -> bool:
        """Was a member and is none."""
        spans = self._intervals[conversation_id].get(user, [])
        return not spans or spans[-1][1] != EVER

    def recalled_unheard(self, user: int, conversation_id: bytes) -> bool:
        """Was something the user may see recalled while they were no member: no dispatch tells their devices of it."""
        spans = self._intervals[conversation_id].get(user, [])

        def inside(seq: int) -> bool:
            return any(joined < seq <= left for joined, left in spans)

        return any(
            inside(recall.target_seq) and not inside(recall.conversation_seq)
            for recall in self.recalls(conversation_id)
        )

    def expires(self, conversation_id: bytes) -> bool:
        """Some of it is kept for a short time only."""
        return any(
            record.retention_class == RetentionClass.EPHEMERAL
            for record in self.records[conversation_id]
        )

    def unsure(self, conversation_id: bytes, clock: Clock) -> bool:
        """Retention may have been judged either way: a record ran out while the questions were asked."""
        return any(
            clock.earliest < _until(record, clock) <= clock.latest
            for record in self.records[conversation_id]
        )

    def rows(self, user: int, conversation_id: bytes, clock: Clock) -> list[ExpectedRow]:
        """Everything history may show, rising."""
        spans = self._intervals[conversation_id].get(user, [])
        records = self.records[conversation_id]
        recalled = self._recalled[conversation_id]
        deleted = {
            record.target_seq
            for record in records
            if record.kind == MessageKind.DELETE_FOR_ME and record.sender_id == user
        }
        return [
            ExpectedRow(
                seq=record.conversation_seq,
                record=record,
                recalled=record.conversation_seq in recalled,
            )
            for record in records
            if _within(spans, record.conversation_seq)
            and record.conversation_seq not in deleted
            and (record.kind != MessageKind.DELETE_FOR_ME or record.sender_id == user)
            and clock.latest < _until(record, clock)
        ]

    def unread(
        self, user: int, conversation_id: bytes, read_seq: int, clock: Clock
    ) -> tuple[int, bool]:
        """§4: the first 201 visible records with seq > read; 200 or fewer: the exact count of what counts."""
        ahead = [row for row in self.rows(user, conversation_id, clock) if row.seq > read_seq]
        if len(ahead) > WINDOW:
            return WINDOW, False
        return sum(_counts(row, user) for row in ahead), True

    def listed(
        self, user: int, marks: dict[bytes, int], clocks: dict[bytes, Clock]
    ) -> list[ExpectedConversation]:
        """The user's list in its order: falling (last_activity_id, conversation_id)."""
        made: list[ExpectedConversation] = []
        for conversation_id in self.conversations(user):
            activity = self._activity(user, conversation_id)
            if activity == EMPTY_ID:
                continue
            clock = clocks[conversation_id]
            rows = self.rows(user, conversation_id, clock)
            shown = [row for row in rows if row.record.kind not in OVERLAYS and not row.recalled]
            mark = marks.get(conversation_id, 0)
            unread, exact = self.unread(user, conversation_id, mark, clock)
            made.append(
                ExpectedConversation(
                    conversation_id=conversation_id,
                    last_activity_id=activity,
                    heads=self._heads(user, conversation_id, [row.seq for row in shown]),
                    unread=unread,
                    unread_exact=exact,
                )
            )
        return sorted(
            made, key=lambda one: (one.last_activity_id, one.conversation_id), reverse=True
        )

    def within(self, user: int, record: MessageRecord) -> bool:
        """History may give it: in an interval of the user's membership, and nobody else's deletion."""
        if record.kind == MessageKind.DELETE_FOR_ME and record.sender_id != user:
            return False
        spans = self._intervals.get(record.conversation_id, {}).get(user, [])
        return _within(spans, record.conversation_seq)

    def _heads(self, user: int, conversation_id: bytes, shown: list[int]) -> tuple[int, ...]:
        reached = [
            record.conversation_seq
            for record in self.records[conversation_id]
            if not record.recipients or user in record.recipients
        ]
        last = reached[-1] if reached else 0
        read_then = [seq for seq in shown if seq <= last]
        return (read_then[-1] if read_then else 0, *(seq for seq in shown if seq > last))

    def _activity(self, user: int, conversation_id: bytes) -> bytes:
        """Of the newest record that reached this user and moves a conversation: deleting one for oneself moves nothing."""
        spans = self._intervals[conversation_id][user]
        moving = [
            record.last_activity_id
            for record in self.records[conversation_id]
            if record.kind not in OVERLAYS
            and _within(spans, record.conversation_seq)
            and (not record.recipients or user in record.recipients)
        ]
        return max(moving, default=EMPTY_ID)


def _within(spans: list[tuple[int, int]], seq: int) -> bool:
    for joined, left in spans:  # noqa: SIM110 - for every record of every page, and a generator costs more
        if joined < seq <= left:
            return True
    return False


def _until(record: MessageRecord, clock: Clock) -> int:
    return retained_until(clock.policy, record.tenant_id, record.retention_class, record.sent_at)


def _counts(row: ExpectedRow, user: int) -> bool:
    record = row.record
    silent = (MessageKind.CONTROL, *OVERLAYS)
    return record.sender_id != user and record.kind not in silent and not row.recalled


def _intervals(records: list[MessageRecord]) -> dict[int, list[tuple[int, int]]]:
    """(joined_at, left_at] of each user who ever was a member, from the control messages (contract.md, Entities)."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for record in records:
        if record.conversation_kind == ConversationKind.SINGLE:
            for user in (record.sender_id, record.peer_user_id):
                spans.setdefault(user, [(0, EVER)])
        if record.delta is None:
            continue
        seq = record.conversation_seq
        for user in record.delta.users:
            known = spans.setdefault(user, [])
            if record.delta.op in JOINING:
                known.append((0 if record.delta.op == MembershipOp.CREATE else seq - 1, EVER))
            elif known:
                known[-1] = (known[-1][0], seq)
    return spans


def joined(first: Clock, second: Clock) -> Clock:
    """The span of both."""
    return replace(
        first,
        earliest=min(first.earliest, second.earliest),
        latest=max(first.latest, second.latest),
    )
