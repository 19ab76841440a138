"""What a hook is sent: one JSON object, ids as lowercase hex, every u64 as a string, the body as base64."""

import base64
import json
from datetime import UTC, datetime
from typing import Any, Final

from qim.core.contract.entities import MessageRecord, decode_stored_record
from qim.core.ports.moderation import AskVerdict, NotifySent

BEFORE_SEND: Final = "message.before_send"
SENT: Final = "message.sent"


def question(ask: AskVerdict, wall_ms: int) -> tuple[str, bytes]:
    """(webhook-id, body). An ask that is repeated has the same id."""
    data = {
        "tenant_id": ask.tenant_id,
        "sender_id": str(ask.sender_id),
        "device_id": ask.device_id.hex(),
        "client_message_id": ask.client_message_id.hex(),
        "conversation_id": ask.conversation_id.hex(),
        "conversation_kind": ask.conversation_kind,
        "peer_user_id": str(ask.peer_user_id) if ask.peer_user_id else None,
        "kind": ask.kind,
        "custom_type": ask.custom_type,
        "body_base64": base64.b64encode(ask.body).decode(),
    }
    return f"ask_{ask.dedupe_key.hex()}", _event(BEFORE_SEND, data, wall_ms)


def notice(told: NotifySent, wall_ms: int) -> tuple[str, bytes]:
    """(webhook-id, body). A message that is told twice has the same id."""
    record: MessageRecord = decode_stored_record(told.stored)
    data = {
        "tenant_id": record.tenant_id,
        "sender_id": str(record.sender_id),
        "device_id": record.device_id.hex(),
        "client_message_id": record.client_message_id.hex(),
        "message_id": record.message_id.hex(),
        "conversation_id": record.conversation_id.hex(),
        "conversation_kind": record.conversation_kind,
        "conversation_seq": str(record.conversation_seq),
        "last_activity_id": record.last_activity_id.hex(),
        "membership_version": str(record.version) if record.version else None,
        "peer_user_id": str(record.peer_user_id) if record.peer_user_id else None,
        "kind": record.kind,
        "custom_type": record.custom_type,
        "body_base64": base64.b64encode(record.body).decode(),
        "sent_at": record.sent_at,
    }
    return f"msg_{record.message_id.hex()}", _event(SENT, data, wall_ms)


def _event(kind: str, data: dict[str, Any], wall_ms: int) -> bytes:
    moment = datetime.fromtimestamp(wall_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    event = {"type": kind, "timestamp": moment.replace("+00:00", "Z"), "data": data}
    return json.dumps(event, separators=(",", ":")).encode()
