"""Client and ConnectionNode back to back: replaced, stopped, refused, offline; groups, questions, a failing store."""

from typing import Any

import pytest

from qim.core.client.vocabulary import (
    ClientState,
    GroupChangeRequested,
    GroupSettled,
    HistoryArrived,
    HistoryRequested,
    MembersArrived,
    MembersRequested,
    OfflineWanted,
    OnlineWanted,
    QueryFailed,
    SendRefused,
    StateChanged,
    TokenRenewed,
)
from qim.core.contract.entities import MembershipOp
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import HistoryDirection, KickReason
from qim.core.contract.rpc import (
    SendDone,
    SubmitSend,
    SyncAnswer,
)
from qim.core.ports.local_store import (
    SaveAck,
    SaveAttempt,
    SaveBatch,
    SaveFailed,
    SaveNotAfter,
    SavePending,
    SavePush,
)
from tests.core.client.toy_world import (
    DropFirst,
    ToyClient,
    ToyWorld,
    carries,
    pair,
    token_for,
)


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
