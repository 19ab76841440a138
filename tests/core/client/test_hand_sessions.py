"""The client in hand: session list, states, unread, and what a rebuild needs of them."""

import pytest

from qim.core.client.vocabulary import (
    ClientState,
    DevicesTold,
    QueryFailed,
    ReadByArrived,
    ReadByRequested,
    SessionsReady,
    SyncRequested,
)
from qim.core.contract.entities import MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    ConversationState,
    DeviceDelivered,
    Error,
    HistoryBatch,
    PullHistory,
    PullMailbox,
    PullSessionList,
    ReadBy,
    StateBatch,
    StateSync,
)
from qim.core.contract.kinds import Tombstone
from qim.core.ports.local_sessions import ReadUnfilled, SaveSessions
from qim.core.ports.local_store import LocalState
from tests.core.client.hand import SEQ, WALL, Hand
from tests.core.client.said import GROUP, batch, entry, history, key, record, state
from tests.core.client.said_of_sessions import (
    WINDOW,
    by_hand,
    listed,
    no_states,
    page,
    read_on,
    unread,
)
from tests.core.client.toy_local_store import ToyLocalStore

# ---------------------------------------------------------------- list


def test_the_list_is_pulled_once_page_by_page_under_one_revision() -> None:
    hand = by_hand()
    frame, request = read_on(hand)
    assert (frame.revision, frame.after) == (0, None)
    done = {"read_seq": 5, "unread": 0}
    hand.hear(page(listed(5, **done), listed(4, **done), after=b"k"), request=request)
    frame, request = read_on(hand)
    assert (frame.revision, frame.after) == (7, b"k")
    hand.hear(page(listed(3, **done), projected_through=SEQ + 3), request=request)
    assert not hand.said(PullSessionList)
    no_states(hand)
    (ready,) = hand.told(SessionsReady)
    assert ready.projected_through == SEQ + 3
    assert sorted(hand.store.rows.conversations) == [key(3), key(4), key(5)]
    hand.hang_up()
    hand.advance(1_000)
    hand.online_after(hand.authenticating())
    assert not hand.said(PullSessionList), "once a login"
    no_states(hand)
    assert len(hand.told(SessionsReady)) == 2


def test_a_lost_snapshot_begins_again() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(after=b"k"), request=request)
    _, request = read_on(hand)
    hand.hear(Error(code=ErrorCode.NOT_FOUND, message=""), request=request)
    assert not hand.said(PullSessionList), "after a pause"
    hand.advance(1_000)
    frame, _ = read_on(hand)
    assert (frame.revision, frame.after) == (0, None)


def test_a_list_cut_off_begins_again_on_the_next_connection() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(after=b"k"), request=request)
    hand.said(PullSessionList)
    hand.hang_up()
    hand.advance(1_000)
    hand.online_after(hand.authenticating())
    frame, _ = read_on(hand)
    assert (frame.revision, frame.after) == (0, None)


def test_a_page_that_is_not_stored_is_pulled_again() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.store.fail_next += [SaveSessions]
    hand.hear(page(listed(5)), request=request)
    assert not hand.store.rows.conversations
    hand.advance(1_000)
    _, request = read_on(hand)
    hand.hear(page(listed(5)), request=request)
    assert list(hand.store.rows.conversations) == [key(5)]


def test_a_server_without_lists_is_asked_once() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(Error(code=ErrorCode.UNSUPPORTED, message=""), request=request)
    ((_, request),) = hand.said(StateSync)
    hand.hear(Error(code=ErrorCode.UNSUPPORTED, message=""), request=request)
    assert len(hand.told(SessionsReady)) == 1
    hand.advance(29_000)
    assert not hand.said(PullSessionList)
    assert not hand.said(StateSync)


# ---------------------------------------------------------------- unread


def test_what_unread_needs_is_read_from_the_mark_on() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(listed(9, conversation_id=GROUP, read_seq=3, unread=2)), request=request)
    ((frame, request),) = hand.said(PullHistory)
    assert (frame.conversation_id, frame.anchor, frame.direction) == (GROUP, 3, 1)
    assert frame.limit == WINDOW + 1
    no_states(hand)
    assert not hand.told(SessionsReady), "unread is a lower bound until then"
    hand.hear(history(record(4, sender_id=2), record(5), record(9, sender_id=2)), request=request)
    no_states(hand)
    assert unread(hand) == (2, True), "the own one does not count"
    assert len(hand.told(SessionsReady)) == 1
    assert hand.store.rows.conversation(GROUP).floor == 3


def test_a_conversation_read_to_its_end_needs_nothing() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(listed(9, read_seq=9, unread=0)), request=request)
    assert not hand.said(PullHistory)
    no_states(hand)
    assert len(hand.told(SessionsReady)) == 1


def test_a_page_cut_short_is_read_on() -> None:
    """The gateway cuts at its bytes: what the window needs is read all the same."""
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(listed(9, conversation_id=GROUP)), request=request)
    ((_, request),) = hand.said(PullHistory)
    hand.hear(
        history(record(1, sender_id=2), record(2, sender_id=2), has_more=True), request=request
    )
    ((frame, request),) = hand.said(PullHistory)
    assert (frame.anchor, frame.limit) == (2, WINDOW - 1)
    hand.hear(history(record(3, sender_id=2)), request=request)
    assert unread(hand) == (3, True)


def test_a_full_window_ends_the_reading() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(
        page(listed(900, conversation_id=GROUP, unread=200, unread_exact=False)), request=request
    )
    ((_, request),) = hand.said(PullHistory)
    many = tuple(record(n, sender_id=2) for n in range(1, WINDOW + 2))
    hand.hear(history(*many, has_more=True), request=request)
    assert not hand.said(PullHistory)
    assert unread(hand) == (WINDOW, False)


@pytest.mark.parametrize("count", [0, 1, WINDOW - 1, WINDOW, WINDOW + 1])
def test_unread_at_the_edges_of_the_window(count: int) -> None:
    hand = Hand().online()
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 999, *(entry(n) for n in range(1, count + 1))), request=request)
    assert unread(hand) == ((count, True) if count <= WINDOW else (WINDOW, False))


def test_what_counts_and_what_does_not() -> None:
    hand = Hand().online()
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(
        batch(
            SEQ + 99,
            entry(1),
            entry(2, sender_id=1),
            entry(3, kind=MessageKind.CONTROL),
            entry(4),
            entry(5, kind=MessageKind.RECALL, body=(4).to_bytes(8, "big")),
            entry(6, kind=MessageKind.CUSTOM),
            entry(7),
            entry(8, kind=MessageKind.DELETE_FOR_ME, sender_id=1, body=(7).to_bytes(8, "big")),
            entry(9, body=None, tombstone=Tombstone.EXPIRED),
        ),
        request=request,
    )
    assert unread(hand) == (2, True), "1 and 6"
    preview = hand.store.rows.preview(GROUP)
    assert preview is not None
    assert preview.conversation_seq == 6


def test_another_count_than_the_lists_is_looked_into() -> None:
    """What expired at the server stands here still: the page shows what is left, and the rest counts no more."""
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(), request=request)
    no_states(hand)
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    old = {"sent_at": WALL - 10**6}
    hand.hear(batch(SEQ + 9, entry(1, **old), entry(2, **old), entry(3, **old)), request=request)
    no_states(hand)
    assert unread(hand) == (3, True)
    again = by_hand(hand.store)
    _, request = read_on(again)
    again.hear(page(listed(3, conversation_id=GROUP, unread=1)), request=request)
    ((_, request),) = again.said(PullHistory)
    again.hear(history(record(3, sender_id=2, **old)), request=request)
    assert unread(again) == (1, True)
    assert not again.store.rows.conversation(GROUP).doubtful
    assert len(again.store.messages) == 3, "nothing local is deleted"


def test_a_mark_from_elsewhere_below_what_is_here_fills_the_hole() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(), request=request)
    no_states(hand)
    hand.step(SyncRequested())
    ((_, request),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ + 9, entry(5)), request=request)
    ((_, request),) = hand.said(StateSync)
    told = ConversationState(conversation_id=GROUP, version=0, device_id=b"\0", read_seq=2, flags=0)
    hand.hear(StateBatch(states=(told,), revision=4, has_more=False), request=request)
    ((frame, request),) = hand.said(PullHistory)
    assert frame.anchor == 2
    hand.hear(history(record(3, sender_id=2), record(5, sender_id=2)), request=request)
    assert unread(hand) == (2, True)


def test_where_the_own_devices_are_is_told_and_not_kept() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(), request=request)
    ((_, request),) = hand.said(StateSync)
    devices = (
        DeviceDelivered(device_id=b"desk", delivered_through=SEQ + 1),
        DeviceDelivered(device_id=b"\xff", delivered_through=SEQ),
    )
    hand.hear(StateBatch(states=(), revision=0, has_more=False, devices=devices), request=request)
    assert [notice.devices for notice in hand.told(DevicesTold)] == [
        ((b"desk", SEQ + 1), (b"\xff", SEQ))
    ]


# ---------------------------------------------------------------- readers, rebuild


def test_readers() -> None:
    hand = Hand().online()
    hand.step(ReadByRequested(ticket=4, conversation_id=GROUP, conversation_seq=3))
    ((frame, request),) = hand.said(ReadBy)
    assert (frame.conversation_id, frame.conversation_seq, frame.users) == (GROUP, 3, ())
    hand.hear(
        ReadBy(conversation_id=GROUP, conversation_seq=3, users=(2, 3), has_more=True),
        request=request,
    )
    (told,) = hand.told(ReadByArrived)
    assert (told.ticket, told.users, told.has_more) == (4, (2, 3), True)
    hand.step(ReadByRequested(ticket=5, conversation_id=GROUP, conversation_seq=3))
    hand.hang_up()
    assert [failed.ticket for failed in hand.told(QueryFailed)] == [5]


def rebuilding() -> Hand:
    store = ToyLocalStore()
    store.cursor, store.covered = b"c-old", SEQ - 50
    store.anchors = {GROUP: 3}
    hand = Hand(store)
    hand.lists = False
    request = hand.authenticating()
    hand.hear(Error(code=ErrorCode.CURSOR_EXPIRED, message=""), request=request)
    hand.advance(1_000)
    hand.online_after(hand.authenticating())
    return hand


def test_a_rebuild_waits_for_a_list_that_knows_enough() -> None:
    hand = rebuilding()
    _, request = read_on(hand)
    assert not hand.said(PullHistory)
    hand.hear(page(projected_through=SEQ - 1), request=request)
    assert hand.store.state is LocalState.REBUILDING
    hand.advance(1_000)
    _, request = read_on(hand)
    hand.hear(page(), request=request)
    ((frame, request),) = hand.said(PullHistory)
    assert frame.anchor == 3
    hand.hear(history(), request=request)
    assert hand.store.state is LocalState.ONLINE


def test_a_rebuild_reads_conversations_the_device_never_saw() -> None:
    hand = rebuilding()
    _, request = read_on(hand)
    hand.hear(page(listed(9)), request=request)
    seen = []
    while asked := hand.said(PullHistory):
        ((frame, request),) = asked
        seen.append((frame.conversation_id, frame.anchor))
        found = (record(9, sender_id=2),) if frame.conversation_id == key(9) else ()
        hand.hear(
            HistoryBatch(conversation_id=frame.conversation_id, records=found, has_more=False),
            request=request,
        )
    assert seen == [(key(9), 0), (GROUP, 3)]
    assert hand.store.state is LocalState.ONLINE
    assert unread(hand, key(9)) == (1, True)
    assert hand.store.anchors == {GROUP: 3, key(9): 9}
    assert not hand.told(SessionsReady)
    no_states(hand)
    assert len(hand.told(SessionsReady)) == 1


def test_a_restart_goes_on_with_the_rebuild() -> None:
    hand = rebuilding()
    again = Hand(hand.store)
    again.lists = False
    again.online()
    assert again.store.state is LocalState.REBUILDING
    _, request = read_on(again)
    again.hear(page(), request=request)
    ((_, request),) = again.said(PullHistory)
    again.hear(history(record(4, sender_id=2)), request=request)
    assert again.store.state is LocalState.ONLINE
    assert state(again) is ClientState.ONLINE


def test_a_fill_whose_rows_can_not_be_read_is_tried_again() -> None:
    hand = by_hand()
    hand.store.fail_next += [ReadUnfilled]
    _, request = read_on(hand)
    hand.hear(page(listed(9)), request=request)
    no_states(hand)
    hand.advance(2_000)
    assert len(hand.said(PullHistory)) == 1
