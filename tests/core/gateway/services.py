"""What services answer a gate that is ONLINE, and how a test takes the questions they are asked."""

from typing import Any

from qim.core.contract.entities import (
    ConversationKind,
    MessageKind,
    MessageRecord,
    encode_record,
    stored_record,
)
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.rpc import AskPull, PullAnswer, SendDone, SubmitSend
from qim.core.contract.rpc_session import AskSessionList, SessionListAnswer, SessionRow
from tests.core.gateway.gate import MAILBOX_SEQ, Gate, key

GROUP = bytes(15) + b"\x77"


def sent(ask: SubmitSend, **more: Any) -> SendDone:
    fields: dict[str, Any] = {
        "rid": ask.rid,
        "client_message_id": ask.client_message_id,
        "message_id": key(1000),
        "conversation_id": single_conversation_id("default", 1, 2),
        "conversation_seq": 3,
        "last_activity_id": key(1000),
        "sent_at": 5,
    }
    return SendDone(**(fields | more))


def pulled(ask: AskPull, **more: Any) -> PullAnswer:
    fields: dict[str, Any] = {
        "rid": ask.rid,
        "entries": (),
        "covered_through_seq": MAILBOX_SEQ,
        "has_more": False,
        "cursor": b"next",
        "retry_after_ms": 0,
    }
    return PullAnswer(**(fields | more))


def stored(seq: int, body: bytes = b"hello", sender: int = 2, custom_type: str = "") -> bytes:
    record = MessageRecord(
        tenant_id="default",
        conversation_id=GROUP,
        conversation_kind=ConversationKind.GROUP,
        kind=MessageKind.TEXT,
        sender_id=sender,
        device_id=b"phone",
        client_message_id=key(seq),
        request_digest=bytes(16),
        message_id=key(seq),
        version=1,
        membership_digest=bytes(16),
        peer_user_id=0,
        recipients=(),
        delta=None,
        body=body,
        custom_type=custom_type,
        retention_class=0,
        sent_at=7,
        not_after=9,
        trace_id=3,
    )
    return stored_record(seq, key(seq), encode_record(record))


def row(number: int, **more: Any) -> SessionRow:
    fields: dict[str, Any] = {
        "conversation_id": key(number),
        "conversation_kind": ConversationKind.GROUP,
        "peer_user_id": 0,
        "last_activity_id": key(number),
        "head": stored(number),
        "unread": 3,
        "unread_exact": True,
        "read_seq": 2,
        "state_version": 5,
        "state_flags": 1,
        "state_value": b"v",
    }
    return SessionRow(**(fields | more))


def listed(ask: AskSessionList, *rows: SessionRow, **more: Any) -> SessionListAnswer:
    fields: dict[str, Any] = {"revision": 9, "after": b"", "projected_through": 77, "badge": 4}
    return SessionListAnswer(rid=ask.rid, rows=rows, **(fields | more))


def online(**config: Any) -> Gate:
    gate = Gate(**config)
    gate.online(5)
    gate.effects.clear()
    return gate


def online_with_sessions(**config: Any) -> Gate:
    """Session owners stand too: a list can be asked for, and AUTH asks for the badge."""
    gate = online(**config)
    gate.sessions = True
    return gate


def asked(gate: Gate, kind: type) -> Any:
    gate.owners()
    (question,) = gate.asked(kind)
    return question
