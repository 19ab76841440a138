"""What servers say in the tests of the client in hand, and how a client gets to a state."""

from collections.abc import Callable
from typing import Any

from qim.core.client.vocabulary import (
    ClientState,
    StateChanged,
)
from qim.core.contract.frames import (
    HistoryBatch,
    HistoryRecord,
    MailboxBatch,
    MailboxEntry,
    SendAck,
)
from tests.core.client.hand import SEQ, WALL, Hand

GROUP = bytes(15) + b"\x55"


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def entry(number: int, seq: int | None = None, **more: Any) -> MailboxEntry:
    fields: dict[str, Any] = {
        "mailbox_seq": seq or SEQ + number,
        "event_id": key(number),
        "message_id": key(number),
        "conversation_id": GROUP,
        "conversation_seq": number,
        "last_activity_id": key(number),
        "kind": 1,
        "sender_id": 2,
        "custom_type": "",
        "body": b"%d" % number,
        "sent_at": 1,
        "trace_id": number,
    }
    return MailboxEntry(**(fields | more))


def batch(covered: int, *entries: MailboxEntry, **more: Any) -> MailboxBatch:
    fields: dict[str, Any] = {"has_more": False, "cursor": b"c%d" % covered}
    return MailboxBatch(entries=entries, covered_through_seq=covered, **(fields | more))


def history(*records: HistoryRecord, has_more: bool = False) -> HistoryBatch:
    return HistoryBatch(conversation_id=GROUP, records=records, has_more=has_more)


def record(number: int, **more: Any) -> HistoryRecord:
    fields: dict[str, Any] = {
        "message_id": key(number),
        "conversation_seq": number,
        "last_activity_id": key(number),
        "kind": 1,
        "sender_id": 1,
        "custom_type": "",
        "body": b"b",
        "sent_at": WALL,
        "trace_id": 1,
    }
    return HistoryRecord(**(fields | more))


def ack(number: int) -> SendAck:
    return SendAck(
        client_message_id=key(number),
        message_id=key(100 + number),
        conversation_id=GROUP,
        conversation_seq=number,
        last_activity_id=key(100 + number),
        sent_at=1,
    )


def state(hand: Hand) -> ClientState:
    changes = hand.told(StateChanged)
    return ClientState(changes[-1].state) if changes else ClientState.OFFLINE


REACH: dict[ClientState, Callable[[Hand], Any]] = {
    ClientState.OFFLINE: lambda hand: None,
    ClientState.DIALING: Hand.dialing,
    ClientState.AUTHENTICATING: Hand.authenticating,
    ClientState.SYNCING: Hand.syncing,
    ClientState.ONLINE: Hand.online,
}


def hand_in(wanted: ClientState) -> Hand:
    hand = Hand()
    REACH[wanted](hand)
    assert state(hand) is wanted
    return hand
