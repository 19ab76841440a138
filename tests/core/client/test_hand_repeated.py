"""The client in hand: a cmid that another device committed is submitted here, and its copy comes before its row is stored."""

import pytest

from qim.core.client.vocabulary import (
    ClientState,
    SendQueued,
    SendRefused,
    SendSettled,
    SyncRequested,
)
from qim.core.contract.frames import PullMailbox, SendMessage
from qim.core.ports.completion import Failed, FailReason, Unknown
from qim.core.ports.local_store import SaveBatch, SavePending
from tests.core.client.hand import SEQ, Hand
from tests.core.client.said import batch, entry, hand_in, key


def met_by_its_copy() -> Hand:
    """The row's order is out; behind it that of the batch with its copy."""
    hand = hand_in(ClientState.ONLINE)
    hand.serve = False
    hand.send(1)
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 1, entry(1, sender_id=1, client_message_id=key(1))), request=request)
    assert isinstance(hand.orders[0], SavePending)
    assert key(1) in [one.client_message_id for one in hand.orders[-1].messages]
    return hand


def to_be_stored_again_with_its_copy() -> Hand:
    """Nobody knows whether the row was stored, and its copy is being stored."""
    hand = hand_in(ClientState.ONLINE)
    hand.serve = False
    hand.send(1)
    hand.step(Unknown(op=hand.orders.pop(0).op))
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 1, entry(1, sender_id=1, client_message_id=key(1))), request=request)
    return hand


def settled_once(hand: Hand) -> None:
    hand.serve = True
    while hand.orders:
        hand.serve_one()
    hand.advance(60_000)
    (told,) = hand.told(SendSettled)
    assert told.client_message_id == key(1)
    assert told.coordinates.message_id == key(1)
    assert not hand.said(SendMessage), "it is committed: a second one could be another message"
    assert not hand.told(SendRefused)


def test_the_batch_settles_a_row_that_was_still_being_stored() -> None:
    hand = met_by_its_copy()
    hand.serve_one()
    assert [n.client_message_id for n in hand.told(SendQueued)] == [key(1)]
    settled_once(hand)


@pytest.mark.parametrize("surely", [True, False])
def test_a_row_that_is_not_stored_is_settled_by_its_copy(surely: bool) -> None:
    hand = met_by_its_copy()
    op = hand.orders.pop(0).op
    hand.step(Failed(op=op, why=FailReason.UNREACHABLE) if surely else Unknown(op=op))
    settled_once(hand)


def test_a_row_to_be_stored_once_more_is_not_when_its_copy_settled_it() -> None:
    hand = to_be_stored_again_with_its_copy()
    settled_once(hand)


@pytest.mark.parametrize("surely", [True, False])
def test_a_row_that_neither_its_order_nor_its_copy_stored_is_stored_before_it_is_sent(
    surely: bool,
) -> None:
    """Sent without being kept, a restart would know nothing of it."""
    hand = met_by_its_copy()
    for order in [one for one in hand.orders if isinstance(one, SavePending | SaveBatch)]:
        hand.orders.remove(order)
        op = order.op
        hand.step(Failed(op=op, why=FailReason.UNREACHABLE) if surely else Unknown(op=op))
    hand.advance(5_000)
    assert not hand.said(SendMessage), "not before it is kept"
    (again,) = [order for order in hand.orders if isinstance(order, SavePending)]
    assert again.row.client_message_id == key(1)
    assert not hand.told(SendQueued)
    hand.orders.remove(again)
    hand.step(hand.store.serve(again))
    assert [n.client_message_id for n in hand.told(SendQueued)] == [key(1)]
    assert list(hand.store.pending) == [key(1)]


def test_a_row_to_be_stored_once_more_waits_for_a_copy_that_fails() -> None:
    hand = to_be_stored_again_with_its_copy()
    hand.advance(1_000)
    assert not any(isinstance(order, SavePending) for order in hand.orders)
    (copying,) = [order for order in hand.orders if isinstance(order, SaveBatch)]
    hand.orders.remove(copying)
    hand.step(Unknown(op=copying.op))
    hand.advance(5_000)
    assert not hand.said(SendMessage), "not before it is kept"
    assert len([order for order in hand.orders if isinstance(order, SavePending)]) == 1


def test_what_is_submitted_again_is_stored_once_though_the_first_was_to_be_repeated() -> None:
    """The first row's copy settled it; its repeat is not the second one's."""
    hand = to_be_stored_again_with_its_copy()
    while hand.orders:
        hand.serve_one()
    assert len(hand.told(SendSettled)) == 1
    hand.send(1)
    hand.advance(1_000)
    assert len([order for order in hand.orders if isinstance(order, SavePending)]) == 1
    hand.serve = True
    while hand.orders:
        hand.serve_one()
    hand.advance(1_000)
    assert len(hand.told(SendQueued)) == 1
