"""Groups: who is in sees, who isn't doesn't, and every change is a message of its own."""

import os
import time

import msgspec

from qim.cli.smoke.stage import Check, Stage, acked, take
from qim.client import Client, SendFailed, SendStatus
from qim.core.contract.entities import (
    MEMBERSHIP_CUSTOM_TYPE,
    MembershipDelta,
    MembershipOp,
    MessageKind,
)
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import CreateGroup, GroupOk
from qim.core.contract.ids import group_conversation_id
from qim.core.contract.params import DEFAULT, HOUR_MS
from qim.core.ports.local_store import LocalMessage

HIDDEN = (ErrorCode.NOT_MEMBER, ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN)


async def bodies(client: Client, conversation_id: bytes) -> list[bytes]:
    """What this user may read of it, control messages left out."""
    page = await client.history(conversation_id, limit=100)
    return [message.body or b"" for message in page.messages if message.kind == MessageKind.TEXT]


async def members_see_their_own_time(stage: Stage) -> None:
    alice, bob, carol = stage.people(3)
    one, two, three = await alice.device(), await bob.device(), await carol.device()
    group = (await one.create_group((bob.user_id,), "smoke")).conversation_id
    acked(await one.send("first", conversation_id=group))
    added = await one.add_members(group, (carol.user_id,))
    acked(await two.send("second", conversation_id=group))
    await one.remove_members(group, (bob.user_id,))
    acked(await three.send("third", conversation_id=group))
    assert await bodies(one, group) == [b"first", b"second", b"third"]
    assert await bodies(two, group) == [b"first", b"second"], "a removed member reads until then"
    assert await bodies(three, group) == [b"second", b"third"], "a new member reads from then on"
    assert added.version > 1 or added.control_seq > 1
    told = await one.members(group)
    assert sorted(told.added) == sorted((alice.user_id, carol.user_id))
    assert told.name == "smoke"
    assert told.creator == alice.user_id


async def who_is_removed_can_not_send(stage: Stage) -> None:
    alice, bob, eve = stage.people(3)
    one, two, stranger = await alice.device(), await bob.device(), await eve.device()
    group = (await one.create_group((bob.user_id,))).conversation_id
    await two.leave(group)
    for client in (two, stranger):
        sent = await client.send("no", conversation_id=group)
        assert sent.status is SendStatus.FAILED
        assert sent.code in {code.name for code in HIDDEN}, sent.code
    try:
        await stranger.history(group)
    except SendFailed as error:
        assert error.code in HIDDEN, error
    else:
        raise AssertionError("a stranger reads the group's history")
    assert (await one.members(group)).added == (alice.user_id,)


async def changes_are_messages(stage: Stage) -> None:
    alice, bob, carol = stage.people(3)
    one, two, three = await alice.device(), await bob.device(), await carol.device()
    created = await one.create_group((bob.user_id,))
    group = created.conversation_id
    added = await one.add_members(group, (carol.user_id,))
    again = await one.add_members(group, (carol.user_id,))
    assert again.noop
    assert again.version == added.version, "a change that changes nothing names the version that is"
    left = await three.leave(group)
    got = await take(two, 3)
    told = {message.conversation_seq: _delta(message) for message in got}
    assert told[created.control_seq].op == MembershipOp.CREATE
    assert told[added.control_seq].op == MembershipOp.ADD
    assert told[added.control_seq].users == (carol.user_id,)
    assert told[left.control_seq].op == MembershipOp.LEAVE
    assert told[left.control_seq].count == 2


async def groups_have_a_greatest_size(stage: Stage) -> None:
    alice = stage.person()
    wire = await alice.wire()
    most = DEFAULT.group_members_max
    key = os.urandom(16)
    others = range(alice.user_id + 1, alice.user_id + most + 1)
    assert await wire.refused(_create(key, tuple(others))) is ErrorCode.TOO_MANY_MEMBERS
    done = await wire.ask(_create(os.urandom(16), tuple(others)[:-1]), GroupOk)
    assert not done.noop


async def a_repeated_create_names_the_same_group(stage: Stage) -> None:
    alice = stage.person()
    wire = await alice.wire()
    frame = _create(os.urandom(16), (alice.user_id + 1,))
    first = await wire.ask(frame, GroupOk)
    assert await wire.ask(frame, GroupOk) == first
    assert first.conversation_id == group_conversation_id(
        stage.grounds.tenant_id, alice.user_id, frame.client_message_id
    )


def _create(key: bytes, members: tuple[int, ...]) -> CreateGroup:
    until = time.time_ns() // 1_000_000 + HOUR_MS
    return CreateGroup(client_message_id=key, not_after=until, members=members)


def _delta(message: LocalMessage) -> MembershipDelta:
    assert message.kind == MessageKind.CONTROL
    assert message.custom_type == MEMBERSHIP_CUSTOM_TYPE
    return msgspec.msgpack.decode(message.body or b"", type=MembershipDelta)


CHECKS = (
    Check(name="members-see-their-own-time", run=members_see_their_own_time),
    Check(name="strangers-are-kept-out", run=who_is_removed_can_not_send),
    Check(name="changes-are-messages", run=changes_are_messages),
    Check(name="groups-have-a-greatest-size", run=groups_have_a_greatest_size),
    Check(name="repeated-create-is-one-group", run=a_repeated_create_names_the_same_group),
)
