"""What a server says of lists and states in the tests of the client in hand."""

from typing import Any

from qim.core.contract.frames import (
    PullSessionList,
    SessionEntry,
    SessionListBatch,
    StateBatch,
    StateSync,
)
from tests.core.client.hand import SEQ, Hand
from tests.core.client.said import GROUP, key, record
from tests.core.client.toy_local_store import ToyLocalStore

WINDOW = 200


def by_hand(store: ToyLocalStore | None = None, **config: Any) -> Hand:
    """ONLINE; lists and states are answered by the test alone."""
    hand = Hand(store, **config)
    hand.lists = False
    return hand.online()


def listed(number: int, **more: Any) -> SessionEntry:
    fields: dict[str, Any] = {
        "conversation_id": key(number),
        "conversation_kind": 2,
        "peer_user_id": None,
        "last_activity_id": key(number),
        "head": record(number, sender_id=2),
        "unread": 1,
        "unread_exact": True,
        "read_seq": 0,
    }
    return SessionEntry(**(fields | more))


def page(*entries: SessionEntry, **more: Any) -> SessionListBatch:
    fields: dict[str, Any] = {"revision": 7, "after": None, "projected_through": SEQ}
    return SessionListBatch(conversations=entries, **(fields | more))


def read_on(hand: Hand) -> tuple[PullSessionList, int]:
    ((frame, request),) = hand.said(PullSessionList)
    return frame, request


def no_states(hand: Hand, revision: int = 0) -> None:
    for _, request in hand.said(StateSync):
        hand.hear(StateBatch(states=(), revision=revision, has_more=False), request=request)


def unread(hand: Hand, conversation_id: bytes = GROUP) -> tuple[int, bool]:
    return hand.store.rows.unread(conversation_id, 1, WINDOW)
