"""Bodies by message_id: the dispatch's inline one, else the hot store's, else a tombstone that retention explains (§3.3).

Only what was found is kept; a miss is never cached. One read a distinct message is in flight, however many wait for it.
"""

import msgspec
from msgspec import Struct

from qim.core.contract import ids
from qim.core.contract.entities import (
    EMPTY_ID,
    GroupDispatch,
    MessageKind,
    MessageRecord,
    UserMailboxEntry,
    decode_stored_record,
)
from qim.core.contract.kinds import Tombstone
from qim.core.contract.rpc import PulledEntry
from qim.core.retention import FOREVER_MS, RetentionPolicy, retained_until

OVERHEAD_BYTES = 256
"""What a kept body costs beside its bytes."""
_EXPIRING = (MessageKind.TEXT, MessageKind.CUSTOM)
"""Membership and overlays outlive retention in a mailbox: what they speak of may be kept longer than they are."""


class Body(Struct, frozen=True, gc=False):
    """What a mailbox entry lacks to be delivered."""

    conversation_kind: int
    last_activity_id: bytes
    custom_type: str
    body: bytes | None
    sent_at: int
    peer_user_id: int
    trace_id: int
    tombstone: int = Tombstone.NONE
    kept_until: int = FOREVER_MS
    """Wall ms from which on retention hides it, wherever it still stands."""

    def size(self) -> int:
        """Bytes it counts in a cache or a batch."""
        return OVERHEAD_BYTES + (len(self.body) if self.body is not None else 0)


def body_of_dispatch(dispatch: GroupDispatch, retention: RetentionPolicy) -> Body:
    """Its ``body`` is None where the dispatch carries none inline."""
    return Body(
        conversation_kind=dispatch.conversation_kind,
        last_activity_id=dispatch.last_activity_id,
        custom_type=dispatch.custom_type,
        body=dispatch.inline_body,
        sent_at=dispatch.sent_at,
        peer_user_id=dispatch.peer_user_id,
        trace_id=dispatch.trace_id,
        kept_until=_kept_until(dispatch, retention),
    )


def body_of_record(record: MessageRecord, retention: RetentionPolicy) -> Body:
    """From the hot store or the archive."""
    return Body(
        conversation_kind=record.conversation_kind,
        last_activity_id=record.last_activity_id,
        custom_type=record.custom_type,
        body=record.body,
        sent_at=record.sent_at,
        peer_user_id=record.peer_user_id,
        trace_id=record.trace_id,
        kept_until=_kept_until(record, retention),
    )


def _kept_until(message: GroupDispatch | MessageRecord, retention: RetentionPolicy) -> int:
    if message.kind not in _EXPIRING:
        return FOREVER_MS
    return retained_until(retention, message.tenant_id, message.retention_class, message.sent_at)


def expired_body(entry: UserMailboxEntry) -> Body:
    """The tombstone of a message that retention took; sent_at is the instant in its message_id."""
    return Body(
        conversation_kind=0,
        last_activity_id=EMPTY_ID,
        custom_type="",
        body=None,
        sent_at=ids.unpack_message_id(entry.message_id).physical_ms,
        peer_user_id=0,
        trace_id=0,
        tombstone=Tombstone.EXPIRED,
    )


def recalled_body(entry: UserMailboxEntry) -> Body:
    """The tombstone of a message that was recalled: its body is not even read."""
    return msgspec.structs.replace(expired_body(entry), tombstone=Tombstone.RECALLED)


def read_body(stored: bytes, entry: UserMailboxEntry, retention: RetentionPolicy) -> Body | None:
    """The body under an entry's name; None where the bytes are another message's or nobody's."""
    try:
        record = decode_stored_record(stored)
    except msgspec.DecodeError:
        return None
    named = (
        record.message_id == entry.message_id
        and record.conversation_id == entry.conversation_id
        and record.conversation_seq == entry.conversation_seq
        and record.sender_id == entry.sender_id
        and record.kind == entry.kind
    )
    return body_of_record(record, retention) if named else None


def joined(
    body: Body,
    *,
    mailbox_seq: int,
    event_id: bytes,
    message_id: bytes,
    conversation_id: bytes,
    conversation_seq: int,
    kind: int,
    sender_id: int,
    client_message_id: bytes | None,
) -> PulledEntry:
    """An entry with its body, as pull and push deliver it."""
    return PulledEntry(
        mailbox_seq=mailbox_seq,
        event_id=event_id,
        message_id=message_id,
        conversation_id=conversation_id,
        conversation_kind=body.conversation_kind,
        conversation_seq=conversation_seq,
        last_activity_id=body.last_activity_id,
        kind=kind,
        sender_id=sender_id,
        client_message_id=client_message_id,
        custom_type=body.custom_type,
        body=body.body,
        tombstone=body.tombstone,
        sent_at=body.sent_at,
        peer_user_id=body.peer_user_id,
        trace_id=body.trace_id,
    )


def joined_entry(entry: UserMailboxEntry, body: Body) -> PulledEntry:
    """A stored entry with its body."""
    return joined(
        body,
        mailbox_seq=entry.mailbox_seq,
        event_id=entry.event_id,
        message_id=entry.message_id,
        conversation_id=entry.conversation_id,
        conversation_seq=entry.conversation_seq,
        kind=entry.kind,
        sender_id=entry.sender_id,
        client_message_id=entry.client_message_id,
    )


class BodyCache:
    """Found bodies, the longest unused dropped first, bounded by ``bytes_max``."""

    __slots__ = ("_bytes", "_bytes_max", "_changed", "_kept")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[bytes, Body] = {}
        self._changed = False

    def held(self) -> int:
        """Bytes in it."""
        return self._bytes

    def find(self, message_id: bytes) -> Body | None:
        """The kept body, made the last to be dropped."""
        found = self._kept.pop(message_id, None)
        if found is not None:
            self._kept[message_id] = found
        return found

    def keep(self, message_id: bytes, body: Body) -> None:
        """Keep a body that was really found."""
        assert body.body is not None, "a miss is never cached"
        self._changed = True
        old = self._kept.pop(message_id, None)
        self._bytes += body.size() - (old.size() if old is not None else 0)
        self._kept[message_id] = body
        while self._bytes > self._bytes_max and self._kept:
            oldest = next(iter(self._kept))
            self._bytes -= self._kept.pop(oldest).size()

    def clear(self) -> None:
        """It came from another incarnation."""
        self._kept.clear()
        self._bytes = 0
        self._changed = True

    def check(self) -> None:
        """The bytes are counted and bounded; counted again only after a change, since a cache holds many."""
        if self._changed:
            self._changed = False
            assert self._bytes == sum([body.size() for body in self._kept.values()])
            assert self._bytes <= self._bytes_max


def name_of(entry: UserMailboxEntry) -> tuple[bytes, int, bytes]:
    """How ReadBodies names a message."""
    return entry.conversation_id, entry.conversation_seq, entry.message_id
