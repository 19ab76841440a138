"""Requests to the MESSAGE store around tiered history: archiver position, hot trim, restore from archive, overlays (§5, §1.8).

Conventions as in ports/store_message.py. An overlay (recall, delete for me) is written by the script that reserves its
record, keyed (conversation, target seq), and counts once that record is no longer pending.
"""

from msgspec import Struct

from qim.core.ports.archive import ArchivedConversation
from qim.core.ports.log import Position


class OpenArchive(Struct, frozen=True, kw_only=True, gc=False):
    """HistoryArchiver: raise the fence of a source partition, read position and filter. Answers: ArchiveOpened, Fenced."""

    op: int
    partition: int
    epoch: int
    fresh_key: bytes
    opener: bytes = b""


class ArchiveOpened(Struct, frozen=True, kw_only=True, gc=False):
    """``position`` None: missing, start at the log's start."""

    op: int
    incarnation: bytes
    position: Position | None
    filter_epoch: int


class CommitArchive(Struct, frozen=True, kw_only=True, gc=False):
    """Position from -> to and the archive watermark (= to.offset), only forward. Answers: ArchiveCommitted, Fenced."""

    op: int
    partition: int
    epoch: int
    incarnation: bytes
    from_offset: int
    to: Position
    filter_epoch: int


class ArchiveCommitted(Struct, frozen=True, kw_only=True, gc=False):
    """The watermark stands at ``to``."""

    op: int


class ReadArchivePosition(Struct, frozen=True, kw_only=True, gc=False):
    """Unfenced look at the archive watermark of a partition (OPEN §1.8, metrics). Answers: ArchivePositionRead."""

    op: int
    partition: int


class ArchivePositionRead(Struct, frozen=True, kw_only=True, gc=False):
    """Every effective record below ``offset`` is archived; 0 where this store knows of none."""

    op: int
    offset: int


class TrimHot(Struct, frozen=True, kw_only=True, gc=False):
    """Writer: drop ≤ ``limit`` leading hot rows with outbox offset < the archive watermark and sent_at < before_wall.

    Raises each conversation's hot floor F to seq + 1 in the same script. Answers: HotTrimmed, Fenced.
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    before_wall: int
    limit: int


class HotTrimmed(Struct, frozen=True, kw_only=True, gc=False):
    """``more``: ask again."""

    op: int
    removed: int
    more: bool


class RestoreConversations(Struct, frozen=True, kw_only=True, gc=False):
    """OPEN §1.8: put back what the archive keeps; idempotent, only forward. Answers: ConversationsRestored, Fenced.

    The hot floor of each rises above its greatest archived seq, the HLC floor to the greatest last_activity_id.
    ``applied_to``: 0 on every page but the last, which moves ``applied`` up to it (the log's start) in the same script.
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    conversations: tuple[ArchivedConversation, ...]
    applied_to: int = 0


class ConversationsRestored(Struct, frozen=True, kw_only=True, gc=False):
    """Done."""

    op: int


class ReadOverlays(Struct, frozen=True, kw_only=True, gc=False):
    """Is (shard, conversation_id, seq) recalled? For pulls and caches; content-addressed. Answers: OverlaysRead."""

    op: int
    names: tuple[tuple[int, bytes, int], ...]


class OverlaysRead(Struct, frozen=True, kw_only=True, gc=False):
    """One a name: seq of the recall's record, 0 where there is none (or it is still pending).

    None: nobody knows. The store may have lost its tail, and no OPEN has made the shard whole in this incarnation yet.
    """

    op: int
    recalled: tuple[int | None, ...]


HistoryStoreRequest = (
    OpenArchive
    | CommitArchive
    | ReadArchivePosition
    | TrimHot
    | RestoreConversations
    | ReadOverlays
)
HistoryStoreReply = (
    ArchiveOpened
    | ArchiveCommitted
    | ArchivePositionRead
    | HotTrimmed
    | ConversationsRestored
    | OverlaysRead
)
