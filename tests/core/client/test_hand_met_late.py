"""The client in hand: conversations that are met, or doubted, after the session list of this login was read."""

from qim.core.client.vocabulary import SessionsReady, SyncRequested
from qim.core.contract.entities import MessageKind
from qim.core.contract.frames import (
    HistoryBatch,
    MailboxEntry,
    PullHistory,
    PullMailbox,
    SessionEntry,
)
from tests.core.client.hand import SEQ, Hand
from tests.core.client.said import GROUP, batch, entry, key, record
from tests.core.client.said_of_sessions import by_hand, listed, no_states, page, read_on, unread

JOINED = 57


def ready(*entries: SessionEntry) -> Hand:
    """List, states and unread are here."""
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(*entries), request=request)
    for frame, asked in hand.said(PullHistory):
        records = (record(8, sender_id=2), record(9, sender_id=2))
        hand.hear(
            HistoryBatch(conversation_id=frame.conversation_id, records=records, has_more=False),
            request=asked,
        )
    no_states(hand)
    assert len(hand.told(SessionsReady)) == 1
    return hand


def pulled(hand: Hand, *entries: MailboxEntry) -> None:
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 100, *entries), request=request)
    no_states(hand)


def test_a_group_met_in_its_middle_is_counted_before_ready_is_said() -> None:
    """Added to a group that has spoken before: what stands below its first message here is asked for."""
    hand = ready()
    pulled(hand, entry(JOINED, seq=SEQ + 100))
    assert len(hand.told(SessionsReady)) == 1, "not yet again"
    ((asked, request),) = hand.said(PullHistory)
    assert (asked.conversation_id, asked.anchor) == (GROUP, 0)
    hand.hear(
        HistoryBatch(conversation_id=GROUP, records=(record(JOINED, sender_id=2),), has_more=False),
        request=request,
    )
    assert len(hand.told(SessionsReady)) == 2
    assert hand.store.rows.conversation(GROUP).floor == 0
    assert unread(hand) == (1, True)


def test_a_conversation_met_at_its_beginning_is_asked_for_nothing() -> None:
    hand = ready()
    pulled(hand, entry(1, seq=SEQ + 99), entry(2, seq=SEQ + 100))
    assert not hand.said(PullHistory)
    assert len(hand.told(SessionsReady)) == 2
    assert unread(hand) == (2, True)


def test_what_stays_unfilled_is_not_asked_for_with_each_message() -> None:
    """A server that says nothing of it is asked once more only where something new could make it answer."""
    hand = ready()
    pulled(hand, entry(JOINED, seq=SEQ + 100))
    ((_, request),) = hand.said(PullHistory)
    hand.hear(HistoryBatch(conversation_id=GROUP, records=(), has_more=True), request=request)
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 101, entry(JOINED + 1, seq=SEQ + 101)), request=request)
    no_states(hand)
    assert not hand.said(PullHistory)


def test_a_list_read_again_has_what_it_doubts_counted() -> None:
    """An overlay left nothing to show, the list is read again, and counts otherwise than the device."""
    hand = ready(listed(9, conversation_id=GROUP))
    recall = entry(
        10,
        seq=SEQ + 100,
        kind=MessageKind.RECALL,
        body=(9).to_bytes(8, "big"),
    )
    other = entry(11, seq=SEQ + 100, kind=MessageKind.RECALL, body=(8).to_bytes(8, "big"))
    pulled(hand, recall, other)
    _, request = read_on(hand)
    again = listed(9, conversation_id=GROUP, head=None, unread=3, last_activity_id=key(9))
    hand.hear(page(again, projected_through=SEQ + 100), request=request)
    no_states(hand)
    assert hand.store.rows.conversation(GROUP).doubtful
    ((asked, _),) = hand.said(PullHistory)
    assert asked.conversation_id == GROUP
