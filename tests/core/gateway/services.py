"""What services answer a gate that is ONLINE, and how a test takes the questions they are asked."""

from typing import Any

from qim.core.contract.ids import single_conversation_id
from qim.core.contract.rpc import AskPull, PullAnswer, SendDone, SubmitSend
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


def online(**config: Any) -> Gate:
    gate = Gate(**config)
    gate.online(5)
    gate.effects.clear()
    return gate


def asked(gate: Gate, kind: type) -> Any:
    gate.owners()
    (question,) = gate.asked(kind)
    return question
