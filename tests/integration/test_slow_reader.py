"""A client that stops reading while a hot group writes: cut, bounded in the server, and nothing of its mailbox is lost."""

import asyncio

import pytest

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    BODY_BYTES_MAX,
    Error,
    Kicked,
    KickReason,
    MailboxBatch,
    Ping,
    PullMailbox,
    SendAck,
)
from qim.core.contract.wire import encode_raw
from tests.integration.raw_client import NO_TIME, Bystanders, RawClient, message
from tests.integration.served import CANARY, Served, streams_open

WRITER, MEMBER, SLOW = 601, 602, range(610, 620)
RECEIVE_BUFFER_BYTES = 4096
BODY = CANARY + b"x" * 1_000
"""Short enough to travel inline, so that each push carries it."""
CUT_SECONDS_MAX = 240.0
"""Megabytes go into the kernel's own buffers before a reader is slow for the server."""
RESIDENT_GROWTH_BYTES_MAX = 96 << 20
"""Ten slow readers may hold 4 batches + 256 KiB each (13 MiB); the rest is caches that fill once, and allocator slack."""


async def slow_reader(served: Served, user: int, device: bytes) -> RawClient:
    """Online, with the smallest receive buffer, and then it reads no more."""
    client = await RawClient.connect(served.tcp, receive_buffer_bytes=RECEIVE_BUFFER_BYTES)
    await client.authenticate(served.target, user, device=device)
    await client.go_online()
    return client


async def write_until_cut(served: Served, writer: RawClient, group: bytes) -> list[bytes]:
    """Messages to the hot group until every slow reader has been cut; their ids in the conversation's order."""
    acks: list[SendAck] = []
    async with asyncio.timeout(CUT_SECONDS_MAX):
        while served.metric("qim_gateway_kicked_total", "SLOW_CONSUMER") < len(SLOW):
            frames = [message(BODY, conversation_id=group) for _ in range(50)]
            said = [(frame, writer.say(frame)) for frame in frames]
            acks += [await writer.answered(frame, request, SendAck) for frame, request in said]
    return [ack.message_id for ack in sorted(acks, key=lambda ack: ack.conversation_seq)]


def test_slow_readers_are_cut_and_lose_nothing(served: Served) -> None:
    async def main() -> None:
        async with (
            Bystanders.of(served.target) as others,
            await RawClient.log_in(served.target, WRITER) as writer,
            await RawClient.log_in(served.target, MEMBER) as member,
        ):
            group = (await writer.create_group((MEMBER, *SLOW))).conversation_id
            before = served.resident_bytes()
            slow = [await slow_reader(served, user, b"slow") for user in SLOW]
            written = await write_until_cut(served, writer, group)
            assert served.resident_bytes() - before < RESIDENT_GROWTH_BYTES_MAX
            await others.go_on()
            # Who reads gets all, while the slow ones were being cut.
            entries = await member.pull_until(written[-1])
            assert [one.message_id for one in entries if one.kind == 1] == written
            # What is still in its buffers, it may read: no more than that, and at the end why.
            for client in slow:
                heard = await client.rest()
                kicks = [one.frame for one in heard if isinstance(one.frame, Kicked)]
                assert all(one.reason == KickReason.SLOW_CONSUMER for one in kicks)
                assert all(one.reconnect for one in kicks)
                await client.close()
            for user in SLOW:
                async with await RawClient.log_in(served.target, user, device=b"slow") as back:
                    entries = await back.pull_until(written[-1])
                    assert [one.message_id for one in entries if one.kind == 1] == written
        await streams_open(served, 0)

    asyncio.run(main())


def test_pulls_are_answered_only_when_there_is_room(served: Served) -> None:
    """A client that pulls without reading is held at the server's bound, not cut and not buffered."""

    async def main() -> None:
        async with (
            Bystanders.of(served.target) as others,
            await RawClient.log_in(served.target, WRITER) as writer,
            await RawClient.log_in(served.target, MEMBER) as member,
        ):
            await member.pull()
            cursor = member.cursor
            for _ in range(40):
                ack = await writer.send(bytes(BODY_BYTES_MAX), peer_user_id=MEMBER)
            await member.pull_until(ack.message_id)
            lazy = await RawClient.connect(served.tcp, receive_buffer_bytes=RECEIVE_BUFFER_BYTES)
            await lazy.authenticate(served.target, MEMBER)
            requests = [lazy.say(PullMailbox(cursor=cursor)) for _ in range(64)]
            await lazy.flush()
            await others.go_on()
            answers = [await lazy.answer(request) for request in requests]
            batches = [one for one in answers if isinstance(one, MailboxBatch)]
            refused = [one.code for one in answers if isinstance(one, Error)]
            assert len(batches) >= 4
            assert set(refused) == {ErrorCode.RATE_LIMITED}
            assert len(batches) + len(refused) == 64
            assert len({batch.covered_through_seq for batch in batches}) == 1
            await lazy.close()

    asyncio.run(main())


def test_unpaced_sends_are_pushed_back_or_told(served: Served) -> None:
    """Far more than may be in flight, from a client that never reads meanwhile: each is answered, acked ones are there."""

    async def main() -> None:
        async with (
            await RawClient.log_in(served.target, WRITER, device=b"flood") as flood,
            await RawClient.log_in(served.target, MEMBER) as member,
        ):
            await member.pull()
            frames = [message(CANARY, peer_user_id=MEMBER) for _ in range(3_000)]
            sent = {flood.say(frame): frame for frame in frames}
            writing = asyncio.create_task(flood.flush())
            answers = {request: await flood.answer(request) for request in sent}
            await writing
            acks = [one for one in answers.values() if isinstance(one, SendAck)]
            refused = {at: one.code for at, one in answers.items() if isinstance(one, Error)}
            assert len(acks) + len(refused) == len(sent)
            unknown = [at for at, code in refused.items() if code == ErrorCode.TIMEOUT_UNKNOWN]
            assert set(refused.values()) <= {ErrorCode.RATE_LIMITED, *NO_TIME}
            seqs = [one.conversation_seq for one in acks]
            assert seqs == sorted(seqs)
            # Nobody knows of these, until they are asked again by their keys.
            acks += [await flood.ask(sent[request], SendAck) for request in unknown]
            acks.sort(key=lambda ack: ack.conversation_seq)
            entries = await member.pull_until(acks[-1].message_id)
            assert [one.message_id for one in entries] == [one.message_id for one in acks]

    asyncio.run(main())


@pytest.mark.parametrize("nonsense", [False, True], ids=["PONGs", "ERRORs"])
def test_a_flood_whose_answers_are_never_read_is_cut(served: Served, nonsense: bool) -> None:
    """Answers are bounded like pushes are, those to nonsense too."""
    opcode = 0x7777 if nonsense else Ping.OPCODE
    flood = b"".join(encode_raw(opcode, b"\x91\x01", request=number) for number in range(2_000))

    async def main() -> None:
        async with Bystanders.of(served.target) as others:
            cut = served.metric("qim_gateway_kicked_total", "SLOW_CONSUMER")
            before = served.resident_bytes()
            client = await slow_reader(served, WRITER, b"flood")
            async with asyncio.timeout(CUT_SECONDS_MAX):
                while served.metric("qim_gateway_kicked_total", "SLOW_CONSUMER") == cut:
                    client.say_bytes(flood)
                    await client.flush()
            assert served.resident_bytes() - before < 32 << 20
            await others.go_on()
            await client.cut()
            await client.rest()

    asyncio.run(main())
