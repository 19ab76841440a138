"""A batch as statements: rows and facts first, what only rises afterwards (pipeline.md §§1.8, 5)."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from qim.adapters.cassandra.in_flight import Statement
from qim.adapters.cassandra.schema import SLICES
from qim.core.archived import (
    MembershipStep,
    bucket_of,
    founding_of,
    membership_after,
    overlay_of,
    single_users_of,
    step_of,
)
from qim.core.contract.entities import MessageRecord, decode_stored_record
from qim.core.ports.archive import ArchivedConversation, ArchiveRow
from qim.core.retention import FOREVER_MS

RISING_AT: Final = 1
"""The one timestamp of every column that only rises: the greater value stays (schema.py)."""
LAST_EXPIRY_MS: Final = 2_140_000_000_000
"""Servers refuse a TTL that ends after January 2038; what is kept beyond October 2037 is written without one."""
BUCKET_TIMESTAMP_MAX: Final = 100_000_000_000_000
"""Of rows without end: above every real retained_until in ms, below what a server takes for a clock gone mad."""
U64_MAX: Final = (1 << 64) - 1


class Prepared(Struct, frozen=True, kw_only=True):
    """Every statement of the adapter, prepared once a session."""

    history: Any
    bucket: Any
    index: Any
    step: Any
    founding: Any
    overlay: Any
    conversation: Any
    position: Any
    places: Any
    buckets_up: Any
    buckets_down: Any
    page_up: Any
    page_down: Any
    body: Any
    conversations: Any
    position_of: Any
    steps_of: Any
    founding_of: Any
    overlays_of: Any


CQL: Final[dict[str, str]] = {
    "history": "INSERT INTO {k}.history (conversation, bucket, seq, message, position, retained_until, stored) "
    "VALUES (?,?,?,?,?,?,?) USING TTL ?",
    "bucket": "INSERT INTO {k}.history_bucket (conversation, bucket) VALUES (?,?) "
    "USING TIMESTAMP ? AND TTL ?",
    "index": "INSERT INTO {k}.message_index (message, conversation, seq) VALUES (?,?,?) USING TTL ?",
    "step": "INSERT INTO {k}.step (conversation, version, digest, control, operation, users) "
    "VALUES (?,?,?,?,?,?)",
    "founding": "INSERT INTO {k}.founding (conversation, creator, name, meta) VALUES (?,?,?,?)",
    "overlay": "INSERT INTO {k}.overlay (conversation, target, seq, user) VALUES (?,?,?,?)",
    "conversation": "INSERT INTO {k}.conversation (partition, slice, id, kind, users, greatest, activity) "
    f"VALUES (?,?,?,?,?,?,?) USING TIMESTAMP {RISING_AT}",
    "position": f"INSERT INTO {{k}}.position (partition, through) VALUES (?,?) USING TIMESTAMP {RISING_AT}",
    "places": "SELECT seq FROM {k}.history WHERE conversation=? AND bucket=? AND seq>=? AND seq<=?",
    "buckets_up": "SELECT bucket FROM {k}.history_bucket WHERE conversation=? AND bucket>=? AND bucket<=? "
    "ORDER BY bucket ASC LIMIT ?",
    "buckets_down": "SELECT bucket FROM {k}.history_bucket WHERE conversation=? AND bucket>=? AND bucket<=? "
    "ORDER BY bucket DESC LIMIT ?",
    "page_up": "SELECT stored FROM {k}.history WHERE conversation=? AND bucket=? AND seq>=? AND seq<=? "
    "ORDER BY seq ASC, message ASC LIMIT ?",
    "page_down": "SELECT stored FROM {k}.history WHERE conversation=? AND bucket=? AND seq>=? AND seq<=? "
    "ORDER BY seq DESC, message DESC LIMIT ?",
    "body": "SELECT stored FROM {k}.history WHERE conversation=? AND bucket=? AND seq=? AND message=?",
    "conversations": "SELECT id, kind, users, greatest, activity FROM {k}.conversation "
    "WHERE partition=? AND slice=? AND id>? LIMIT ?",
    "position_of": "SELECT through FROM {k}.position WHERE partition=?",
    "steps_of": "SELECT version, digest, control, operation, users FROM {k}.step WHERE conversation=?",
    "founding_of": "SELECT creator, name, meta FROM {k}.founding WHERE conversation=?",
    "overlays_of": "SELECT target, seq, user FROM {k}.overlay WHERE conversation=?",
}


def prepare(session: Any, keyspace: str) -> Prepared:
    """Blocks: one round trip a statement."""
    made = {name: session.prepare(text.format(k=keyspace)) for name, text in CQL.items()}
    for statement in made.values():
        statement.is_idempotent = (
            True  # every one of them, writes too: that is what the tables are made for
        )
    return Prepared(**made)


def u64(value: int) -> bytes:
    """8 bytes big-endian: byte order is the order of numbers."""
    return value.to_bytes(8, "big")


def number(value: bytes) -> int:
    """Back from ``u64``."""
    return int.from_bytes(value, "big")


def slice_of(conversation_id: bytes) -> int:
    """Slices are in the order of ids."""
    return conversation_id[0] * SLICES >> 8 if conversation_id else 0


def ttl_seconds(retained_until: int, sent_at: int) -> int:
    """How long the row's class is kept, in whole seconds from when it is written; 0: without end.

    From the class, not from a clock: a process whose clock runs ahead would have rows gone at once. The row stands a
    little longer than it must, by as much as it was archived later; who shows history judges retention by himself.
    """
    if retained_until >= LAST_EXPIRY_MS:
        return 0
    return max(1, -(-(retained_until - sent_at) // 1_000))


class Batch:
    """Statements of one WriteArchive in the three steps that must follow each other."""

    def __init__(
        self, prepared: Prepared, partition: int, rows: Sequence[ArchiveRow], through: int
    ) -> None:
        self.facts: list[Statement] = []
        """Rows, buckets, index, steps, foundings, overlays."""
        self.greatest: list[Statement] = []
        self.position: list[Statement] = []
        self.places: list[Statement] = []
        """Reads back what stands at the batch's places, one a conversation and bucket."""
        self._prepared = prepared
        self._spans: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._seqs: dict[tuple[bytes, int], None] = {}
        buckets: dict[tuple[bytes, int], tuple[int, int]] = {}
        conversations: dict[bytes, tuple[MessageRecord, int, bytes]] = {}
        for row in rows:
            record = decode_stored_record(row.stored)
            self._row(row, record, buckets)
            self.facts += self._facts(row.conversation_id, record)
            first, seq, activity = conversations.get(row.conversation_id, (record, 0, b""))
            conversations[row.conversation_id] = (
                first,
                max(seq, record.conversation_seq),
                max(activity, record.last_activity_id),
            )
        self.facts += [(prepared.bucket, (*place, at, ttl)) for place, (at, ttl) in buckets.items()]
        self.places = [
            (prepared.places, (*place, u64(low), u64(high)))
            for place, (low, high) in self._spans.items()
        ]
        self.greatest = [
            (prepared.conversation, self._greatest(partition, name, *known))
            for name, known in conversations.items()
        ]
        if through > 0:
            self.position = [(prepared.position, (partition, u64(through)))]

    def reused(self, found: Sequence[Sequence[tuple[Any, ...]]]) -> tuple[tuple[bytes, int], ...]:
        """Places of the batch with more than one message, of what ``places`` answered."""
        doubled: list[tuple[bytes, int]] = []
        for (conversation, _), rows in zip(self._spans, found, strict=True):
            before = -1
            for row in rows:  # in order of seq
                seq = number(row[0])
                if seq == before and (conversation, seq) in self._seqs:
                    if not doubled or doubled[-1] != (conversation, seq):
                        doubled.append((conversation, seq))
                before = seq
        return tuple(doubled)

    def _row(
        self,
        row: ArchiveRow,
        record: MessageRecord,
        buckets: dict[tuple[bytes, int], tuple[int, int]],
    ) -> None:
        seq, prepared = row.conversation_seq, self._prepared
        place = (row.conversation_id, bucket_of(seq))
        low, high = self._spans.get(place, (seq, seq))
        self._spans[place] = (min(low, seq), max(high, seq))
        self._seqs[row.conversation_id, seq] = None
        ttl = ttl_seconds(row.retained_until, record.sent_at)
        until = min(row.retained_until, FOREVER_MS)
        self.facts += [
            (
                prepared.history,
                (*place, u64(seq), row.message_id, row.outbox_offset, until, row.stored, ttl),
            ),
            (prepared.index, (row.message_id, row.conversation_id, u64(seq), ttl)),
        ]
        lasting = (BUCKET_TIMESTAMP_MAX if ttl == 0 else until, ttl)
        buckets[place] = max(buckets.get(place, lasting), lasting)

    def _facts(self, conversation_id: bytes, record: MessageRecord) -> Iterator[Statement]:
        step, overlay, founding = step_of(record), overlay_of(record), founding_of(record)
        if step is not None:
            users = b"".join([u64(user) for user in step.users])
            values = (u64(step.version), step.digest, u64(step.control_seq), step.operation, users)
            yield self._prepared.step, (conversation_id, *values)
        if founding is not None:
            creator = u64(founding.creator)
            yield self._prepared.founding, (conversation_id, creator, founding.name, founding.meta)
        if overlay is not None:
            yield self._prepared.overlay, (conversation_id, *[u64(part) for part in overlay])

    @staticmethod
    def _greatest(
        partition: int, name: bytes, first: MessageRecord, seq: int, activity: bytes
    ) -> tuple[object, ...]:
        pair = single_users_of(first) or ()
        users = b"".join([u64(user) for user in pair])
        kind = first.conversation_kind
        return partition, slice_of(name), name, kind, users, u64(seq), activity


def conversation_from(
    row: tuple[Any, ...],
    steps: Sequence[tuple[Any, ...]],
    founding: Sequence[tuple[Any, ...]],
    overlays: Sequence[tuple[Any, ...]],
) -> ArchivedConversation:
    """What OPEN restores, of the rows of its four tables."""
    conversation_id, kind, users, greatest, activity = row
    versions, everyone = membership_after(
        conversation_id,
        [
            MembershipStep(
                version=number(version),
                digest=digest,
                control_seq=number(control),
                operation=operation,
                users=_numbers(changed),
            )
            for version, digest, control, operation, changed in steps
        ],
    )
    creator, name, meta = founding[0] if founding else (u64(0), "", b"")
    pair = _numbers(users)
    return ArchivedConversation(
        conversation_id=conversation_id,
        conversation_kind=kind,
        greatest_seq=number(greatest),
        last_activity_id=activity,
        single_users=(pair[0], pair[1]) if pair else None,
        versions=versions,
        everyone=everyone,
        creator=number(creator),
        name=name,
        meta=meta,
        overlays=tuple([(number(t), number(s), number(u)) for t, s, u in overlays]),
    )


def _numbers(packed: bytes) -> tuple[int, ...]:
    return tuple([number(packed[at : at + 8]) for at in range(0, len(packed), 8)])
