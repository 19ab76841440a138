"""The client in hand: a rebuild's stored state and its walk through history (pipeline.md §6, REBUILD)."""

from typing import Any

import pytest

from qim.core.client.vocabulary import (
    CaughtUp,
    ClientState,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    Auth,
    Error,
    HistoryBatch,
    OnlineReady,
    PullHistory,
    PullMailbox,
    SyncComplete,
)
from qim.core.ports.completion import Failed, FailReason
from qim.core.ports.local_store import LocalState, SaveHistory, SaveState
from qim.core.ports.sockets import Dialed
from tests.core.client.hand import SEQ, Hand, auth_ok
from tests.core.client.said import GROUP, batch, history, key, record, state
from tests.core.client.toy_local_store import ToyLocalStore


def rebuilding(**config: Any) -> Hand:
    """REBUILDING, online, the mailbox part done; one conversation with anchor 3."""
    store = ToyLocalStore()
    store.cursor, store.covered = b"c-old", SEQ - 50
    store.anchors = {GROUP: 3}
    hand = Hand(store, **config)
    request = hand.authenticating()
    hand.hear(Error(code=ErrorCode.CURSOR_EXPIRED, message=""), request=request)
    assert (store.state, store.cursor) == (LocalState.REBUILDING, None)
    hand.advance(1_000)
    request = hand.authenticating()
    hand.online_after(request)
    return hand


def cut_while_saving() -> tuple[Hand, SaveHistory]:
    """A rebuild whose connection is cut while a page of history is being stored; that order is not answered yet."""
    hand = rebuilding()
    ((_, request),) = hand.said(PullHistory)
    hand.serve = False
    hand.hear(history(record(4)), request=request)
    (save,) = [o for o in hand.orders if isinstance(o, SaveHistory)]
    hand.orders.clear()
    hand.hang_up()
    return hand, save


def test_history_part_of_the_rebuild() -> None:
    hand = rebuilding()
    ((page, request),) = hand.said(PullHistory)
    assert (page.anchor, page.direction) == (3, 1)
    hand.hear(history(record(4), record(5), has_more=True), request=request)
    assert hand.store.anchors == {GROUP: 5}
    ((page, request),) = hand.said(PullHistory)
    assert page.anchor == 5
    hand.hear(Error(code=ErrorCode.UNAVAILABLE, message=""), request=request)
    hand.advance(1_000)
    ((page, request),) = hand.said(PullHistory)
    hand.store.fail_next += [SaveHistory]
    hand.hear(history(record(6)), request=request)
    hand.advance(2_000)
    ((page, request),) = hand.said(PullHistory)
    assert page.anchor == 5
    hand.hear(history(record(6)), request=request)
    assert hand.store.state is LocalState.ONLINE
    assert hand.store.anchors == {GROUP: 6}
    assert len(hand.told(CaughtUp)) == 1


def test_nobody_is_told_that_all_is_here_while_history_is_to_come() -> None:
    hand = rebuilding()
    assert not hand.told(CaughtUp)
    ((_, request),) = hand.said(PullHistory)
    hand.hear(history(), request=request)
    assert len(hand.told(CaughtUp)) == 1


@pytest.mark.parametrize("code", [ErrorCode.NOT_MEMBER, ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN])
def test_a_conversation_that_is_not_ours_any_more_is_passed_over(code: ErrorCode) -> None:
    hand = rebuilding()
    ((_, request),) = hand.said(PullHistory)
    hand.hear(Error(code=code, message=""), request=request)
    assert hand.store.state is LocalState.ONLINE


def test_anchors_are_read_page_by_page_and_failures_retried() -> None:
    from qim.core.ports.local_store import ReadAnchors

    store = ToyLocalStore()
    store.state = LocalState.REBUILDING
    store.target = SEQ
    store.anchors = {key(n): n for n in range(1, 6)}
    store.fail_next += [ReadAnchors]
    hand = Hand(store, anchors_page=2)
    hand.online()
    seen = []
    for _ in range(40):
        hand.advance(500)
        for page, request in hand.said(PullHistory):
            seen.append(page.conversation_id)
            hand.hear(
                HistoryBatch(conversation_id=page.conversation_id, records=(), has_more=True),
                request=request,
            )
    assert seen == [key(n) for n in range(1, 6)]
    assert store.state is LocalState.ONLINE


def test_a_page_from_before_the_cut_moves_nothing_on() -> None:
    hand, save = cut_while_saving()
    hand.serve = True
    hand.step(hand.store.serve(save))
    assert hand.store.state is LocalState.REBUILDING
    assert hand.store.anchors == {GROUP: 4}


def test_the_state_of_a_rebuild_is_stored_before_anything_else() -> None:
    store = ToyLocalStore()
    store.cursor, store.covered = b"c-old", SEQ - 50
    hand = Hand(store)
    request = hand.authenticating()
    store.fail_next += [SaveState]
    hand.hear(Error(code=ErrorCode.CURSOR_REBASED, message=""), request=request)
    hand.advance(300)
    hand.step(Dialed(conn=hand.conn))
    assert not hand.said(Auth)
    hand.advance(200)
    ((auth, _),) = hand.said(Auth)
    assert auth.cursor is None
    assert store.state is LocalState.REBUILDING


def test_a_rebuild_whose_target_is_overtaken_saves_the_newest() -> None:
    """An older order that failed is not repeated over a newer one."""
    store = ToyLocalStore()
    store.state = LocalState.REBUILDING
    hand = Hand(store, serve=False)
    hand.serve_one()
    hand.dialing()
    hand.serve_one()
    request = hand.authenticating()
    hand.hear(auth_ok(), request=request)
    (target,) = [o for o in hand.orders if isinstance(o, SaveState)]
    assert (target.rebuild_target, target.drop_cursor) == (SEQ, False)
    hand.orders.clear()
    hand.serve = True
    ((_, pull),) = hand.said(PullMailbox)
    hand.hear(batch(SEQ), request=pull)
    ((_, ready),) = hand.said(SyncComplete)
    hand.hear(OnlineReady(watermark=SEQ), request=ready)
    assert store.state is LocalState.ONLINE
    hand.step(Failed(op=target.op, why=FailReason.UNREACHABLE))
    hand.advance(1_000)
    assert store.state is LocalState.ONLINE


def test_a_rebuild_that_is_cut_does_not_run_after_what_came_since() -> None:
    """The first connection's sync_to_seq is what it must reach: on a busy lane the next one's would never be."""
    hand = rebuilding()
    assert hand.store.target == SEQ
    hand.hang_up()
    hand.advance(1_000)
    hand.syncing(sync_to_seq=SEQ + 100)
    assert (hand.store.state, hand.store.target) == (LocalState.REBUILDING, SEQ)


def test_unwanted_pages_that_can_not_be_stored_change_nothing() -> None:
    hand, save = cut_while_saving()
    hand.step(Failed(op=save.op, why=FailReason.UNREACHABLE))
    assert state(hand) is ClientState.WAITING
