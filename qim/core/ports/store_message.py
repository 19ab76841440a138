"""Requests to the MESSAGE store, one a Lua script of the same name (snake_case), and their replies.

Every request carries ``op``; fenced ones ``epoch``; all but the Open ones and the content-addressed reads
``incarnation`` (run_id ‖ b"/" ‖ key, as an Open answered it; b"" on a content-addressed read means: any marked keyspace).
Besides its typed reply any request may be answered by ports/completion.py. Compare-and-sets retried after Unknown under
the same epoch and incarnation answer done when the value already stands at ``to`` (pipeline.md §1.5).
``opener`` of an Open is who holds the lease (core/opener.py): an epoch that another raised the fence to is Fenced, though it
is not higher. b"" is an operator's: it owns nothing and opens under the epoch that stands.
Wall times are ms and only ever handed in. ``shard`` = writer shard = outbox partition.
"""

from msgspec import Struct

from qim.core.ports.store_reads import (
    BodiesRead,
    HistoryRead,
    MembershipRead,
    ReadBodies,
    ReadHistory,
    ReadMembership,
    ReadVersions,
    VersionsRead,
)
from qim.core.ports.store_source import (
    CommitSource,
    FactsRead,
    OpenSource,
    ReadFacts,
    ReadSource,
    SourceCommitted,
    SourceOpened,
    SourceRead,
)


class OpenShard(Struct, frozen=True, kw_only=True, gc=False):
    """OPEN (b): raise the fence to ``epoch``, mark an empty keyspace with ``fresh_key``. Answers: ShardOpened, Fenced."""

    op: int
    shard: int
    epoch: int
    fresh_key: bytes
    opener: bytes = b""


class ShardOpened(Struct, frozen=True, kw_only=True, gc=False):
    """``applied``: every effective record below it is in this store (absent: 0); filter_epoch: the greatest barrier below it.

    ``before``: the digest of the record before ``applied`` (core/position.py), empty where it is not known.
    """

    op: int
    incarnation: bytes
    applied: int
    filter_epoch: int
    hlc_floor: bytes
    before: bytes = b""


class AppliedRecord(Struct, frozen=True, kw_only=True, gc=False):
    """One effective outbox record to restore: ``stored`` = seq ‖ activity ‖ record; membership as in MembershipChange."""

    offset: int
    dedupe_key: bytes
    request_digest: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_kind: int
    conversation_seq: int
    last_activity_id: bytes
    stored: bytes
    sent_at: int
    not_after: int
    single_users: tuple[int, int] | None
    membership: "MembershipWrite | None"
    overlay: tuple[int, int] | None = None


class ApplyOutbox(Struct, frozen=True, kw_only=True, gc=False):
    """OPEN (d): restore records in [applied_from, applied_to) and move ``applied``, one script. Answers: OutboxApplied.

    ``whole``: with it the shard holds all that stands before OPEN's barrier, and is marked so for this incarnation: what
    is read of it without a fence (ReadOverlays) may be believed from now on, until the store loses its tail.
    ``before``: the digest of the record before applied_to; told also where ``applied`` stands there already.
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    now_wall: int
    applied_from: int
    applied_to: int
    filter_epoch: int
    records: tuple[AppliedRecord, ...]
    whole: bool = False
    before: bytes = b""


class OutboxApplied(Struct, frozen=True, kw_only=True, gc=False):
    """Done; ``applied`` now equals the asked applied_to."""

    op: int


class MembershipWrite(Struct, frozen=True, kw_only=True, gc=False):
    """A group's step from previous_version to version: (operation, users really changed, digest chained, meta at CREATE)."""

    operation: int
    users: tuple[int, ...]
    previous_version: int
    previous_digest: bytes
    version: int
    digest: bytes
    creator: int
    name: str
    meta: bytes


class ReserveItem(Struct, frozen=True, kw_only=True, gc=False):
    """A new commit: ``record`` is encode_record(); version/digest frozen audience (0/b"" single chat with single_users).

    ``overlay`` = (user_id of a delete-for-me or 0 for a recall, target seq) of an overlay record: laid in the same script,
    it counts once the record is no longer pending.
    """

    dedupe_key: bytes
    request_digest: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_kind: int
    version: int
    membership_digest: bytes
    single_users: tuple[int, int] | None
    record: bytes
    sent_at: int
    not_after: int
    overlay: tuple[int, int] | None = None


class ReserveAndRecord(Struct, frozen=True, kw_only=True, gc=False):
    """§1.2: fence, dedupe, version still V, next seq, activity, intent, history, pending, fact; a batch in ONE script."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    now_wall: int
    items: tuple[ReserveItem, ...]
    traces: tuple[int, ...] = ()


class MembershipChange(Struct, frozen=True, kw_only=True, gc=False):
    """§1.9: as one ReserveItem, and the group's next version in the same script. Answers: Reserved with one result."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    now_wall: int
    item: ReserveItem
    membership: MembershipWrite
    traces: tuple[int, ...] = ()


class Fresh(Struct, frozen=True, kw_only=True, gc=False):
    """Reserved now: these coordinates are the message's for ever."""

    conversation_seq: int
    last_activity_id: bytes


class Existing(Struct, frozen=True, kw_only=True, gc=False):
    """The dedupe key is taken: ``state`` is a CommitState; ``stored`` holds the intent while RECORDED, else b"".

    version/control_seq name what a membership request committed (0 for a message).
    """

    state: int
    request_digest: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_seq: int
    last_activity_id: bytes
    sent_at: int
    version: int
    stored: bytes


class VersionMoved(Struct, frozen=True, kw_only=True, gc=False):
    """MembershipChanged: the conversation stands at another version (0, b"": no such conversation); no seq consumed."""

    version: int
    digest: bytes


ReserveResult = Fresh | Existing | VersionMoved


class Reserved(Struct, frozen=True, kw_only=True, gc=False):
    """One result an item, in order."""

    op: int
    results: tuple[ReserveResult, ...]


class LookupCommits(Struct, frozen=True, kw_only=True, gc=False):
    """§1.1: what stands under these dedupe keys. Answers: CommitsFound."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    now_wall: int
    dedupe_keys: tuple[bytes, ...]


class CommitsFound(Struct, frozen=True, kw_only=True, gc=False):
    """One a key, in order; None: nothing stands there (or it is past not_after + the dedupe grace by ``now_wall``)."""

    op: int
    commits: tuple[Existing | None, ...]


class MarkItem(Struct, frozen=True, kw_only=True, gc=False):
    """An append confirmed at ``offset``."""

    dedupe_key: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_seq: int
    offset: int


class MarkCommitted(Struct, frozen=True, kw_only=True, gc=False):
    """§1.4: demands each intent with the same message_id; moves applied. Answers: MarkedCommitted, MarkLost, Fenced.

    ``before``: the digest of the record before applied_to.
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    applied_to: int
    items: tuple[MarkItem, ...]
    traces: tuple[int, ...] = ()
    before: bytes = b""


class MarkedCommitted(Struct, frozen=True, kw_only=True, gc=False):
    """All are COMMITTED (also when they were already); ``applied`` and its filter state moved (never back)."""

    op: int


class MarkLost(Struct, frozen=True, kw_only=True, gc=False):
    """Item ``index`` has no intent with this message_id: handled as StoreReset, nothing was written."""

    op: int
    index: int


class MarkRefused(Struct, frozen=True, kw_only=True, gc=False):
    """§1.5: the log named the record itself: intent -> REFUSED, out of pending and history. Answers: MarkedRefused, MarkLost."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    items: tuple[MarkItem, ...]


class MarkedRefused(Struct, frozen=True, kw_only=True, gc=False):
    """Done."""

    op: int


class ReadPending(Struct, frozen=True, kw_only=True, gc=False):
    """OPEN (e): intents in (conversation, seq) order after ``after`` (b"" first). Answers: PendingRead."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    after: bytes
    limit: int


class PendingRead(Struct, frozen=True, kw_only=True, gc=False):
    """``stored`` = seq ‖ activity ‖ record of each; ``last`` continues the reading, ``more`` says whether to."""

    op: int
    stored: tuple[bytes, ...]
    last: bytes
    more: bool


class WriteHeads(Struct, frozen=True, kw_only=True, gc=False):
    """ConversationHead, asynchronous: (conversation_id, seq, activity, message_id), only forward. Answers: HeadsWritten."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    heads: tuple[tuple[bytes, int, bytes, bytes], ...]


class HeadsWritten(Struct, frozen=True, kw_only=True, gc=False):
    """Done."""

    op: int


MessageStoreRequest = (
    OpenShard
    | ApplyOutbox
    | ReserveAndRecord
    | MembershipChange
    | LookupCommits
    | MarkCommitted
    | MarkRefused
    | ReadPending
    | ReadMembership
    | ReadVersions
    | ReadHistory
    | ReadBodies
    | WriteHeads
    | OpenSource
    | CommitSource
    | ReadSource
    | ReadFacts
)
MessageStoreReply = (
    ShardOpened
    | OutboxApplied
    | Reserved
    | CommitsFound
    | MarkedCommitted
    | MarkLost
    | MarkedRefused
    | PendingRead
    | MembershipRead
    | VersionsRead
    | HistoryRead
    | BodiesRead
    | HeadsWritten
    | SourceOpened
    | SourceCommitted
    | SourceRead
    | FactsRead
)
