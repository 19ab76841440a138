"""Rows and messages by number, for tests of the device's store."""

from qim.core.ports.local_store import (
    Coordinates,
    LocalMessage,
    PendingGroupChange,
    PendingMessage,
)


def id16(kind: int, number: int) -> bytes:
    return kind.to_bytes(8, "big") + number.to_bytes(8, "big")


def message(number: int, *, conversation: int = 1, seq: int | None = None) -> LocalMessage:
    return LocalMessage(
        message_id=id16(1, number),
        conversation_id=id16(2, conversation),
        conversation_kind=1,
        conversation_seq=number if seq is None else seq,
        last_activity_id=id16(3, number),
        kind=1,
        sender_id=(1 << 64) - 1,
        client_message_id=None,
        custom_type="",
        body=bytes(range(256)),
        tombstone=0,
        sent_at=1_700_000_000_000,
        peer_user_id=0,
        trace_id=(1 << 64) - 1,
    )


def pending(number: int) -> PendingMessage:
    return PendingMessage(
        order=number,
        client_message_id=id16(4, number),
        conversation_id=None,
        peer_user_id=2,
        kind=1,
        custom_type="",
        body=b"\0\xff",
        retention_class=0,
        created_at=1,
    )


def change(number: int) -> PendingGroupChange:
    return PendingGroupChange(
        order=number,
        client_message_id=id16(4, number),
        operation=1,
        conversation_id=None,
        members=(2, 3, (1 << 64) - 1),
        name="n",
        meta=b"\0",
        created_at=1,
    )


def coordinates(number: int) -> Coordinates:
    return Coordinates(
        client_message_id=id16(4, number),
        message_id=id16(1, number),
        conversation_id=id16(2, 1),
        conversation_seq=number,
        last_activity_id=id16(3, number),
        sent_at=7,
    )
