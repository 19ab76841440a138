"""Requests of the operator's tools, one a Lua script of the same name: what pipeline.md §§2, 7 let a person mend.

Conventions as in ports/store_message.py. AmendSource and ReadHot are of the MESSAGE store, the others of the MAILBOX store.
Each that writes is fenced like a machine's own request, binds to an incarnation, and repeating it changes nothing.
"""

from msgspec import Struct

from qim.core.contract.sequences import U64_MAX
from qim.core.ports.log import Position


class AmendSource(Struct, frozen=True, kw_only=True, gc=False):
    """Replace receipts of a source partition and put its checkpoint from ``from_offset`` to ``to``, ONE script.

    ``to`` may be the checkpoint that stands (receipts alone), or lie behind it: then fanout dispatches again from there.
    ``drop_from``, ``drop_to``: receipts at source offsets from the one to below the other go first; -1: none. ``lost``:
    [low, high) of offsets whose records were lost and are published elsewhere, remembered for the audit; low == high: none.
    Answers: SourceAmended, Fenced (epoch 0: the checkpoint is elsewhere).
    """

    op: int
    partition: int
    epoch: int
    incarnation: bytes
    from_offset: int
    to: Position
    filter_epoch: int
    drop_from: int
    receipts: tuple[tuple[int, bytes], ...]
    lost: tuple[int, int] = (0, 0)
    drop_to: int = U64_MAX


class SourceAmended(Struct, frozen=True, kw_only=True, gc=False):
    """Receipts and checkpoint stand as asked, or stood already."""

    op: int


class ReadHot(Struct, frozen=True, kw_only=True, gc=False):
    """Hot rows of a writer shard from outbox offset ``low`` on, in that order. Unfenced. Answers: HotRead."""

    op: int
    shard: int
    low: int
    limit: int


class HotRead(Struct, frozen=True, kw_only=True, gc=False):
    """(offset, stored record); a row may stand under an earlier offset, too. ``more`` beyond ``limit``."""

    op: int
    rows: tuple[tuple[int, bytes], ...]
    more: bool


class BumpShard(Struct, frozen=True, kw_only=True, gc=False):
    """Begin a mailbox shard anew at ``to`` = W = trim = the predecessor of (new shard_epoch | 0); drops days and position,
    voids claims at dispatch offsets from ``void_from`` on, and lets those that stay name no offset of the new log.

    ``from_watermark`` is min W as it was judged. ``redo``: (source partition, offset from which fanout dispatches again);
    mailbox and session had all below. ``unsettled``: (source partition, its first record that the mailbox had not): no floor
    stays above it. ``promised``: (source partition, the greatest f that a dispatch made so far may carry): none up to it
    raises a floor. Answers: ShardBumped, Fenced (epoch 0: min W moved).
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    from_watermark: int
    to_watermark: int
    void_from: int
    redo: tuple[tuple[int, int], ...]
    unsettled: tuple[tuple[int, int], ...]
    promised: tuple[tuple[int, int], ...]


class ShardBumped(Struct, frozen=True, kw_only=True, gc=False):
    """The shard begins at its new epoch; ``voided`` claims are gone (0 where it had been bumped before)."""

    op: int
    voided: int


class RestartProjection(Struct, frozen=True, kw_only=True, gc=False):
    """Forget the dispatch position of a session shard: it starts at the log's start, under ``shard_epoch``.

    Rows stay: a replay only raises them. Answers: ProjectionRestarted, Fenced.
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    shard_epoch: int


class ProjectionRestarted(Struct, frozen=True, kw_only=True, gc=False):
    """The next Open finds no dispatch position."""

    op: int


OperatorMessageRequest = AmendSource | ReadHot
OperatorMailboxRequest = BumpShard | RestartProjection
OperatorReply = SourceAmended | HotRead | ShardBumped | ProjectionRestarted
