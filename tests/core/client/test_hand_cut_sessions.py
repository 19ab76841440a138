"""The client in hand: the connection goes while the local store still works on lists, states, marks or history."""

from typing import Any

import pytest

from qim.core.client.vocabulary import HistoryRequested, MarkReadRequested
from qim.core.contract.frames import (
    HistoryBatch,
    MarkRead,
    PullHistory,
    PullSessionList,
    StateBatch,
    StateSync,
)
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.sequences import U64_MAX
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local_sessions import ReadUnfilled, ReadUnsent, SaveSessions, SaveStates
from qim.core.ports.local_store import SaveHistory
from tests.core.client.hand import Hand
from tests.core.client.said import GROUP, record
from tests.core.client.said_of_sessions import by_hand, listed, page, read_on


def cut_with(hand: Hand, order: type) -> Any:
    """Cut the connection while this order is out; the order."""
    (found,) = [one for one in hand.orders if isinstance(one, order)]
    hand.orders.clear()
    hand.hang_up()
    hand.serve = True
    return found


def back_online(hand: Hand) -> None:
    hand.advance(1_000)
    hand.online_after(hand.authenticating())


@pytest.mark.parametrize("stored", [True, False])
def test_a_page_of_the_list(stored: bool) -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.serve = False
    hand.hear(page(listed(5), after=b"k"), request=request)
    save = cut_with(hand, SaveSessions)
    hand.step(hand.store.serve(save) if stored else Failed(op=save.op, why=FailReason.UNREACHABLE))
    assert len(hand.store.rows.conversations) == stored
    back_online(hand)
    frame, _ = read_on(hand)
    assert (frame.revision, frame.after) == (0, None), "the list begins again"


@pytest.mark.parametrize("stored", [True, False])
def test_states(stored: bool) -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(), request=request)
    ((_, request),) = hand.said(StateSync)
    hand.serve = False
    hand.hear(StateBatch(states=(), revision=7, has_more=False), request=request)
    save = cut_with(hand, SaveStates)
    hand.step(hand.store.serve(save) if stored else Failed(op=save.op, why=FailReason.UNREACHABLE))
    back_online(hand)
    ((frame, _),) = hand.said(StateSync)
    assert frame.since_revision == (7 if stored else 0)


def test_a_look_for_what_is_unsent() -> None:
    hand = Hand().online()
    hand.serve = False
    hand.step(MarkReadRequested(ticket=1, conversation_id=GROUP, read_seq=5))
    hand.serve_one()
    read = cut_with(hand, ReadUnsent)
    hand.step(hand.store.serve(read))
    assert not hand.said(MarkRead)
    back_online(hand)
    assert len(hand.said(MarkRead)) == 1


def test_a_look_for_what_is_unfilled() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(listed(9), after=b"k"), request=request)
    _, request = read_on(hand)
    hand.serve = False
    hand.hear(page(), request=request)
    while not [one for one in hand.orders if isinstance(one, ReadUnfilled)]:
        hand.serve_one()
    read = cut_with(hand, ReadUnfilled)
    back_online(hand)
    asked = hand.said(PullHistory)
    assert len(asked) == 1
    hand.step(hand.store.serve(read))
    assert not hand.said(PullHistory), "the walk of the earlier connection is over"


@pytest.mark.parametrize(
    ("anchor", "seqs", "older", "newer", "covers"),
    [
        (5, (4, 5, 6), True, True, (3, 6)),
        (5, (4, 5, 6), False, True, (0, 6)),
        (5, (4, 5, 6), True, False, (3, U64_MAX)),
        (5, (), False, False, (0, U64_MAX)),
    ],
)
def test_a_page_around_covers_both_its_sides(
    anchor: int, seqs: tuple[int, ...], older: bool, newer: bool, covers: tuple[int, int]
) -> None:
    hand = Hand().online()
    hand.step(
        HistoryRequested(
            ticket=1, conversation_id=GROUP, anchor=anchor, direction=HistoryDirection.AROUND
        )
    )
    ((_, request),) = hand.said(PullHistory)
    hand.serve = False
    hand.hear(
        HistoryBatch(
            conversation_id=GROUP,
            records=tuple(record(seq) for seq in seqs),
            has_more=older,
            has_more_newer=newer,
        ),
        request=request,
    )
    (save,) = [one for one in hand.orders if isinstance(one, SaveHistory)]
    assert (save.covers_from, save.covers_to) == covers


@pytest.mark.parametrize(
    ("direction", "anchor", "seqs", "more", "covers"),
    [
        (HistoryDirection.OLDER, 0, (4, 5), True, (3, U64_MAX)),
        (HistoryDirection.OLDER, 0, (), False, (0, U64_MAX)),
        (HistoryDirection.OLDER, 9, (4, 5), True, (3, 8)),
        (HistoryDirection.OLDER, 9, (4, 5), False, (0, 8)),
        (HistoryDirection.NEWER, 3, (4, 5), True, (3, 5)),
        (HistoryDirection.NEWER, 3, (4, 5), False, (3, U64_MAX)),
        (HistoryDirection.NEWER, 3, (), False, (3, U64_MAX)),
    ],
)
def test_what_a_page_covers(
    direction: int, anchor: int, seqs: tuple[int, ...], more: bool, covers: tuple[int, int]
) -> None:
    hand = Hand().online()
    hand.step(HistoryRequested(ticket=1, conversation_id=GROUP, anchor=anchor, direction=direction))
    ((_, request),) = hand.said(PullHistory)
    hand.serve = False
    records = tuple(record(seq) for seq in seqs)
    hand.hear(HistoryBatch(conversation_id=GROUP, records=records, has_more=more), request=request)
    (save,) = [one for one in hand.orders if isinstance(one, SaveHistory)]
    assert (save.covers_from, save.covers_to) == covers


def test_the_session_list_is_not_asked_for_before_the_first_sync() -> None:
    hand = Hand()
    hand.lists = False
    hand.syncing(sync_to_seq=(1 << 48) + 5, has_offline=True)
    assert not hand.said(PullSessionList)
