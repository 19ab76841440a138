"""What the MESSAGE store keeps of an outbox partition for those who come after the writer (ports/store_message.py).

Fanout opens a source partition and moves its checkpoint behind receipts and dead letters (pipeline.md §2); the auditor reads
all of these, and the facts of what was committed (§8).
"""

from msgspec import Struct

from qim.core.contract.entities import CommitAuditFact
from qim.core.ports.log import Position


class OpenSource(Struct, frozen=True, kw_only=True, gc=False):
    """Fanout: raise the fence of a source partition and read its checkpoint. Answers: SourceOpened, Fenced."""

    op: int
    partition: int
    epoch: int
    fresh_key: bytes
    opener: bytes = b""


class SourceOpened(Struct, frozen=True, kw_only=True, gc=False):
    """``position`` None: missing, start at the log's start (never its end); filter_epoch: greatest barrier below it."""

    op: int
    incarnation: bytes
    position: Position | None
    filter_epoch: int


class CommitSource(Struct, frozen=True, kw_only=True, gc=False):
    """Receipts, dead letters, then checkpoint from -> to, ONE script. Answers: SourceCommitted, Fenced.

    ``log_start``: of the outbox, as far as known; receipts below it go, a bounded number a call.
    """

    op: int
    partition: int
    epoch: int
    incarnation: bytes
    from_offset: int
    to: Position
    filter_epoch: int
    receipts: tuple[tuple[int, bytes], ...]
    dead_letters: tuple[tuple[int, bytes], ...]
    traces: tuple[int, ...] = ()
    log_start: int = 0


class SourceCommitted(Struct, frozen=True, kw_only=True, gc=False):
    """The checkpoint stands at ``to``."""

    op: int


class ReadSource(Struct, frozen=True, kw_only=True, gc=False):
    """Unfenced look at a checkpoint, its receipts and dead letters in [low, high) (auditor). Answers: SourceRead."""

    op: int
    partition: int
    low: int
    high: int
    limit: int


class SourceRead(Struct, frozen=True, kw_only=True, gc=False):
    """Receipt and dead-letter rows by offset; ``more`` beyond ``limit``. checkpoint -1: missing. applied of the writer shard,
    and the digest of the record before it where that is known.

    ``lost``: ranges of offsets whose records the log had lost, published again elsewhere (pipeline.md §7): a dispatch may
    still name them.
    """

    op: int
    incarnation: bytes
    checkpoint: int
    applied: int
    receipts: tuple[tuple[int, bytes], ...]
    dead_letters: tuple[tuple[int, bytes], ...]
    more: bool
    lost: tuple[tuple[int, int], ...] = ()
    applied_before: bytes = b""


class ReadFacts(Struct, frozen=True, kw_only=True, gc=False):
    """CommitAuditFacts of a writer shard after a message_id, in message_id order (auditor). Answers: FactsRead."""

    op: int
    shard: int
    after: bytes
    limit: int


class FactsRead(Struct, frozen=True, kw_only=True, gc=False):
    """Rows; ``more`` beyond ``limit``."""

    op: int
    facts: tuple[CommitAuditFact, ...]
    more: bool
