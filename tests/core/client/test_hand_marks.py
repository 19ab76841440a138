"""The client in hand: read marks and own states are kept, sent, settled, and follow the user (pipeline §4)."""

from typing import Any

import pytest

from qim.core.client.vocabulary import (
    MarkReadRequested,
    StateKept,
    StateRequested,
    StateSettled,
    SyncRequested,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    ConversationState,
    Error,
    MarkRead,
    Ok,
    PullMailbox,
    SetState,
    StateBatch,
    StateSync,
)
from qim.core.contract.kinds import StateFlag
from qim.core.ports.completion import Unknown
from qim.core.ports.local_sessions import (
    ReadUnsent,
    SaveRead,
    SaveStates,
    SaveStateSent,
    SaveUserState,
)
from tests.core.client.hand import SEQ, WALL, Hand
from tests.core.client.said import GROUP, batch, key
from tests.core.client.said_of_sessions import by_hand, listed, page, read_on
from tests.core.client.toy_local_store import ToyLocalStore


def mark(ticket: int, read_seq: int, conversation_id: bytes = GROUP) -> MarkReadRequested:
    return MarkReadRequested(ticket=ticket, conversation_id=conversation_id, read_seq=read_seq)


def test_a_mark_is_kept_then_sent_then_settled() -> None:
    hand = Hand().online()
    hand.step(mark(1, 5))
    assert [notice.ticket for notice in hand.told(StateKept)] == [1]
    ((frame, request),) = hand.said(MarkRead)
    assert (frame.conversation_id, frame.read_seq) == (GROUP, 5)
    assert not hand.told(StateSettled)
    hand.hear(Ok(), request=request)
    assert [(n.ticket, n.code) for n in hand.told(StateSettled)] == [(1, 0)]
    assert hand.store.rows.conversation(GROUP).read_sent == 5


def test_a_lower_mark_changes_nothing_and_is_settled() -> None:
    hand = Hand().online()
    hand.step(mark(1, 5))
    ((_, request),) = hand.said(MarkRead)
    hand.hear(Ok(), request=request)
    hand.step(mark(2, 3))
    assert not hand.said(MarkRead)
    assert [n.ticket for n in hand.told(StateSettled)] == [1, 2]
    assert hand.store.rows.conversation(GROUP).read_seq == 5


def test_a_mark_made_offline_goes_out_at_the_next_login() -> None:
    hand = Hand()
    hand.step(mark(1, 5))
    assert len(hand.told(StateKept)) == 1
    hand.online()
    ((frame, _),) = hand.said(MarkRead)
    assert frame.read_seq == 5


def test_a_mark_that_nobody_answered_is_sent_again() -> None:
    hand = Hand().online()
    hand.step(mark(1, 5))
    hand.said(MarkRead)
    hand.hang_up()
    hand.advance(1_000)
    hand.online_after(hand.authenticating())
    ((_, request),) = hand.said(MarkRead)
    hand.hear(Ok(), request=request)
    assert [n.code for n in hand.told(StateSettled)] == [0]


def test_a_mark_the_list_has_lower_is_filled_in() -> None:
    """MARK_READ back-filled: what an earlier life believed sent is sent again."""
    store = ToyLocalStore()
    first = Hand(store).online()
    first.step(mark(1, 9))
    ((_, request),) = first.said(MarkRead)
    first.hear(Ok(), request=request)
    hand = by_hand(store)
    _, request = read_on(hand)
    hand.hear(page(listed(9, conversation_id=GROUP, read_seq=4)), request=request)
    ((frame, _),) = hand.said(MarkRead)
    assert frame.read_seq == 9


@pytest.mark.parametrize(
    "code", [ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT_UNKNOWN, ErrorCode.RATE_LIMITED]
)
def test_a_refusal_of_the_moment_is_tried_again(code: ErrorCode) -> None:
    hand = Hand().online()
    hand.step(mark(1, 5))
    ((_, request),) = hand.said(MarkRead)
    hand.hear(Error(code=code, message="", retry_after_ms=400), request=request)
    hand.advance(399)
    assert not hand.said(MarkRead)
    hand.advance(600)
    assert len(hand.said(MarkRead)) == 1


def test_a_refusal_for_good_is_told_and_forgotten() -> None:
    hand = Hand().online()
    hand.step(mark(1, 5))
    ((_, request),) = hand.said(MarkRead)
    hand.hear(Error(code=ErrorCode.NOT_MEMBER, message=""), request=request)
    assert [(n.ticket, n.code) for n in hand.told(StateSettled)] == [(1, ErrorCode.NOT_MEMBER)]
    hand.hang_up()
    hand.advance(1_000)
    hand.online_after(hand.authenticating())
    assert not hand.said(MarkRead)


def test_a_greater_mark_made_meanwhile_goes_out_too() -> None:
    hand = Hand().online()
    hand.step(mark(1, 5))
    ((_, request),) = hand.said(MarkRead)
    hand.step(mark(2, 8))
    hand.hear(Ok(), request=request)
    assert [n.ticket for n in hand.told(StateSettled)] == [1]
    ((frame, request),) = hand.said(MarkRead)
    assert frame.read_seq == 8
    hand.hear(Ok(), request=request)
    assert [n.ticket for n in hand.told(StateSettled)] == [1, 2]


def test_many_marks_go_out_few_at_a_time() -> None:
    hand = Hand(marks_inflight_max=3).online()
    hand.step(*(mark(n, n, key(n)) for n in range(1, 11)))
    seen: list[int] = []
    while asked := hand.said(MarkRead):
        assert len(asked) <= 3
        for frame, request in asked:
            seen.append(frame.read_seq)
            hand.hear(Ok(), request=request)
    assert sorted(seen) == list(range(1, 11))
    assert sorted(n.ticket for n in hand.told(StateSettled)) == list(range(1, 11))


def test_states_get_versions_that_win_over_what_stands() -> None:
    hand = Hand().online()
    wall = WALL + hand.now
    change = StateRequested(
        ticket=1, conversation_id=GROUP, flags=StateFlag.PINNED, value=b"v", wall=wall
    )
    hand.step(change)
    ((frame, request),) = hand.said(SetState)
    assert (frame.version, frame.flags, frame.value) == (wall, StateFlag.PINNED, b"v")
    hand.hear(Ok(), request=request)
    hand.step(StateRequested(ticket=2, conversation_id=GROUP, flags=0, value=b"", wall=5))
    ((frame, request),) = hand.said(SetState)
    assert frame.version == wall + 1, "a clock that went back loses nothing"
    hand.hear(Ok(), request=request)
    assert [n.version for n in hand.told(StateKept)] == [wall, wall + 1]
    assert [n.ticket for n in hand.told(StateSettled)] == [1, 2]


def test_another_devices_state_is_taken_by_version_then_device() -> None:
    hand = by_hand()
    _, request = read_on(hand)
    hand.hear(page(), request=request)

    def heard(version: int, device: bytes, flags: int, revision: int) -> None:
        ((frame, request),) = hand.said(StateSync)
        assert frame.since_revision == revision - 1
        told = ConversationState(
            conversation_id=GROUP, version=version, device_id=device, read_seq=0, flags=flags
        )
        hand.hear(StateBatch(states=(told,), revision=revision, has_more=False), request=request)
        hand.step(SyncRequested())
        for _, pull in hand.said(PullMailbox):
            hand.hear(batch(SEQ), request=pull)

    def flags() -> int:
        return hand.store.rows.conversation(GROUP).flags

    heard(5, b"b", 1, 1)
    assert flags() == 1
    heard(4, b"z", 2, 2)
    assert flags() == 1
    heard(5, b"a", 4, 3)
    assert flags() == 1
    heard(5, b"c", 2, 4)
    assert flags() == 2
    assert hand.store.rows.state_revision == 4


def test_states_are_asked_for_page_by_page_and_now_and_then() -> None:
    hand = by_hand(state_sync_every_ms=20_000)
    _, request = read_on(hand)
    hand.hear(page(), request=request)
    ((_, request),) = hand.said(StateSync)
    hand.hear(StateBatch(states=(), revision=3, has_more=True), request=request)
    ((frame, request),) = hand.said(StateSync)
    assert frame.since_revision == 3
    hand.hear(Error(code=ErrorCode.UNAVAILABLE, message=""), request=request)
    hand.advance(1_000)
    ((_, request),) = hand.said(StateSync)
    hand.store.fail_next += [SaveStates]
    hand.hear(StateBatch(states=(), revision=4, has_more=False), request=request)
    hand.advance(1_000)
    ((frame, request),) = hand.said(StateSync)
    assert frame.since_revision == 3
    hand.hear(StateBatch(states=(), revision=4, has_more=False), request=request)
    hand.advance(19_999)
    assert not hand.said(StateSync)
    hand.advance(1)
    ((frame, _),) = hand.said(StateSync)
    assert frame.since_revision == 4


@pytest.mark.parametrize("order", [SaveRead, SaveUserState])
def test_what_can_not_be_kept_is_said(order: type) -> None:
    hand = Hand().online()
    hand.store.fail_next += [order]
    command: Any = mark(1, 5)
    if order is SaveUserState:
        command = StateRequested(ticket=1, conversation_id=GROUP, flags=1, value=b"", wall=1)
    hand.step(command)
    assert [(n.ticket, n.code) for n in hand.told(StateSettled)] == [(1, ErrorCode.UNAVAILABLE)]
    assert not hand.told(StateKept)


def test_what_may_be_kept_is_not_called_failed_and_goes_out_where_it_is() -> None:
    hand = Hand().online()
    hand.serve = False
    hand.step(mark(1, 5))
    (order,) = hand.orders
    hand.store.serve(hand.orders.pop())
    hand.serve = True
    hand.step(Unknown(op=order.op))
    assert [n.code for n in hand.told(StateSettled)] == [ErrorCode.TIMEOUT_UNKNOWN]
    ((frame, _),) = hand.said(MarkRead)
    assert frame.read_seq == 5


def test_failures_of_the_local_store_delay_a_mark_and_lose_nothing() -> None:
    hand = Hand().online()
    hand.store.fail_next += [ReadUnsent, SaveStateSent]
    hand.step(mark(1, 5))
    hand.advance(2_000)
    ((_, request),) = hand.said(MarkRead)
    hand.hear(Ok(), request=request)
    hand.advance(2_000)
    ((_, request),) = hand.said(MarkRead)
    hand.hear(Ok(), request=request)
    assert [n.code for n in hand.told(StateSettled)] == [0]


@pytest.mark.parametrize(
    "command",
    [
        mark(1, 1, bytes(16)),
        mark(1, 1, b"short"),
        mark(1, -1),
        mark(1, 1 << 64),
        StateRequested(ticket=1, conversation_id=GROUP, flags=-1, value=b"", wall=1),
        StateRequested(ticket=1, conversation_id=GROUP, flags=1 << 32, value=b"", wall=1),
        StateRequested(ticket=1, conversation_id=GROUP, flags=1, value=bytes(1025), wall=1),
    ],
    ids=range(7),
)
def test_bad_arguments_are_refused_at_once(command: Any) -> None:
    hand = Hand().online()
    hand.step(command)
    (settled,) = hand.told(StateSettled)
    assert settled.code == ErrorCode.INVALID_ARGUMENT
    assert not hand.store.rows.conversations


def test_tickets_are_bounded() -> None:
    hand = Hand(mark_tickets_max=2).online()
    hand.step(mark(1, 1), mark(2, 2), mark(3, 3))
    assert [(n.ticket, n.code) for n in hand.told(StateSettled)] == [(3, ErrorCode.QUOTA_EXCEEDED)]
