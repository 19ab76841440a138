"""The archive port: cold history by (conversation, bucket of 4096), permanent facts of a conversation (pipeline.md §5, §1.8).

Inserts are idempotent: message_id is part of the clustering key, so a reused conversation_seq shows as two rows and never as
an overwrite. Without expiry it keeps, per conversation, the greatest conversation_seq and last_activity_id, and every
membership version. A batch is confirmed as a whole or not; ``Unknown`` means any part of it may be there, now or later,
but greatest seq and position never before all rows of the batch. What is confirmed is seen by every read sent later.
"""

from msgspec import Struct

from qim.core.contract.entities import MemberHistoryRow, MembershipVersion


class ArchiveRow(Struct, frozen=True, kw_only=True, gc=False):
    """One effective record: ``stored`` = seq ‖ activity ‖ record. retained_until: wall ms, 2**63 - 1 for a hold."""

    conversation_id: bytes
    conversation_seq: int
    message_id: bytes
    outbox_offset: int
    retained_until: int
    stored: bytes


class WriteArchive(Struct, frozen=True, kw_only=True, gc=False):
    """Insert rows, raise each conversation's greatest seq and activity, keep versions and overlays. Answers: ArchiveWritten.

    ``through``: the outbox offset below which every effective record is archived once this batch is confirmed; kept, only
    forward, with the rows (which may be none: only barriers passed). 0 says nothing.
    """

    op: int
    partition: int
    rows: tuple[ArchiveRow, ...]
    traces: tuple[int, ...] = ()
    through: int = 0


class ArchiveWritten(Struct, frozen=True, kw_only=True, gc=False):
    """Every row is durable. ``reused``: (conversation_id, seq) that now hold two message_ids (a Violation)."""

    op: int
    reused: tuple[tuple[bytes, int], ...]


class ReadArchive(Struct, frozen=True, kw_only=True, gc=False):
    """Rows with low < seq < high, in the asked order, at most ``limit``. Answers: ArchiveRead."""

    op: int
    conversation_id: bytes
    low: int
    high: int
    newest_first: bool
    limit: int


class ArchiveRead(Struct, frozen=True, kw_only=True, gc=False):
    """``more``: rows stand beyond the limit."""

    op: int
    stored: tuple[bytes, ...]
    more: bool


class ReadArchiveBodies(Struct, frozen=True, kw_only=True, gc=False):
    """Stored records by (conversation_id, seq, message_id). Answers: ArchiveBodiesRead."""

    op: int
    names: tuple[tuple[bytes, int, bytes], ...]


class ArchiveBodiesRead(Struct, frozen=True, kw_only=True, gc=False):
    """One a name; None: not archived, or expired.

    ``let_go``: the greatest ``before_wall`` of ExpireArchive so far: what was kept until earlier than that may be gone for
    good, however little of it has passed by the reader's clock (0: nothing was let go).
    """

    op: int
    stored: tuple[bytes | None, ...]
    let_go: int = 0


class ArchivedConversation(Struct, frozen=True, kw_only=True, gc=False):
    """What OPEN restores of a conversation when the outbox alone can't (pipeline.md §1.8)."""

    conversation_id: bytes
    conversation_kind: int
    greatest_seq: int
    last_activity_id: bytes
    single_users: tuple[int, int] | None
    versions: tuple[MembershipVersion, ...]
    everyone: tuple[MemberHistoryRow, ...]
    creator: int
    name: str
    meta: bytes
    overlays: tuple[tuple[int, int, int], ...]
    """(target seq, seq of the overlay's record, user_id of a delete-for-me or 0 for a recall)."""


class ReadArchivedConversations(Struct, frozen=True, kw_only=True, gc=False):
    """Conversations of an outbox partition in id order after ``after`` (b"" first). Answers: ArchivedConversationsRead.

    ``limit`` 0 asks for the position alone.
    """

    op: int
    partition: int
    after: bytes
    limit: int


class ArchivedConversationsRead(Struct, frozen=True, kw_only=True, gc=False):
    """``more``: others stand beyond the last. ``position``: every effective record below it is archived (0: none).

    It stands in the archive because a hot store that comes back EMPTY has lost the archiver's own position (§1.8).
    """

    op: int
    conversations: tuple[ArchivedConversation, ...]
    more: bool
    position: int = 0


class ExpireArchive(Struct, frozen=True, kw_only=True, gc=False):
    """Remove at most ``limit`` rows whose retained_until is before ``before_wall``. Answers: ArchiveExpired."""

    op: int
    before_wall: int
    limit: int


class ArchiveExpired(Struct, frozen=True, kw_only=True, gc=False):
    """How many went; ``more``: ask again."""

    op: int
    removed: int
    more: bool


ArchiveRequest = (
    WriteArchive | ReadArchive | ReadArchiveBodies | ReadArchivedConversations | ExpireArchive
)
ArchiveReply = (
    ArchiveWritten | ArchiveRead | ArchiveBodiesRead | ArchivedConversationsRead | ArchiveExpired
)
