"""The writer's read of hot history (pipeline.md §5), part of the MESSAGE store's vocabulary (ports/store_message.py)."""

from msgspec import Struct


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
