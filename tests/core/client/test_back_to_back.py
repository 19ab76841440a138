"""Client and ConnectionNode back to back over real wire bytes: what a user must never lose, see twice or see moved."""

from typing import Any

import pytest

from qim.core.client.vocabulary import (
    CaughtUp,
    ClientState,
    GroupChangeRequested,
    GroupSettled,
    HistoryArrived,
    HistoryRequested,
    MembersArrived,
    MembersRequested,
    MessageApplied,
    OfflineWanted,
    OnlineWanted,
    QueryFailed,
    SendQueued,
    SendRefused,
    SendSettled,
    StateChanged,
    SyncRequested,
    TokenRenewed,
)
from qim.core.contract.entities import MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import HistoryDirection, KickReason
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.rpc import (
    AskPull,
    AskSync,
    PullAnswer,
    PushBatch,
    SendDone,
    SubmitSend,
    SyncAnswer,
    WatermarkAnswer,
)
from qim.core.ports.local_store import (
    LocalState,
    SaveAck,
    SaveAttempt,
    SaveBatch,
    SaveFailed,
    SaveNotAfter,
    SavePending,
    SavePush,
    SaveState,
)
from qim.core.ports.network import Received
from tests.core.client.toy_world import ToyClient, ToyWorld, token_for

HOUR_MS = 3_600_000


def pair(**client: Any) -> tuple[ToyWorld, ToyClient, ToyClient]:
    world = ToyWorld()
    ann, bob = world.client(1, **client), world.client(2)
    ann.online()
    bob.online()
    world.run()
    assert (ann.state, bob.state) == (ClientState.ONLINE, ClientState.ONLINE)
    return world, ann, bob


def carries(event: Any, *kinds: type) -> bool:
    return isinstance(event, Received) and isinstance(event.message, kinds)


class DropFirst:
    """Loses the first ``count`` messages of these kinds between services."""

    def __init__(self, count: int, *kinds: type) -> None:
        self.left = count
        self.kinds = kinds

    def __call__(self, target: str, event: Any) -> bool:
        if self.left and carries(event, *self.kinds):
            self.left -= 1
            return True
        return False


# ---------------------------------------------------------------- sending


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


# ---------------------------------------------------------------- syncing


def test_a_push_moves_no_cursor_and_the_gap_below_it_is_filled() -> None:
    """BR-019: pushed n+5 before n+1..n+4 were pulled, then the process dies: all five stand once after."""
    world, ann, bob = pair()
    world.drop = DropFirst(4, PushBatch)
    before = bob.store.cursor
    for number in range(1, 6):
        ann.send(number, peer=2, body=b"%d" % number)
    world.drop = lambda target, event: (
        carries(event, PushBatch) and event.message.pushes[0].entry.body != b"5"
    )
    world.run()
    assert bob.bodies() == [b"5"]
    assert bob.store.cursor == before
    bob.crash()
    world.drop = lambda target, event: False
    bob.start()
    bob.online()
    world.advance(1_000)
    assert sorted(b for b in bob.bodies() if b) == [b"1", b"2", b"3", b"4", b"5"]
    assert bob.store.covered == world.services.watermark


def test_a_push_while_a_pull_is_in_flight_is_not_forgotten() -> None:
    """BR-020: then silence; visible without waiting for a heartbeat."""
    world, ann, bob = pair()
    kept: list[tuple[str, Any]] = []

    def keep(target: str, event: Any) -> bool:
        if carries(event, PullAnswer):
            kept.append((target, event))
            return True
        return False

    world.drop = keep
    world.give(bob.name, SyncRequested())
    world.run()
    assert kept
    world.drop = lambda target, event: False
    ann.send(1, peer=2, body=b"meanwhile")
    world.run()
    assert bob.bodies() == [b"meanwhile"]
    world.give(*kept[0])
    world.advance(1_000)
    assert bob.store.covered == world.services.watermark


def test_lost_pushes_are_repaired_by_the_heartbeat() -> None:
    world, ann, bob = pair()
    world.services.pushes = False
    ann.send(1, peer=2, body=b"unheard")
    world.run()
    assert bob.bodies() == []
    world.advance(31_000)
    assert bob.bodies() == [b"unheard"]


def test_what_comes_between_the_first_sync_and_ready_is_told_by_the_watermark() -> None:
    """The barrier: no push before ONLINE_READY, whose watermark repairs exactly that."""
    world = ToyWorld()
    ann, bob = world.client(1), world.client(2)
    ann.online()
    world.run()
    kept: list[tuple[str, Any]] = []
    world.drop = lambda target, event: (
        carries(event, WatermarkAnswer) and kept.append((target, event)) is None
    )
    bob.online()
    world.run()
    assert bob.state is ClientState.SYNCING
    ann.send(1, peer=2, body=b"in between")
    world.run()
    assert bob.bodies() == []
    world.drop = lambda target, event: False
    for item in kept:
        world.give(*item)
    world.run()
    assert bob.bodies() == [b"in between"]


def test_first_sync_in_pages_then_caught_up() -> None:
    world = ToyWorld()
    ann, bob = world.client(1), world.client(2, pull_limit=7)
    ann.online()
    world.run()
    for number in range(1, 51):
        ann.send(number, peer=2, body=b"%d" % number)
    world.run()
    bob.online()
    world.run()
    assert bob.bodies() == [b"%d" % n for n in range(1, 51)]
    assert bob.told(CaughtUp)[-1].covered_through == world.services.watermark
    pulls = [q for q in world.services.asked if isinstance(q, AskPull) and q.actor.user_id == 2]
    assert len(pulls) >= 8


def test_transient_pull_errors_are_not_remembered() -> None:
    """BR-027."""
    world, ann, bob = pair()
    world.services.refuse(AskPull, ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL)
    world.services.pushes = False
    ann.send(1, peer=2, body=b"x")
    world.run()
    world.give(bob.name, SyncRequested())
    world.advance(5_000)
    assert bob.bodies() == [b"x"]


def test_sleeping_through_the_dead_peer_time_reconnects_and_back_fills() -> None:
    """BR-021: the process stood still for two minutes, the server dropped it."""
    world, ann, bob = pair()
    world.down.add(bob.name)
    ann.send(1, peer=2, body=b"while asleep")
    world.now += 120_000
    world.run()
    world.down.discard(bob.name)
    world.advance(5_000)
    assert bob.state is ClientState.ONLINE
    assert bob.bodies() == [b"while asleep"]


def test_black_hole_is_noticed_on_both_sides_and_nothing_is_lost() -> None:
    """BR-022, BR-031: no FIN, bytes vanish; three messages arrive by pull after the reconnect."""
    world, ann, bob = pair()
    for end, other in list(world.streams.items()):
        if end[0] == bob.name:
            world.held[end] = []
            world.held[other] = []
    for number in range(1, 4):
        ann.send(number, peer=2, body=b"%d" % number)
    world.advance(200_000)
    assert bob.state is ClientState.ONLINE
    assert bob.bodies() == [b"1", b"2", b"3"]


# ---------------------------------------------------------------- rebuild


def trimmed_world() -> tuple[ToyWorld, ToyClient, ToyClient]:
    """Bob was away: ten messages, the mailbox trimmed behind the seventh."""
    world, ann, bob = pair()
    ann.send(1, peer=2, body=b"known")
    world.advance(1_000)
    world.give(bob.name, OfflineWanted())
    world.run()
    for number in range(2, 12):
        ann.send(number, peer=2, body=b"%d" % number)
    world.run()
    world.services.trim = world.services.watermark - 3
    return world, ann, bob


def test_expired_cursor_rebuilds_without_losing_what_is_here() -> None:
    """BR-029: cursor behind the trim; local messages stay, history fills the hole, each applied once."""
    world, _, bob = trimmed_world()
    kept = dict(bob.store.messages)
    bob.online()
    world.advance(30_000)
    assert bob.state is ClientState.ONLINE
    assert bob.store.state is LocalState.ONLINE
    assert kept.items() <= bob.store.messages.items()
    assert len(bob.store.messages) == 11
    assert len(bob.told(MessageApplied)) == 11
    assert bob.store.anchors == {single_conversation_id("default", 1, 2): 11}
    assert bob.store.covered == world.services.watermark


def test_rebuilding_survives_a_restart_and_moves_no_anchor_by_mailbox() -> None:
    world, _, bob = trimmed_world()
    world.drop = lambda target, event: (
        carries(event, object) and type(event.message).__name__ == "HistoryAnswer"
    )
    bob.online()
    world.advance(3_000)
    assert bob.store.state is LocalState.REBUILDING
    assert bob.store.anchors == {single_conversation_id("default", 1, 2): 1}
    assert len(bob.store.messages) == 4
    bob.crash()
    world.drop = lambda target, event: False
    bob.start()
    bob.online()
    world.advance(30_000)
    assert bob.store.state is LocalState.ONLINE
    assert len(bob.store.messages) == 11


@pytest.mark.parametrize(
    "code", [ErrorCode.CURSOR_EXPIRED, ErrorCode.CURSOR_INVALID, ErrorCode.CURSOR_REBASED]
)
@pytest.mark.parametrize("question", [AskSync, AskPull])
def test_every_cursor_verdict_leads_to_rebuild(question: type, code: ErrorCode) -> None:
    world, ann, bob = pair()
    ann.send(1, peer=2, body=b"1")
    world.advance(1_000)
    world.cut(bob)
    world.services.refuse(question, code)
    world.services.pushes = False
    ann.send(2, peer=2, body=b"2")
    world.advance(40_000)
    assert bob.store.state is LocalState.ONLINE
    assert bob.bodies() == [b"1", b"2"]
    assert world.counts["client_rebuilds"] == 1


# ---------------------------------------------------------------- connection


def test_second_connection_of_the_device_replaces_the_first_which_reads_why() -> None:
    """BR-072: KICKED(REPLACED) stands before the close; final until the user acts."""
    world = ToyWorld(gateways=2)
    first = world.client(1, addresses=("gw-1",))
    first.online()
    world.run()
    world.now += 1
    second = ToyClient.__new__(ToyClient)
    world.clients["second"] = second
    second.__init__(world, "second", first.config)  # type: ignore[misc]
    second.store.attempt = first.store.attempt
    second.online()
    world.run()
    assert second.state is ClientState.ONLINE
    assert first.state is ClientState.STOPPED
    assert first.told(StateChanged)[-1].reason == KickReason.REPLACED
    world.advance(600_000)
    assert first.state is ClientState.STOPPED
    world.give(first.name, OnlineWanted(wall=world.wall()))
    world.run()
    assert first.state is ClientState.ONLINE
    assert second.state is ClientState.STOPPED


def test_replaced_across_gateways() -> None:
    world = ToyWorld(gateways=2)
    first = world.client(1, addresses=("gw-1",))
    first.online()
    world.run()
    world.now += 1
    second = ToyClient.__new__(ToyClient)
    world.clients["second"] = second
    config = type(first.config)(
        **{f: getattr(first.config, f) for f in first.config.__struct_fields__}
        | {"addresses": ("gw-2",)}
    )
    second.__init__(world, "second", config)  # type: ignore[misc]
    second.online()
    world.run()
    assert first.state is ClientState.STOPPED
    assert second.state is ClientState.ONLINE
    assert world.services.presence[(1, b"phone")].gateway == "gw-2"


def test_a_zombie_with_an_older_attempt_is_refused() -> None:
    """BR-066: the old process comes back and doesn't throw out the newer login."""
    world = ToyWorld()
    old = world.client(1)
    new = ToyClient.__new__(ToyClient)
    world.clients["new"] = new
    new.__init__(world, "new", old.config)  # type: ignore[misc]
    old.online()
    world.run()
    world.now += 10
    new.online()
    world.run()
    assert new.state is ClientState.ONLINE
    old.store.attempt = 0
    old.crash()
    old.start()
    world.now -= 1_000  # its wall clock, and so its attempt, stands behind
    old.online()
    world.run()
    assert old.state is ClientState.STOPPED
    assert new.state is ClientState.ONLINE


def test_gateway_stop_sends_everybody_elsewhere_with_their_acks() -> None:
    world = ToyWorld(gateways=2)
    ann = world.client(1)
    ann.online()
    world.run()
    kept: list[tuple[str, Any]] = []
    world.drop = lambda target, event: (
        carries(event, SendDone) and kept.append((target, event)) is None
    )
    ann.send(1, peer=2)
    world.run()
    world.drain("gw-1")
    ann.send(2, peer=2)
    world.run()
    assert ann.state is ClientState.ONLINE, "an ack is in flight"
    world.drop = lambda target, event: False
    world.give(*kept[0])
    world.run()
    assert ann.settled() == {(1).to_bytes(16, "big"): 0}
    assert ann.told(StateChanged)[-1].state == ClientState.WAITING
    assert world.gateways["gw-1"].idle()
    world.advance(5_000)
    assert ann.state is ClientState.ONLINE


def test_dead_gateway_is_left_for_the_next() -> None:
    world = ToyWorld(gateways=2)
    world.down.add("gw-1")
    ann = world.client(1)
    ann.online()
    world.advance(5_000)
    assert ann.state is ClientState.ONLINE


def test_expired_token_stops_with_a_clear_code_until_it_is_renewed() -> None:
    """BR-074: one attempt, a terminal state, no endless reconnects."""
    world = ToyWorld()
    ann = world.client(1, access_token=token_for(1, expires_in_ms=0))
    ann.online()
    world.advance(600_000)
    (last,) = [n for n in ann.told(StateChanged) if n.state == ClientState.STOPPED]
    assert last.refused
    assert last.reason == ErrorCode.TOKEN_EXPIRED
    world.give(ann.name, TokenRenewed(access_token=token_for(1), wall=world.wall()))
    world.run()
    assert ann.state is ClientState.ONLINE


@pytest.mark.parametrize("token", ["", "nonsense", token_for(1, device=b"other")])
def test_wrong_tokens_are_unauthenticated(token: str) -> None:
    world = ToyWorld()
    ann = world.client(1, access_token=token)
    ann.online()
    world.run()
    assert ann.told(StateChanged)[-1].reason == ErrorCode.UNAUTHENTICATED


def test_offline_and_online_again() -> None:
    world, ann, _ = pair()
    world.give(ann.name, OfflineWanted())
    world.run()
    assert ann.state is ClientState.OFFLINE
    assert (1, b"phone") not in world.services.presence
    ann.send(1, peer=2)
    world.advance(60_000)
    assert not ann.settled()
    ann.online()
    world.run()
    assert ann.settled() == {(1).to_bytes(16, "big"): 0}


def test_mailbox_down_at_login_backs_off_and_comes_back() -> None:
    world = ToyWorld()
    world.drop = DropFirst(3, SyncAnswer)
    ann = world.client(1)
    ann.online()
    world.advance(60_000)
    assert ann.state is ClientState.ONLINE


# ---------------------------------------------------------------- groups and questions


def test_groups_members_and_history() -> None:
    world, ann, bob = pair()
    create = GroupChangeRequested(
        client_message_id=bytes(15) + b"\x09",
        operation=MembershipOp.CREATE,
        conversation_id=None,
        members=(2,),
        name="toys",
        wall=world.wall(),
    )
    world.give(ann.name, create)
    world.run()
    (settled,) = ann.told(GroupSettled)
    assert (settled.version, settled.control_seq, settled.code) == (1, 1, 0)
    group = settled.conversation_id
    for operation in (MembershipOp.ADD, MembershipOp.REMOVE, MembershipOp.LEAVE):
        world.give(
            bob.name,
            GroupChangeRequested(
                client_message_id=bytes(15) + bytes([operation]),
                operation=operation,
                conversation_id=group,
                members=(3,),
                wall=world.wall(),
            ),
        )
    world.run()
    assert [n.code for n in bob.told(GroupSettled)] == [0, 0, 0]
    world.give(ann.name, MembersRequested(ticket=1, conversation_id=group))
    world.give(
        ann.name,
        HistoryRequested(
            ticket=2,
            conversation_id=group,
            anchor=100,
            direction=HistoryDirection.OLDER,
            limit=2,
        ),
    )
    world.run()
    (members,) = ann.told(MembersArrived)
    assert (members.ticket, members.added, members.full) == (1, (1, 2, 3), True)
    (history,) = ann.told(HistoryArrived)
    assert history.has_more
    assert [m.conversation_seq for m in history.messages] == [3, 4]
    assert [m.client_message_id for m in history.messages] == [None, None], "others' keys"


def test_group_change_found_in_the_mailbox_is_settled() -> None:
    world, ann, _ = pair()
    world.drop = lambda target, event: (
        carries(event, object) and type(event.message).__name__ == "GroupDone"
    )
    world.give(
        ann.name,
        GroupChangeRequested(
            client_message_id=bytes(15) + b"\x01",
            operation=MembershipOp.CREATE,
            conversation_id=None,
            members=(2,),
            wall=world.wall(),
        ),
    )
    world.run()
    world.cut(ann)
    world.advance(10_000)
    (settled,) = ann.told(GroupSettled)
    assert (settled.code, settled.version, settled.control_seq) == (0, 0, 1)


def test_bad_group_changes_are_refused_at_once() -> None:
    world, ann, _ = pair()
    for number, (operation, conversation_id) in enumerate(
        [(9, None), (MembershipOp.CREATE, bytes(15) + b"\x01"), (MembershipOp.ADD, None)], 1
    ):
        world.give(
            ann.name,
            GroupChangeRequested(
                client_message_id=bytes(15) + bytes([number]),
                operation=operation,
                conversation_id=conversation_id,
                members=(2,),
                wall=world.wall(),
            ),
        )
    world.run()
    assert [n.code for n in ann.told(SendRefused)] == [ErrorCode.INVALID_ARGUMENT] * 3


def test_questions_fail_without_a_connection_and_over_the_bound() -> None:
    world = ToyWorld()
    ann = world.client(1, queries_max=2)
    ask = HistoryRequested(ticket=1, conversation_id=bytes(15) + b"\x01", anchor=0, direction=0)
    world.give(ann.name, ask)
    world.run()
    assert [n.code for n in ann.told(QueryFailed)] == [ErrorCode.UNAVAILABLE]
    ann.online()
    world.run()
    ann.notices.clear()
    effects = ann.machine.step(world.now, [ask] * 5)
    assert [e.code for e in effects if isinstance(e, QueryFailed)] == [ErrorCode.QUOTA_EXCEEDED] * 3


# ---------------------------------------------------------------- the local store fails


@pytest.mark.parametrize(
    "effect", [SavePush, SaveBatch, SaveAttempt, SaveAck, SaveNotAfter, SaveFailed]
)
def test_a_refusing_local_store_delays_but_loses_nothing(effect: type) -> None:
    world, ann, bob = pair()
    world.services.refuse(SubmitSend, ErrorCode.NOT_MEMBER)
    ann.send(1, peer=2)
    for client in (ann, bob):
        client.store.fail_next.append(effect)
    ann.send(2, peer=2, body=b"x")
    world.cut(ann)
    world.cut(bob)
    world.advance(60_000)
    assert ann.settled()[(2).to_bytes(16, "big")] == 0
    assert ann.settled().keys() == {(1).to_bytes(16, "big"), (2).to_bytes(16, "big")}
    assert b"x" in bob.bodies()
    assert bob.store.covered == world.services.watermark


def test_a_row_the_local_store_refuses_is_refused() -> None:
    world, ann, _ = pair()
    ann.store.fail_next.append(SavePending)
    ann.send(1, peer=2)
    world.run()
    assert [n.code for n in ann.told(SendRefused)] == [ErrorCode.UNAVAILABLE]
    assert not world.services.records


def test_rebuild_waits_for_its_state_to_be_stored() -> None:
    world, _, bob = trimmed_world()
    bob.store.fail_next += [SaveState, SaveState]
    bob.online()
    world.advance(30_000)
    assert bob.store.state is LocalState.ONLINE
    assert len(bob.store.messages) == 11
