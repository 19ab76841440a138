"""The client in hand: recalls and deletions, its own and those that come (pipeline.md §§5, 6)."""

import pytest

from qim.core.client.vocabulary import (
    HistoryRequested,
    OverlayRequested,
    SendRefused,
    SendSettled,
    SyncRequested,
)
from qim.core.contract.entities import MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    DeleteForMe,
    Error,
    PullHistory,
    PullMailbox,
    Recall,
    SendAck,
)
from qim.core.contract.kinds import Tombstone
from tests.core.client.hand import SEQ, WALL, Hand
from tests.core.client.said import GROUP, batch, entry, history, key, record
from tests.core.client.said_of_sessions import (
    unread,
)


def overlay(number: int, target: int, kind: int = MessageKind.RECALL) -> OverlayRequested:
    return OverlayRequested(
        client_message_id=key(number),
        kind=kind,
        conversation_id=GROUP,
        target_seq=target,
        wall=WALL,
    )


def with_messages(count: int = 3) -> Hand:
    hand = Hand().online()
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 99, *(entry(n) for n in range(1, count + 1))), request=request)
    return hand


def bodies(hand: Hand) -> dict[int, bytes | None]:
    return {m.conversation_seq: m.body for m in hand.store.messages.values()}


@pytest.mark.parametrize(
    ("kind", "frame"), [(MessageKind.RECALL, Recall), (MessageKind.DELETE_FOR_ME, DeleteForMe)]
)
def test_overlays_are_pending_rows_like_sends(kind: int, frame: type) -> None:
    hand = with_messages()
    hand.step(overlay(50, 2, kind))
    ((said, request),) = hand.said(frame)
    assert (said.client_message_id, said.target_seq, said.conversation_id) == (key(50), 2, GROUP)
    assert said.not_after > WALL
    hand.hang_up()
    hand.advance(1_000)
    hand.online_after(hand.authenticating())
    ((again, request),) = hand.said(frame)
    assert again == said, "the same bytes"
    hand.hear(
        SendAck(
            client_message_id=key(50),
            message_id=key(150),
            conversation_id=GROUP,
            conversation_seq=9,
            last_activity_id=key(150),
            sent_at=1,
        ),
        request=request,
    )
    (settled,) = hand.told(SendSettled)
    assert settled.coordinates is not None
    assert unread(hand) == (2, True), "it lies as soon as it is acked"
    if kind == MessageKind.RECALL:
        assert bodies(hand)[2] is None


def test_a_recall_from_the_mailbox_takes_the_body() -> None:
    hand = with_messages()
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    recall = entry(4, SEQ + 100, kind=MessageKind.RECALL, body=(2).to_bytes(8, "big"))
    hand.hear(batch(SEQ + 100, recall), request=request)
    assert bodies(hand) == {1: b"1", 2: None, 3: b"3", 4: (2).to_bytes(8, "big")}


def test_a_recall_that_comes_first_waits_for_its_message() -> None:
    hand = Hand().online()
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    recall = entry(4, SEQ + 1, kind=MessageKind.RECALL, body=(2).to_bytes(8, "big"))
    hand.hear(batch(SEQ + 1, recall, entry(2, SEQ + 1)), request=request)
    assert bodies(hand)[2] is None


def test_a_tombstone_of_history_takes_the_body() -> None:
    hand = with_messages()
    hand.step(HistoryRequested(ticket=1, conversation_id=GROUP, anchor=0, direction=0))
    ((_, request),) = hand.said(PullHistory)
    gone = record(2, sender_id=2, body=None, tombstone=Tombstone.RECALLED)
    hand.hear(history(record(1, sender_id=2), gone), request=request)
    assert bodies(hand) == {1: b"1", 2: None, 3: b"3"}


def test_an_overlay_that_is_refused_lies_nowhere() -> None:
    hand = with_messages()
    hand.step(overlay(50, 2))
    ((_, request),) = hand.said(Recall)
    hand.hear(
        Error(code=ErrorCode.FORBIDDEN, message="", client_message_id=key(50)), request=request
    )
    (settled,) = hand.told(SendSettled)
    assert (settled.coordinates, settled.code) == (None, ErrorCode.FORBIDDEN)
    assert bodies(hand)[2] == b"2"


def test_an_overlay_of_another_kind_is_refused_at_once() -> None:
    hand = Hand().online()
    hand.step(overlay(50, 2, MessageKind.TEXT))
    (refused,) = hand.told(SendRefused)
    assert refused.code == ErrorCode.INVALID_ARGUMENT
