"""Sizes at their edges and ids of every byte value, over a real socket: stored bit-exact or refused with a code."""

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from qim.core.contract.entities import MessageKind
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    BODY_BYTES_MAX,
    CUSTOM_TYPE_BYTES_MAX,
    Auth,
    CreateGroup,
    Error,
    GroupAdd,
    GroupOk,
    Members,
    MembersBatch,
    PullHistory,
    SendAck,
)
from tests.integration.raw_client import (
    Bystanders,
    RawClient,
    message,
    new_key,
    next_attempt,
    soon,
    token,
)
from tests.integration.served import CANARY, Served

SENDER, PEER = 501, 502
GROUP_MAX = 1000


def between_two(
    served: Served, case: Callable[[RawClient, RawClient], Awaitable[None]], peer: int = PEER
) -> None:
    """A case of a sender and a receiver, while two others go on."""

    async def main() -> None:
        async with (
            Bystanders.of(served.target) as others,
            await RawClient.log_in(served.target, SENDER) as sender,
            await RawClient.log_in(served.target, peer) as receiver,
        ):
            await receiver.pull()
            await case(sender, receiver)
            await others.go_on()

    asyncio.run(main())


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize("size", [0, 1, BODY_BYTES_MAX - 1, BODY_BYTES_MAX])
def test_bodies_up_to_the_limit_arrive_bit_exact(served: Served, size: int) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        body = (CANARY + bytes(range(256)) * 600)[:size]
        ack = await sender.send(body, peer_user_id=PEER)
        got = await receiver.pull_until(ack.message_id)
        assert got[-1].body == body
        assert (await receiver.history(ack.conversation_id))[-1].body == body

    between_two(served, case)


@pytest.mark.parametrize("size", [BODY_BYTES_MAX + 1, 3 * BODY_BYTES_MAX])
def test_bodies_over_the_limit_are_refused_and_the_connection_stays(
    served: Served, size: int
) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        long = message(bytes(size), peer_user_id=PEER)
        error = await sender.refused(long)
        assert error.code == ErrorCode.INVALID_ARGUMENT
        assert error.client_message_id == long.client_message_id
        # On the same connection the same key is still free: nothing was reserved.
        ack = await sender.send(CANARY, peer_user_id=PEER, client_message_id=long.client_message_id)
        assert [one.body for one in await receiver.pull_until(ack.message_id)] == [CANARY]

    between_two(served, case)


def test_a_body_of_ten_times_the_limit_is_refused_by_its_request_id(served: Served) -> None:
    """It is longer than any frame may be: the ERROR names the request and reaches the sender whole."""

    async def case(sender: RawClient, receiver: RawClient) -> None:
        request = sender.say(message(bytes(10 * BODY_BYTES_MAX), peer_user_id=PEER))
        error = await sender.answer(request)
        assert isinstance(error, Error)
        assert error.code == ErrorCode.FRAME_TOO_LARGE
        assert await receiver.pull() == []

    between_two(served, case)


def test_many_large_bodies_come_in_batches_that_fit_a_frame(served: Served) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        bodies = [bytes([number]) * BODY_BYTES_MAX for number in range(12)]
        for body in bodies:
            ack = await sender.send(body, peer_user_id=PEER)
        assert [one.body for one in await receiver.pull_until(ack.message_id)] == bodies
        history = await receiver.history(ack.conversation_id)
        assert [one.body for one in history[-12:]] == bodies

    between_two(served, case)


# ---------------------------------------------------------------- text fields


@pytest.mark.parametrize(
    ("custom_type", "code"),
    [
        ("", None),
        ("x" * CUSTOM_TYPE_BYTES_MAX, None),
        ("é" * (CUSTOM_TYPE_BYTES_MAX // 2), None),
        ("a\0b", None),
        ("\0", None),
        ("‮𝄞\ufffe", None),
        ("x" * (CUSTOM_TYPE_BYTES_MAX + 1), ErrorCode.INVALID_ARGUMENT),
        ("é" * (CUSTOM_TYPE_BYTES_MAX // 2) + "x", ErrorCode.INVALID_ARGUMENT),
        ("qim.membership.v1", ErrorCode.INVALID_ARGUMENT),
        ("qim.", ErrorCode.INVALID_ARGUMENT),
    ],
)
def test_custom_types(served: Served, custom_type: str, code: ErrorCode | None) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        sent = message(CANARY, peer_user_id=PEER, custom_type=custom_type, kind=MessageKind.CUSTOM)
        if code is not None:
            assert (await sender.refused(sent)).code == code
            return
        ack = await sender.ask(sent, SendAck)
        (got,) = await receiver.pull_until(ack.message_id)
        assert (got.custom_type, got.kind) == (custom_type, MessageKind.CUSTOM)

    between_two(served, case)


def test_nul_bytes_in_every_text_field(served: Served) -> None:
    """Stored bit-exact: body, custom_type, device_id, group name and meta (BR-081)."""

    async def case(sender: RawClient, receiver: RawClient) -> None:
        body = b"\0 before\0after \0"
        device = b"\0de\0vice\0"
        async with await RawClient.log_in(served.target, SENDER, device=device) as other:
            sent = message(body, peer_user_id=PEER, custom_type="\0t\0")
            ack = await other.ask(sent, SendAck)
            got = await receiver.pull_until(ack.message_id)
            assert (got[-1].body, got[-1].custom_type) == (body, "\0t\0")
            name, meta = "na\0me\0", b"\0me\0ta"
            create = CreateGroup(
                client_message_id=new_key(), not_after=soon(), members=(PEER,), name=name, meta=meta
            )
            group = await other.ask(create, GroupOk)
            members = await receiver.ask(
                Members(conversation_id=group.conversation_id), MembersBatch
            )
            assert members.name == name
            assert members.added == (SENDER, PEER)
            # The group's first message comes to the receiver by itself: the next test wants an empty mailbox.
            ack = await other.send(body, conversation_id=group.conversation_id)
            await receiver.pull_until(ack.message_id)

    between_two(served, case)


# ---------------------------------------------------------------- ids


def test_zero_ids_are_refused(served: Served) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        zero = bytes(16)
        for bad in (
            message(CANARY, peer_user_id=PEER, client_message_id=zero),
            message(CANARY, conversation_id=zero),
            message(CANARY, conversation_id=zero, peer_user_id=PEER),
            message(CANARY, peer_user_id=0),
            message(CANARY),
            CreateGroup(client_message_id=zero, not_after=soon(), members=(PEER,)),
            CreateGroup(client_message_id=new_key(), not_after=soon(), members=(0,)),
            PullHistory(conversation_id=zero, anchor=0, direction=0),
            Members(conversation_id=zero),
        ):
            assert (await sender.refused(bad)).code == ErrorCode.INVALID_ARGUMENT, bad
        assert await receiver.pull() == []

    between_two(served, case)


def test_moments_out_of_bounds_are_refused(served: Served) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        for not_after, code in (
            (0, ErrorCode.INVALID_ARGUMENT),
            (1, ErrorCode.SEND_EXPIRED),
            (2**64 - 1, ErrorCode.INVALID_ARGUMENT),
            (soon() + 2 * 3_600_000, ErrorCode.INVALID_ARGUMENT),
        ):
            sent = message(CANARY, peer_user_id=PEER, not_after=not_after)
            assert (await sender.refused(sent)).code == code, not_after
        assert await receiver.pull() == []

    between_two(served, case)


def test_conversations_that_are_not_ours_or_not_there(served: Served) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        unknown = os.urandom(16)
        assert (await sender.refused(message(CANARY, conversation_id=unknown))).code == (
            ErrorCode.NOT_FOUND
        )
        async with await RawClient.log_in(served.target, 599) as stranger:
            group = await stranger.create_group((598,))
            for frame in (
                message(CANARY, conversation_id=group.conversation_id),
                PullHistory(conversation_id=group.conversation_id, anchor=0, direction=0),
                Members(conversation_id=group.conversation_id),
            ):
                error = await sender.refused(frame)
                assert error.code in (ErrorCode.NOT_MEMBER, ErrorCode.NOT_FOUND), frame
            # Two names for a conversation must agree.
            both = message(CANARY, conversation_id=group.conversation_id, peer_user_id=PEER)
            assert (await sender.refused(both)).code == ErrorCode.INVALID_ARGUMENT

    between_two(served, case)


HOSTILE_KEYS = (
    [bytes(range(low, low + 16)) for low in range(0, 256, 16)]
    + [
        bytes([value]) * 16
        for value in (0x01, 0x0A, 0x0D, 0x20, 0x25, 0x3A, 0x7B, 0x7F, 0x80, 0xFF)
    ]
    + [
        b"\0" * 15 + b"\1",
        b"\1" + b"\0" * 15,
        b"a" * 15 + b"\0",
        b"a" * 15 + b"b",
        b"{a}:b:c\r\n*1\r\n$4\n",
    ]
)


def test_client_message_ids_of_every_byte_value(served: Served) -> None:
    """Each key is its own message, each retry its first answer; none collides with another."""

    async def case(sender: RawClient, receiver: RawClient) -> None:
        acks: dict[bytes, SendAck] = {}
        for key in HOSTILE_KEYS:
            sent = message(CANARY + key, peer_user_id=PEER, client_message_id=key)
            acks[key] = await sender.ask(sent, SendAck)
            assert await sender.ask(sent, SendAck) == acks[key]
        assert len({ack.message_id for ack in acks.values()}) == len(HOSTILE_KEYS)
        got = await receiver.pull_until(acks[HOSTILE_KEYS[-1]].message_id)
        assert [one.body for one in got] == [CANARY + key for key in HOSTILE_KEYS]
        own = await sender.pull_until(acks[HOSTILE_KEYS[-1]].message_id)
        assert {one.client_message_id for one in own} >= set(HOSTILE_KEYS)

    between_two(served, case)


def test_device_ids_of_every_byte_value_and_prefixes_of_each_other(served: Served) -> None:
    """Each is a device of its own: none replaces another, each has its own cursor and its own pushes."""

    async def case(sender: RawClient, receiver: RawClient) -> None:
        every = bytes(range(256))
        names = [every[at : at + 64] for at in range(0, 256, 64)]
        names += [b"p", b"pp", b"p\0", b"p:", b"p" * 64, b"\xff", b"\xff\xff", b"{p}"]
        devices = [await RawClient.log_in(served.target, PEER, device=name) for name in names]
        ack = await sender.send(CANARY, peer_user_id=PEER)
        for device in devices:
            assert (await device.pull_until(ack.message_id))[-1].message_id == ack.message_id
        for device in devices:
            await device.close()

    between_two(served, case)


@pytest.mark.parametrize("device", [b"", b"x" * 65])
def test_device_ids_out_of_bounds(served: Served, device: bytes) -> None:
    async def main() -> None:
        async with await RawClient.connect(served.tcp) as client:
            auth = Auth(
                access_token=token(served.target.secret, SENDER),
                device_id=device,
                attempt=next_attempt(),
            )
            assert (await client.refused(auth)).code == ErrorCode.INVALID_ARGUMENT

    asyncio.run(main())


@pytest.mark.parametrize("peer", [1, 2**32, 2**53 + 1, 2**63, 2**64 - 1])
def test_user_ids_up_to_the_last(served: Served, peer: int) -> None:
    """Above 2^53 no double keeps apart what differs in the last bit."""

    async def case(sender: RawClient, receiver: RawClient) -> None:
        async with await RawClient.log_in(served.target, peer - 1 or 2) as neighbour:
            await neighbour.pull()
            ack = await sender.send(CANARY, peer_user_id=peer)
            got = await receiver.pull_until(ack.message_id)
            assert got[-1].sender_id == SENDER
            assert await neighbour.pull() == []

    between_two(served, case, peer)


def test_a_chat_with_oneself(served: Served) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        await sender.pull()
        ack = await sender.send(CANARY, peer_user_id=SENDER)
        got = await sender.pull_until(ack.message_id)
        assert [one.message_id for one in got] == [ack.message_id]

    between_two(served, case)


# ---------------------------------------------------------------- groups


def test_a_group_of_1000_and_no_1001(served: Served) -> None:
    """Created, messaged, and what would exceed the limit refused with its code, at once and by addition."""

    async def case(sender: RawClient, receiver: RawClient) -> None:
        members = (PEER, *range(10_001, 10_001 + GROUP_MAX - 2))
        group = await sender.create_group(members, "a thousand")
        conversation_id = group.conversation_id
        ack = await sender.send(CANARY, conversation_id=conversation_id)
        got = await receiver.pull_until(ack.message_id)
        assert got[-1].body == CANARY
        for user in (10_001, 10_500, members[-1]):
            async with await RawClient.log_in(served.target, user) as member:
                assert (await member.pull_until(ack.message_id))[-1].body == CANARY
        listed = await sender.ask(Members(conversation_id=conversation_id), MembersBatch)
        assert len(listed.added) == GROUP_MAX
        over = CreateGroup(
            client_message_id=new_key(), not_after=soon(), members=(*members, 20_001)
        )
        more = GroupAdd(
            client_message_id=new_key(),
            not_after=soon(),
            conversation_id=conversation_id,
            members=(20_001,),
        )
        for frame in (over, more):
            assert (await sender.refused(frame)).code == ErrorCode.TOO_MANY_MEMBERS
        # The same members again are no change, and no refusal either.
        again = GroupAdd(
            client_message_id=new_key(),
            not_after=soon(),
            conversation_id=conversation_id,
            members=members,
        )
        assert (await sender.ask(again, GroupOk)).noop

    between_two(served, case)


@pytest.mark.parametrize(
    ("name", "meta", "ok"),
    [
        ("n" * 256, b"m" * 4096, True),
        ("n" * 257, b"", False),
        ("é" * 129, b"", False),
        ("n", b"m" * 4097, False),
    ],
)
def test_group_names_and_meta(served: Served, name: str, meta: bytes, ok: bool) -> None:
    async def case(sender: RawClient, receiver: RawClient) -> None:
        create = CreateGroup(
            client_message_id=new_key(), not_after=soon(), members=(PEER,), name=name, meta=meta
        )
        if ok:
            await sender.ask(create, GroupOk)
        else:
            assert (await sender.refused(create)).code == ErrorCode.INVALID_ARGUMENT

    between_two(served, case)
