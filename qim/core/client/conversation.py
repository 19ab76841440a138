"""What becomes of a LocalConversation, and the one definition of unread on a device (pipeline.md §§4, 6). Pure functions.

Every local store (SQLite, the simulator's, the tests') applies exactly these. Read marks go forward only; a state is
ordered by (version, device_id); ``floor`` falls only where a page of history says that nothing is missing above it.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from qim.core.contract.entities import EMPTY_ID, MessageKind
from qim.core.contract.kinds import Tombstone
from qim.core.ports.local_rows import LocalConversation, LocalMessage
from qim.core.ports.local_sessions import ListedConversation, SyncedState, UnsentState

RECALLED: Final = 1
DELETED: Final = 2
GONE: Final = 4
"""Bits of a message's ``hidden``: recalled for all, deleted for this user, no more visible at the server (expired)."""
_OVERLAYS: Final = (MessageKind.RECALL, MessageKind.DELETE_FOR_ME)
_TARGET_BYTES: Final = 8


class CountedRow(Struct, frozen=True, array_like=True, gc=False):
    """What counting needs of a message."""

    sender_id: int
    kind: int
    hidden: int


def counts_as_unread(sender_id: int, kind: int, hidden: int, user_id: int) -> bool:
    """sender ≠ me, not control, not recalled, not deleted, no overlay record (§4)."""
    return sender_id != user_id and not hidden and kind in (MessageKind.TEXT, MessageKind.CUSTOM)


def unread_of(rows: Iterable[CountedRow], user_id: int, window: int) -> tuple[int, bool]:
    """(unread, exact) of rows above the read mark in rising seq, GONE ones left out by the caller.

    The first ``window`` + 1 decide: no more than ``window`` of them: the exact count; else ``window``, not exact.
    """
    count = 0
    for seen, row in enumerate(rows):
        if seen == window:
            return window, False
        count += counts_as_unread(row.sender_id, row.kind, row.hidden, user_id)
    return count, True


def is_preview(kind: int, hidden: int) -> bool:
    """May a message be a conversation's preview: neither recalled, deleted, expired nor an overlay record."""
    return not hidden and kind not in _OVERLAYS


def overlay_of(message: LocalMessage) -> tuple[int, int] | None:
    """(target seq, bit of ``hidden``) of an overlay record or of a tombstone, None for all other messages."""
    if message.tombstone == Tombstone.RECALLED:
        return message.conversation_seq, RECALLED
    if message.tombstone == Tombstone.EXPIRED:
        return message.conversation_seq, GONE
    if message.kind not in _OVERLAYS or len(message.body or b"") != _TARGET_BYTES:
        return None
    bit = RECALLED if message.kind == MessageKind.RECALL else DELETED
    return int.from_bytes(message.body or b"", "big"), bit


def without_body(message: LocalMessage) -> LocalMessage:
    """The tombstone that a recall leaves of a message."""
    return replace(message, body=None, custom_type="", tombstone=int(Tombstone.RECALLED))


def met(
    row: LocalConversation, messages: Iterable[LocalMessage], *, contiguous: bool, anchors: bool
) -> LocalConversation:
    """Messages of the conversation came. contiguous: by the mailbox, so none above the first is missing.

    An overlay does not raise the conversation in the list (§4).
    """
    peers, activity, anchor, floor = row.peers, row.last_activity_id, row.anchor, row.floor
    kind = row.conversation_kind
    for message in messages:
        kind = kind or message.conversation_kind
        if message.peer_user_id and not peers:
            peers = tuple(dict.fromkeys((message.sender_id, message.peer_user_id)))
        if message.kind not in _OVERLAYS:
            activity = max(activity, message.last_activity_id)
        if contiguous and floor is None:
            floor = message.conversation_seq - 1
        if anchors:
            anchor = max(anchor, message.conversation_seq)
    return replace(
        row,
        conversation_kind=kind,
        peers=peers,
        last_activity_id=activity,
        anchor=anchor,
        floor=floor,
    )


def begins_unfilled(row: LocalConversation, messages: Iterable[LocalMessage]) -> bool:
    """Is the first of these the conversation's first here, and may something unread stand below it: of a group that one
    was added to, of a chat that another device had. The row as ``met`` left it."""
    first = next((one for one in messages if one.conversation_id == row.conversation_id), None)
    begun = first is not None and row.floor == first.conversation_seq - 1
    return begun and is_unfilled(row)


def covered(
    row: LocalConversation, covers_from: int, covers_to: int, top: int
) -> LocalConversation:
    """A page of history told everything in (covers_from, covers_to]; ``top``: covers_to of a page without end."""
    if covers_from <= row.read_seq < covers_to:
        row = replace(row, doubtful=False)
    if covers_to <= covers_from or covers_to < (top if row.floor is None else row.floor):
        return row
    return replace(row, floor=covers_from if row.floor is None else min(row.floor, covers_from))


def listed(row: LocalConversation, entry: ListedConversation) -> LocalConversation:
    """An entry of the session list: it knows more than the device of everything but the read mark's newest move."""
    row = replace(
        row,
        conversation_kind=row.conversation_kind or entry.conversation_kind,
        peers=row.peers or ((entry.peer_user_id,) if entry.peer_user_id else ()),
        last_activity_id=max(row.last_activity_id, entry.last_activity_id),
        head=entry.head,
        read_seq=max(row.read_seq, entry.read_seq),
        read_sent=entry.read_seq,
    )
    if entry.version > row.version:
        row = replace(
            row, version=entry.version, flags=entry.flags, value=entry.value, state_sent=True
        )
    nothing_beyond = entry.head is None or entry.head.conversation_seq <= row.read_seq
    if nothing_beyond and entry.unread == 0 and entry.unread_exact:
        floor = row.read_seq if row.floor is None else min(row.floor, row.read_seq)
        row = replace(row, floor=floor)
    return row


def doubted(row: LocalConversation, entry: ListedConversation, unread: tuple[int, bool]) -> bool:
    """Does the device count otherwise than the list at the same mark, where both think they know."""
    if entry.read_seq != row.read_seq or row.floor is None or row.floor > row.read_seq:
        return False
    return unread != (entry.unread, entry.unread_exact)


def synced(row: LocalConversation, state: SyncedState) -> LocalConversation:
    """A state of STATE_BATCH."""
    row = replace(
        row,
        read_seq=max(row.read_seq, state.read_seq),
        read_sent=max(row.read_sent, state.read_seq),
    )
    theirs, ours = (state.version, state.device_id), (row.version, row.device_id)
    if state.version and theirs >= ours:
        row = replace(
            row,
            version=state.version,
            device_id=state.device_id,
            flags=state.flags,
            value=state.value,
            state_sent=True,
        )
    return row


def marked(row: LocalConversation, read_seq: int) -> LocalConversation:
    """The user read up to here."""
    return replace(row, read_seq=max(row.read_seq, read_seq))


def changed(
    row: LocalConversation, version: int, device_id: bytes, flags: int, value: bytes
) -> LocalConversation:
    """The user's own change, seeing what stands: it wins over it."""
    return replace(
        row,
        version=max(version, row.version + 1),
        device_id=device_id,
        flags=flags,
        value=value,
        state_sent=False,
    )


def sent(row: LocalConversation, read_seq: int, version: int) -> LocalConversation:
    """The server has the mark and the state, where these are not 0."""
    row = replace(row, read_sent=max(row.read_sent, read_seq))
    return replace(row, state_sent=True) if version and version == row.version else row


def unsent_of(row: LocalConversation) -> UnsentState | None:
    """What the server isn't known to have."""
    read_seq = row.read_seq if row.read_seq > row.read_sent else 0
    if not read_seq and row.state_sent:
        return None
    return UnsentState(
        conversation_id=row.conversation_id,
        read_seq=read_seq,
        version=0 if row.state_sent else row.version,
        flags=row.flags,
        value=row.value,
    )


def is_unfilled(row: LocalConversation) -> bool:
    """Can't the device count this conversation's unread yet."""
    if row.last_activity_id == EMPTY_ID:
        return False  # a mark or state before the first message: there is nothing to count
    return row.doubtful or row.floor is None or row.floor > row.read_seq
