"""Rows to archive, made as the writer and the archiver make them."""

from typing import Any

from qim.core.contract.entities import (
    ConversationKind,
    MembershipDelta,
    MembershipOp,
    MessageKind,
    MessageRecord,
    encode_record,
    stored_record,
)
from qim.core.contract.hashing import H
from qim.core.ports.archive import ArchiveRow

CHAT = b"single-conversat"
GROUP = b"group-conversati"
WALL = 1_800_000_000_000
FOREVER = (1 << 63) - 1
ALWAYS = (1 << 64) - 1


def mid(number: int) -> bytes:
    """A message_id."""
    return number.to_bytes(16, "big")


def digest_of(version: int) -> bytes:
    """The digest of a group's version in these tests."""
    return H("test.version", version)


def message(seq: int, number: int | None = None, **other: Any) -> ArchiveRow:
    """A row of CHAT; ``number`` names the message (default: its seq), ``offset`` its place in the outbox."""
    number = seq if number is None else number
    offset: int = other.pop("offset", 1_000 + number)
    until: int = other.pop("retained_until", WALL)
    activity: bytes = other.pop("activity", mid(number))
    fields: dict[str, Any] = {
        "tenant_id": "default",
        "conversation_id": CHAT,
        "conversation_kind": ConversationKind.SINGLE,
        "kind": MessageKind.TEXT,
        "sender_id": 2,
        "device_id": b"d" * 16,
        "client_message_id": b"c" * 16,
        "request_digest": b"r" * 16,
        "message_id": mid(number),
        "version": 0,
        "membership_digest": b"",
        "peer_user_id": 1,
        "recipients": (),
        "delta": None,
        "body": b"body %d" % number,
        "custom_type": "",
        "retention_class": 0,
        "sent_at": WALL - 24 * 3_600_000,
        "not_after": WALL,
        "trace_id": number,
    } | other
    return ArchiveRow(
        conversation_id=fields["conversation_id"],
        conversation_seq=seq,
        message_id=fields["message_id"],
        outbox_offset=offset,
        retained_until=until,
        stored=stored_record(seq, activity, encode_record(MessageRecord(**fields))),
    )


def grouped(seq: int, number: int | None = None, **other: Any) -> ArchiveRow:
    """A row of GROUP."""
    fields: dict[str, Any] = {
        "conversation_id": GROUP,
        "conversation_kind": ConversationKind.GROUP,
        "peer_user_id": 0,
    }
    return message(seq, number, **fields | other)


def control(
    seq: int, version: int, operation: MembershipOp, users: tuple[int, ...], **other: Any
) -> ArchiveRow:
    """A membership control record of GROUP."""
    creating = operation == MembershipOp.CREATE
    delta = MembershipDelta(
        op=operation,
        users=users,
        previous_version=version - 1,
        version=version,
        digest=digest_of(version),
        count=0,
        name="name ü" if creating else "",
        meta=b"\x00meta" if creating else b"",
    )
    fields: dict[str, Any] = {"kind": MessageKind.CONTROL, "sender_id": 1, "delta": delta}
    return grouped(seq, **fields | other)
