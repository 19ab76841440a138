"""What is read of conversations in the MESSAGE store (ports/store_message.py): hot history, membership, versions, bodies.

The writer's reads are fenced and bound to an incarnation; versions and bodies are named by their content, and anybody's.
"""

from msgspec import Struct

from qim.core.contract.entities import MemberHistoryRow, MembershipVersion


class HistoryItem(Struct, frozen=True, kw_only=True, gc=False):
    """Hot rows of a conversation with low < seq < high (exclusive both), pending ones left out; ``limit`` 0: none of them.

    ``user_id``: whose intervals and delete-for-me overlays are answered (0: nobody's). ``judged``: seqs whose overlays are
    asked besides those of the rows (rows that come from the archive).
    """

    conversation_id: bytes
    low: int
    high: int
    newest_first: bool
    limit: int
    user_id: int = 0
    judged: tuple[int, ...] = ()


class ReadHistory(Struct, frozen=True, kw_only=True, gc=False):
    """What the hot store shows of some conversations, ONE script. Answers: HistoryRead.

    Rows are cut at ``bytes_max`` over all items, but the first row found is always given; a page that was cut says ``more``.
    """

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    items: tuple[HistoryItem, ...]
    bytes_max: int = 1 << 30


class HistoryPage(Struct, frozen=True, kw_only=True, gc=False):
    """``stored`` rows >= ``floor`` in the asked order; ``more`` of them stand beyond; floor F: the archive has all below it.

    ``kind`` 0: no such conversation. ``users``: a single chat's two. ``intervals`` of the asked user, () if never a member.
    ``recalled``/``deleted``: seqs among the rows and the judged ones under a recall, under the user's delete-for-me.
    """

    stored: tuple[bytes, ...]
    more: bool
    floor: int
    kind: int
    users: tuple[int, int] | None
    creator: int
    intervals: tuple[tuple[int, int], ...]
    recalled: tuple[int, ...]
    deleted: tuple[int, ...]


class HistoryRead(Struct, frozen=True, kw_only=True, gc=False):
    """One page an item, in order."""

    op: int
    pages: tuple[HistoryPage, ...]


class ReadMembership(Struct, frozen=True, kw_only=True, gc=False):
    """The conversation's latest version. Answers: MembershipRead. Fenced and incarnation-bound (the writer's read)."""

    op: int
    shard: int
    epoch: int
    incarnation: bytes
    conversation_id: bytes


class MembershipRead(Struct, frozen=True, kw_only=True, gc=False):
    """``kind`` 0: no such conversation. ``everyone``: all who ever were members with their intervals (history rights)."""

    op: int
    kind: int
    version: MembershipVersion | None
    everyone: tuple[MemberHistoryRow, ...]
    creator: int
    name: str
    meta: bytes


class ReadVersions(Struct, frozen=True, kw_only=True, gc=False):
    """Exact, immutable versions by (shard, conversation_id, version, digest); content-addressed. Answers: VersionsRead."""

    op: int
    names: tuple[tuple[int, bytes, int, bytes], ...]


class VersionsRead(Struct, frozen=True, kw_only=True, gc=False):
    """One a name; None: not in this store or with another digest (NotYet, pipeline.md §2). ``applied`` of each name's shard."""

    op: int
    versions: tuple[MembershipVersion | None, ...]
    applied: tuple[int, ...]


class ReadBodies(Struct, frozen=True, kw_only=True, gc=False):
    """Stored records by (conversation_id, seq, message_id); content-addressed. Answers: BodiesRead."""

    op: int
    names: tuple[tuple[bytes, int, bytes], ...]


class BodiesRead(Struct, frozen=True, kw_only=True, gc=False):
    """One a name; None: not hot (any more)."""

    op: int
    stored: tuple[bytes | None, ...]
