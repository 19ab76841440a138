"""Messages of two chats, and orders to a device's store that must not fail."""

from typing import Any

from msgspec.structs import replace

from qim.client.local_store import LocalStore
from qim.core.ports.completion import Failed
from qim.core.ports.local_store import (
    LocalMessage,
)
from tests.client.local_rows import id16, message

USER = 5
WINDOW = 3
CHATS = (id16(2, 1), id16(2, 2))


def run(store: LocalStore, request: Any) -> Any:
    (reply,) = store.execute([request])
    assert not isinstance(reply, Failed), request
    return reply


def said(seq: int, *, chat: int = 1, **more: Any) -> LocalMessage:
    one = message(chat * 1_000 + seq, conversation=chat, seq=seq)
    fields = {"sender_id": 7, "body": b"%d" % seq, "sent_at": seq, "peer_user_id": USER}
    return replace(one, last_activity_id=id16(3, seq), **(fields | more))
