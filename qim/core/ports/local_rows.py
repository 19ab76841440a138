"""What a device keeps: its messages, its pending rows, and what it knows of each conversation (pipeline.md §6).

Rows of ports/local_store.py, which says how they are written. Times are wall ms; nothing here interprets a body.
"""

from enum import IntEnum

from msgspec import Struct

from qim.core.contract.entities import EMPTY_ID


class LocalState(IntEnum):
    """What survives a restart: REBUILDING holds until the rebuild is done (pipeline.md §6, REBUILD)."""

    ONLINE = 1
    REBUILDING = 2


class LocalMessage(Struct, frozen=True, kw_only=True, gc=False):
    """A message as the device keeps it. body None: a tombstone. conversation_kind 0, peer_user_id 0: not told."""

    message_id: bytes
    conversation_id: bytes
    conversation_kind: int
    conversation_seq: int
    last_activity_id: bytes
    kind: int
    sender_id: int
    client_message_id: bytes | None
    custom_type: str
    body: bytes | None
    tombstone: int
    sent_at: int
    peer_user_id: int
    trace_id: int


class Coordinates(Struct, frozen=True, kw_only=True, gc=False):
    """Where a sent message stands, from SEND_ACK, from the own mailbox entry, or from history."""

    client_message_id: bytes
    message_id: bytes
    conversation_id: bytes
    conversation_seq: int
    last_activity_id: bytes
    sent_at: int


class PendingMessage(Struct, frozen=True, kw_only=True, gc=False):
    """A message the user sent: durable before it is transmitted. not_after 0: never transmitted yet.

    ``order`` rises with every row of the device: rows of one conversation go out in it.
    """

    order: int
    client_message_id: bytes
    conversation_id: bytes | None
    peer_user_id: int | None
    kind: int
    custom_type: str
    body: bytes
    retention_class: int
    created_at: int
    not_after: int = 0


class PendingGroupChange(Struct, frozen=True, kw_only=True, gc=False):
    """A membership change the user asked for (MembershipOp); conversation_id None for CREATE."""

    order: int
    client_message_id: bytes
    operation: int
    conversation_id: bytes | None
    members: tuple[int, ...]
    name: str
    meta: bytes
    created_at: int
    not_after: int = 0


class PendingOverlay(Struct, frozen=True, kw_only=True, gc=False):
    """A RECALL or DELETE_FOR_ME (MessageKind) of the message at ``target_seq``."""

    order: int
    client_message_id: bytes
    kind: int
    conversation_id: bytes
    target_seq: int
    created_at: int
    not_after: int = 0


PendingRow = PendingMessage | PendingGroupChange | PendingOverlay


class LocalConversation(Struct, frozen=True, kw_only=True, gc=False):
    """What the device knows of a conversation beside its messages.

    peers: users named by its single-chat messages or by the list (the other side is among them). last_activity_id: of
    the newest row known, here or in the list. head: the list's preview (its message need not be here). anchor: the
    greatest seq up to which nothing is missing, for a rebuild. floor: every record with a greater seq that could count as
    unread is here (None: not known). read_sent: the mark the server is known to have. state_sent: (version, device_id) of
    ``flags`` and ``value`` stands at the server. doubtful: the list counted otherwise, so the page is to be read again.
    """

    conversation_id: bytes
    conversation_kind: int = 0
    peers: tuple[int, ...] = ()
    last_activity_id: bytes = EMPTY_ID
    head: LocalMessage | None = None
    anchor: int = 0
    floor: int | None = None
    read_seq: int = 0
    read_sent: int = 0
    version: int = 0
    device_id: bytes = b""
    flags: int = 0
    value: bytes = b""
    state_sent: bool = True
    doubtful: bool = False
