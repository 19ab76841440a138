"""Requests to the MAILBOX store (mailboxes and presence), one a Lua script of the same name, and their replies.

Conventions as in ports/store_message.py. All watermarks are u64 mailbox_seq (shard_epoch:16 ‖ offset:48) and inclusive;
"before the first record" is the u64 predecessor of (shard_epoch | first offset) (pipeline.md §3.4). 64 lanes a shard: the
shard keeps one base W, a lane ahead or behind it has a field of its own.
"""

from msgspec import Struct

from qim.core.contract.entities import PresenceEntry
from qim.core.ports.log import Position


class OpenMailbox(Struct, frozen=True, kw_only=True, gc=False):
    """§3.0: raise the fence, read all state; ``initial`` is W where none is stored. Answers: MailboxOpened, Fenced."""

    op: int
    shard: int
    epoch: int
    fresh_key: bytes
    initial: int
    opener: bytes = b""


class MailboxOpened(Struct, frozen=True, kw_only=True, gc=False):
    """``lanes`` lists only lanes with a field of their own; ``position`` None: fresh. counter_lost: data without its W.

    days: (UTC day number, first offset) ascending; floors: (source partition, f).
    """

    op: int
    incarnation: bytes
    base: int
    lanes: tuple[tuple[int, int], ...]
    trim: int
    floors: tuple[tuple[int, int], ...]
    days: tuple[tuple[int, int], ...]
    position: Position | None
    counter_lost: bool


class Claim(Struct, frozen=True, array_like=True, gc=False):
    """dispatch_id seen at ``offset``; source_partition NO_SOURCE for a redriven one."""

    dispatch_id: bytes
    offset: int
    source_partition: int
    source_offset: int


class ClaimDispatches(Struct, frozen=True, kw_only=True, gc=False):
    """§3.1: record the FIRST offset of each dispatch_id. Answers: Claimed, Fenced."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    claims: tuple[Claim, ...]
    traces: tuple[int, ...] = ()


class Claimed(Struct, frozen=True, kw_only=True, gc=False):
    """One a claim: the first offset (== own: materialise; other: duplicate), -1: source offset below the floor, duplicate.

    ``digests`` are those of a FinishDispatch that already stands (b"" none): a replay compares (event_id_nondeterminism).
    """

    op: int
    first_offsets: tuple[int, ...]
    digests: tuple[bytes, ...]


class LaneMove(Struct, frozen=True, array_like=True, gc=False):
    """Compare-and-set of one lane's W. ``from_`` == ``to`` pins a lane that stays while the base moves."""

    lane: int
    from_: int
    to: int


class MailboxRow(Struct, frozen=True, array_like=True, gc=False):
    """One encoded UserMailboxEntry for one user."""

    tenant_id: str
    user_id: int
    day: int
    mailbox_seq: int
    entry: bytes


class AppendEntries(Struct, frozen=True, kw_only=True, gc=False):
    """§3.2: rows and watermark moves, one script, all or nothing. Answers: EntriesAppended, Trimmed, Fenced.

    The base moves base_from -> base_to; ``moves`` names every lane whose own W differs from the base before or after.
    ``days``: (day, first offset) of day ranges that begin in this call. ``position`` is that of min W after the call.
    A row at or below trim is not written (late call).
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    base_from: int
    base_to: int
    moves: tuple[LaneMove, ...]
    rows: tuple[MailboxRow, ...]
    days: tuple[tuple[int, int], ...]
    position: Position
    traces: tuple[int, ...] = ()


class EntriesAppended(Struct, frozen=True, kw_only=True, gc=False):
    """All rows are stored and all watermarks stand at their ``to``."""

    op: int


class Trimmed(Struct, frozen=True, kw_only=True, gc=False):
    """base_to is at or below trim: a late call, nothing was written."""

    op: int
    trim: int


class Progress(Struct, frozen=True, array_like=True, gc=False):
    """DispatchProgress: how many rows this shard wrote for it and the materialisation digest."""

    dispatch_id: bytes
    offset: int
    entry_count: int
    digest: bytes


class FinishDispatches(Struct, frozen=True, kw_only=True, gc=False):
    """Only marks progress; moves no W. Answers: DispatchesFinished, Fenced."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    items: tuple[Progress, ...]


class DispatchesFinished(Struct, frozen=True, kw_only=True, gc=False):
    """``differing``: indexes whose stored digest differs (event_id_nondeterminism)."""

    op: int
    differing: tuple[int, ...]


class ReadProgress(Struct, frozen=True, kw_only=True, gc=False):
    """DispatchProgress of these dispatch_ids (auditor). Answers: ProgressRead. Not fenced, bound to the incarnation."""

    op: int
    shard: int
    incarnation: bytes
    dispatch_ids: tuple[bytes, ...]


class ProgressRead(Struct, frozen=True, kw_only=True, gc=False):
    """One a dispatch_id, in order; None: not finished, or gone below a floor. ``offset`` is the first it was claimed at."""

    op: int
    progress: tuple[Progress | None, ...]


class RaiseFloor(Struct, frozen=True, kw_only=True, gc=False):
    """§3.4: floor[source partition] = max(floor, f); drops at most ``limit`` claims with source offset < f. Answers: FloorRaised."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    source_partition: int
    floor: int
    limit: int


class FloorRaised(Struct, frozen=True, kw_only=True, gc=False):
    """``more``: claims below the floor remain, ask again."""

    op: int
    more: bool


class MailboxRead(Struct, frozen=True, array_like=True, gc=False):
    """One read: rows of a user with after < seq <= min(up_to, W[lane]); up_to 0 means W. ``days`` are candidate day keys."""

    tenant_id: str
    user_id: int
    lane: int
    after: int
    up_to: int
    limit: int


class ReadMailboxes(Struct, frozen=True, kw_only=True, gc=False):
    """§3.3: trim, W and rows of each read, one script. Answers: MailboxesRead. Not fenced, bound to the incarnation."""

    op: int
    shard: int
    incarnation: bytes
    reads: tuple[MailboxRead, ...]


class MailboxRows(Struct, frozen=True, array_like=True, gc=False):
    """Encoded entries ascending by seq (none when after < trim); ``more``: the limit cut the reading."""

    watermark: int
    trim: int
    entries: tuple[bytes, ...]
    more: bool


class MailboxesRead(Struct, frozen=True, kw_only=True, gc=False):
    """One a read, in order."""

    op: int
    results: tuple[MailboxRows, ...]


class TrimMailbox(Struct, frozen=True, kw_only=True, gc=False):
    """§3.4: raise trim to ``to`` (never above min W) and drop the leading day range, ≤ ``limit`` keys a call. Answers: MailboxTrimmed."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    day: int
    to: int
    limit: int


class MailboxTrimmed(Struct, frozen=True, kw_only=True, gc=False):
    """``more``: keys of that day remain, ask again."""

    op: int
    trim: int
    more: bool


class EnterPresence(Struct, frozen=True, kw_only=True, gc=False):
    """§3.6: session_epoch = max(stored + 1, wall << 16), write, return the replaced. Answers: PresenceEntered.

    ``conn`` 0..2^53; expires_at = now_wall + ttl_ms.
    """

    op: int
    tenant_id: str
    user_id: int
    device_id: bytes
    gateway: str
    conn: int
    attempt: int
    now_wall: int
    ttl_ms: int
    traces: tuple[int, ...] = ()


class PresenceEntered(Struct, frozen=True, kw_only=True, gc=False):
    """``refused``: a live entry holds a higher attempt; nothing written. ``replaced``: the entry that stood before, if any."""

    op: int
    refused: bool
    session_epoch: int
    replaced: PresenceEntry | None


class PresenceHold(Struct, frozen=True, array_like=True, gc=False):
    """An entry its holder keeps alive."""

    tenant_id: str
    user_id: int
    device_id: bytes
    conn: int
    session_epoch: int
    attempt: int


class RefreshPresence(Struct, frozen=True, kw_only=True, gc=False):
    """Write each if the stored session_epoch is absent, lower or its own. Answers: PresenceRefreshed."""

    op: int
    gateway: str
    now_wall: int
    ttl_ms: int
    holds: tuple[PresenceHold, ...]


class PresenceRefreshed(Struct, frozen=True, kw_only=True, gc=False):
    """``lost``: indexes where a higher session_epoch stands: close those connections with KICKED(REPLACED)."""

    op: int
    lost: tuple[int, ...]


class LeavePresence(Struct, frozen=True, kw_only=True, gc=False):
    """Remove the entry only if it still holds this session_epoch. Answers: PresenceLeft."""

    op: int
    tenant_id: str
    user_id: int
    device_id: bytes
    session_epoch: int


class PresenceLeft(Struct, frozen=True, kw_only=True, gc=False):
    """Removed, or a newer one stands untouched."""

    op: int


class ReadPresence(Struct, frozen=True, kw_only=True, gc=False):
    """Live entries of (tenant, user) pairs by ``now_wall``. Answers: PresenceRead."""

    op: int
    now_wall: int
    users: tuple[tuple[str, int], ...]


class PresenceRead(Struct, frozen=True, kw_only=True, gc=False):
    """Entries a user, in order, sorted by device."""

    op: int
    entries: tuple[tuple[PresenceEntry, ...], ...]


class ReadShardState(Struct, frozen=True, kw_only=True, gc=False):
    """Unfenced look at W and trim of a shard (auditor, operator). Answers: ShardStateRead."""

    op: int
    shard: int


class ShardStateRead(Struct, frozen=True, kw_only=True, gc=False):
    """``base`` -1: the shard has no state. min_watermark over all lanes.

    Of a shard whose epoch was raised, as (source partition, offset): below ``redo`` fanout had nothing to dispatch again;
    what lies below ``settled`` was materialised under an earlier epoch, and its receipt alone covers (pipeline.md §§7, 8).
    """

    op: int
    incarnation: bytes
    base: int
    min_watermark: int
    trim: int
    redo: tuple[tuple[int, int], ...] = ()
    settled: tuple[tuple[int, int], ...] = ()


MailboxStoreRequest = (
    OpenMailbox
    | ClaimDispatches
    | AppendEntries
    | FinishDispatches
    | ReadProgress
    | RaiseFloor
    | ReadMailboxes
    | TrimMailbox
    | EnterPresence
    | RefreshPresence
    | LeavePresence
    | ReadPresence
    | ReadShardState
)
MailboxStoreReply = (
    MailboxOpened
    | Claimed
    | EntriesAppended
    | Trimmed
    | DispatchesFinished
    | ProgressRead
    | FloorRaised
    | MailboxesRead
    | MailboxTrimmed
    | PresenceEntered
    | PresenceRefreshed
    | PresenceLeft
    | PresenceRead
    | ShardStateRead
)
