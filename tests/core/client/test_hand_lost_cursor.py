"""The client in hand, on a disk that kept messages and anchors but not the cursor that stood for them (pipeline.md §6)."""

import pytest

from qim.core.client.vocabulary import ClientState
from qim.core.contract.frames import Auth, PullHistory, PullMailbox, SyncComplete
from qim.core.ports.local_store import LocalState, SaveState
from qim.core.ports.sockets import Dialed
from tests.core.client.hand import SEQ, Hand, auth_ok
from tests.core.client.said import GROUP, batch, entry, history, record, state
from tests.core.client.toy_local_store import ToyLocalStore


def unmoored() -> ToyLocalStore:
    """Everything of a device that stood at entry 3, but its cursor."""
    hand = Hand()
    hand.syncing(sync_to_seq=SEQ + 3, has_offline=True)
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 3, *(entry(number) for number in (1, 2, 3))), request=request)
    store = hand.store
    assert store.anchors == {GROUP: 3}
    store.cursor, store.covered = None, 0
    return store


def kept(store: ToyLocalStore) -> int:
    return store.state


def test_it_rebuilds_and_lacks_nothing_that_stands_before_the_read_back_position() -> None:
    store = unmoored()
    hand = Hand(store)
    assert kept(store) == LocalState.REBUILDING
    hand.dialing().step(Dialed(conn=hand.conn))
    ((auth, request),) = hand.said(Auth)
    assert auth.cursor is None
    # Entries 4 and 5 were trimmed meanwhile: the read-back position is behind them.
    hand.hear(auth_ok(sync_to_seq=SEQ + 6, cursor=b"c5", has_offline=True), request=request)
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 6, entry(6)), request=request)
    assert store.anchors == {GROUP: 3}, "the batch does not jump over what is missing"
    assert hand.said(SyncComplete)
    ((page, request),) = hand.said(PullHistory)
    assert (page.conversation_id, page.anchor) == (GROUP, 3)
    hand.hear(history(record(4), record(5), record(6)), request=request)
    assert kept(store) == LocalState.ONLINE
    assert sorted(one.conversation_seq for one in store.messages.values()) == [1, 2, 3, 4, 5, 6]


def test_no_auth_before_the_state_is_on_disk() -> None:
    store = unmoored()
    store.fail_next += [SaveState]
    hand = Hand(store)
    assert kept(store) == LocalState.ONLINE
    hand.dialing().step(Dialed(conn=hand.conn))
    assert not hand.said(Auth)
    hand.advance(1_000)
    assert kept(store) == LocalState.REBUILDING
    assert len(hand.said(Auth)) == 1


@pytest.mark.parametrize("cursor", [b"c0", None])
def test_a_device_that_was_given_nothing_yet_is_a_new_one(cursor: bytes | None) -> None:
    store = ToyLocalStore()
    store.cursor, store.covered = cursor, SEQ if cursor else 0
    hand = Hand(store)
    assert kept(store) == LocalState.ONLINE
    hand.online()
    assert state(hand) is ClientState.ONLINE
    assert not hand.said(PullHistory)


def test_a_rebuild_under_way_is_not_begun_again() -> None:
    store = unmoored()
    store.state, store.target = LocalState.REBUILDING, SEQ + 2
    Hand(store)
    assert store.target == SEQ + 2
