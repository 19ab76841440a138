"""Client and ConnectionNode back to back: a row the user sent is settled once, in order, whatever is lost."""

import pytest

from qim.core.client.vocabulary import (
    MessageApplied,
    SendQueued,
    SendRefused,
    SendSettled,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.rpc import (
    SendDone,
    SubmitSend,
)
from tests.core.client.toy_world import HOUR_MS, DropFirst, ToyWorld, pair


def test_calm_world_one_message() -> None:
    world, ann, bob = pair()
    key = ann.send(7, peer=2, body=b"hi bob")
    world.run()
    (settled,) = ann.told(SendSettled)
    assert settled.client_message_id == key
    assert settled.coordinates is not None
    assert settled.coordinates.conversation_id == single_conversation_id("default", 1, 2)
    assert bob.bodies() == [b"hi bob"]
    world.advance(2_000)
    assert ann.bodies() == [b"hi bob"]
    assert bob.store.covered == ann.store.covered == world.services.watermark
    assert len(bob.told(MessageApplied)) == 1


def test_queued_is_told_before_settled_and_only_when_durable() -> None:
    world, ann, _ = pair()
    ann.send(1, peer=2)
    world.run()
    kinds = [type(n) for n in ann.notices if isinstance(n, SendQueued | SendSettled)]
    assert kinds == [SendQueued, SendSettled]
    assert not ann.store.pending
    assert list(ann.store.sent) == [(1).to_bytes(16, "big")]


def test_ack_lost_with_the_connection_settles_by_the_own_copy() -> None:
    """BR-001: committed, the ack lost, the stream cut: found in the mailbox, never sent again."""
    world, ann, bob = pair()
    world.drop = DropFirst(1, SendDone)
    ann.send(1, peer=2, body=b"once")
    world.run()
    world.cut(ann)
    world.advance(60_000)
    assert ann.settled() == {(1).to_bytes(16, "big"): 0}
    sends = [q for q in world.services.asked if isinstance(q, SubmitSend)]
    assert len(sends) == 1, "what the first sync found must not be sent again"
    assert ann.bodies() == bob.bodies() == [b"once"]


def test_ack_lost_on_a_living_connection_is_asked_again_with_the_same_key() -> None:
    world, ann, _bob = pair()
    world.drop = DropFirst(1, SendDone)
    ann.send(1, peer=2, body=b"once")
    world.services.pushes = False  # the own copy comes late
    world.advance(120_000)
    sends = [q for q in world.services.asked if isinstance(q, SubmitSend)]
    assert len({(q.client_message_id, q.not_after) for q in sends}) == 1
    assert ann.settled() == {(1).to_bytes(16, "big"): 0}
    assert len(world.services.mailboxes[2]) == 1


def test_same_key_for_another_body_is_failed_with_its_code() -> None:
    world, ann, _ = pair()
    ann.send(1, peer=2, body=b"one")
    world.run()
    ann.send(1, peer=2, body=b"two")
    world.run()
    codes = [n.code for n in ann.told(SendSettled)]
    assert codes == [0, ErrorCode.IDEMPOTENCY_CONFLICT]


def test_same_key_while_the_first_is_pending_is_refused() -> None:
    world = ToyWorld()
    ann = world.client(1)
    ann.send(1, peer=2, body=b"one")
    ann.send(1, peer=2, body=b"two")
    world.run()
    (refused,) = ann.told(SendRefused)
    assert refused.code == ErrorCode.IDEMPOTENCY_CONFLICT


def test_order_of_sending_is_the_order_of_seqs_over_cuts_and_refusals() -> None:
    """BR-004: an unpaced burst, streams cut, some sends refused or lost: cseq order == order of sending."""
    world, ann, bob = pair()
    world.services.refuse(SubmitSend, *[ErrorCode.RATE_LIMITED, ErrorCode.UNAVAILABLE] * 5)
    for number in range(1, 101):
        ann.send(number, peer=2, body=b"%d" % number)
        if number % 20 == 0:
            world.run()
            world.drop = DropFirst(2, SubmitSend, SendDone)
            world.cut(ann)
    world.advance(HOUR_MS // 2)
    rows = world.services.records[single_conversation_id("default", 1, 2)]
    assert [row.body for row in rows] == [b"%d" % n for n in range(1, 101)]
    assert set(ann.settled().values()) == {0}
    assert len(ann.settled()) == 100
    assert sorted(bob.bodies(), key=lambda b: int(b or b"0")) == [b"%d" % n for n in range(1, 101)]


def test_a_wider_window_sends_faster_and_loses_nothing() -> None:
    world, ann, bob = pair(conversation_inflight_max=16)
    for number in range(1, 65):
        ann.send(number, peer=2, body=b"%d" % number)
    world.run()
    assert len(ann.settled()) == 64
    assert len(bob.store.messages) == 64


def test_rows_written_offline_survive_the_process_and_are_dated_when_first_sent() -> None:
    """BR-005: a queued row is pending until acked, also across a restart and a long time offline."""
    world = ToyWorld()
    ann = world.client(1)
    ann.send(1, peer=2, body=b"later")
    world.run()
    assert [row.not_after for row in ann.store.pending.values()] == [0]
    ann.crash()
    world.advance(5 * HOUR_MS)
    ann.start()
    ann.online()
    world.run()
    assert ann.settled() == {(1).to_bytes(16, "big"): 0}
    (send,) = [q for q in world.services.asked if isinstance(q, SubmitSend)]
    assert send.not_after == world.wall() + HOUR_MS


def test_not_after_stays_through_a_restart() -> None:
    world, ann, _ = pair()
    world.drop = DropFirst(1, SubmitSend)
    ann.send(1, peer=2)
    world.run()
    (before,) = ann.store.pending.values()
    assert before.not_after
    ann.crash()
    world.advance(1_000)
    ann.start()
    ann.online()
    world.advance(60_000)
    (send,) = [q for q in world.services.asked if isinstance(q, SubmitSend)]
    assert send.not_after == before.not_after


def test_expired_send_that_was_committed_is_found_in_history() -> None:
    """The ack lost, then away beyond not_after and beyond the server's dedupe: history says it was sent."""
    world, ann, bob = pair()
    world.drop = DropFirst(1, SendDone)
    ann.send(1, peer=2, body=b"once")
    world.run()
    for number in range(2, 203):
        bob.send(number, peer=1)
    world.run()
    world.cut(ann)
    ann.crash()
    world.services.committed.clear()
    world.services.trim = world.services.watermark  # its own mailbox copy is gone too
    world.advance(5 * HOUR_MS)
    ann.start()
    ann.online()
    world.advance(120_000)
    assert ann.settled() == {(1).to_bytes(16, "big"): 0}
    (coordinates,) = list(ann.store.sent.values())
    assert coordinates.conversation_seq == 1
    assert not ann.store.failed


@pytest.mark.parametrize("with_history", [True, False])
def test_expired_send_that_was_never_committed_is_failed(with_history: bool) -> None:
    world, ann, bob = pair()
    if with_history:
        bob.send(9, peer=1)
        world.run()
    world.drop = DropFirst(1, SubmitSend)
    ann.send(1, peer=2)
    world.run()
    ann.crash()
    world.advance(5 * HOUR_MS)
    ann.start()
    ann.online()
    world.advance(120_000)
    assert ann.settled() == {(1).to_bytes(16, "big"): ErrorCode.SEND_EXPIRED}
    assert list(ann.store.failed.values()) == [ErrorCode.SEND_EXPIRED]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_MEMBER, ErrorCode.FORBIDDEN, ErrorCode.INVALID_ARGUMENT]
)
def test_refusals_without_hope_fail_the_row(code: ErrorCode) -> None:
    world, ann, _ = pair()
    world.services.refuse(SubmitSend, code)
    ann.send(1, peer=2)
    world.run()
    assert ann.settled() == {(1).to_bytes(16, "big"): code}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.RATE_LIMITED,
        ErrorCode.UNAVAILABLE,
        ErrorCode.TIMEOUT_UNKNOWN,
        ErrorCode.MEMBERSHIP_CHANGED,
        ErrorCode.NOT_OWNER,
        ErrorCode.INTERNAL,
    ],
)
def test_refusals_with_hope_are_tried_again(code: ErrorCode) -> None:
    world, ann, _ = pair()
    world.services.refuse(SubmitSend, code)
    ann.send(1, peer=2)
    world.advance(30_000)
    assert ann.settled() == {(1).to_bytes(16, "big"): 0}


def test_a_row_no_server_would_take_is_refused_before_it_is_stored() -> None:
    world, ann, _ = pair()
    ann.send(1, peer=2, body=bytes(128 * 1024 + 1))
    ann.send(2, peer=2, custom_type="ö" * 40)
    ann.send(0, peer=2)
    ann.send(3, peer=None)
    ann.send(4, peer=1 << 70)
    ann.send(5, peer=2, custom_type="\ud800")
    world.run()
    assert [n.code for n in ann.told(SendRefused)] == [ErrorCode.INVALID_ARGUMENT] * 6
    assert not ann.store.pending
    ann.send(6, peer=2, body=bytes(128 * 1024))
    world.run()
    assert ann.settled() == {(6).to_bytes(16, "big"): 0}


def test_pending_is_bounded() -> None:
    world = ToyWorld()
    ann = world.client(1, pending_max=3)
    for number in range(1, 6):
        ann.send(number, peer=2)
    world.run()
    assert [n.code for n in ann.told(SendRefused)] == [ErrorCode.QUOTA_EXCEEDED] * 2
    assert len(ann.store.pending) == 3
