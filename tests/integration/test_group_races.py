"""Membership changes in the middle of traffic: who gets a message is who was a member at its place in the order."""

import asyncio
import itertools

from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    GroupAdd,
    GroupOk,
    GroupRemove,
    LeaveGroup,
    SendAck,
    SendMessage,
)
from tests.integration.raw_client import PATIENCE_SECONDS, RawClient, message, new_key, soon
from tests.integration.served import CANARY, Served

CREATOR, WRITER, WITNESS, MOVING = 1_101, 1_102, 1_103, 1_104
SENDS, SENDS_AT_ONCE, CHANGES = 1_000, 20, 30

Intervals = list[tuple[int, int]]
"""Of conversation_seq, both inclusive: joining and leaving messages are visible to whom they are about."""


async def change(client: RawClient, group: bytes, kind: type[GroupAdd | GroupRemove]) -> int:
    """Add or remove MOVING; the seq of the control message."""
    frame = kind(
        client_message_id=new_key(), not_after=soon(), conversation_id=group, members=(MOVING,)
    )
    ok = await client.ask(frame, GroupOk)
    assert not ok.noop
    return ok.control_seq


class Traffic:
    """What the writer was acked so far, and whether the member still comes and goes."""

    def __init__(self) -> None:
        self.acks: list[SendAck] = []
        self.moving = True
        self._acked = asyncio.Event()

    def acked(self, ack: SendAck) -> None:
        self.acks.append(ack)
        self._acked.set()

    async def one_behind(self, seq: int) -> None:
        """Wait until a message stands behind ``seq``."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not any(ack.conversation_seq > seq for ack in self.acks[-SENDS_AT_ONCE:]):
                self._acked.clear()
                await self._acked.wait()


async def come_and_go(client: RawClient, group: bytes, traffic: Traffic) -> Intervals:
    """MOVING is added, meets at least one message, and is removed, again and again; he is out at the end."""
    intervals: Intervals = []
    for _ in range(CHANGES):
        joined = await change(client, group, GroupAdd)
        await traffic.one_behind(joined)
        intervals.append((joined, await change(client, group, GroupRemove)))
    traffic.moving = False
    return intervals


async def write_on(client: RawClient, group: bytes, traffic: Traffic) -> None:
    """Many messages with a window of twenty, for as long as the member comes and goes."""
    said: list[tuple[SendMessage, int]] = []
    count = 0
    while said or traffic.moving or count < SENDS:
        if (traffic.moving or count < SENDS) and len(said) < SENDS_AT_ONCE:
            frame = message(CANARY, conversation_id=group)
            said.append((frame, client.say(frame)))
            count += 1
        else:
            traffic.acked(await client.answered(*said.pop(0), SendAck))


def test_a_thousand_sends_while_a_member_comes_and_goes(served: Served) -> None:
    """His mailbox and his history hold exactly what lies in his intervals (BR-046, BR-050)."""

    async def main() -> None:
        async with (
            await RawClient.log_in(served.target, CREATOR) as creator,
            await RawClient.log_in(served.target, WRITER) as writer,
            await RawClient.log_in(served.target, WITNESS) as witness,
            await RawClient.log_in(served.target, MOVING) as moving,
        ):
            group = (await creator.create_group((WRITER, WITNESS))).conversation_id
            traffic = Traffic()
            _, intervals = await asyncio.gather(
                write_on(writer, group, traffic), come_and_go(creator, group, traffic)
            )
            marks = list(itertools.chain.from_iterable(intervals))
            assert marks == sorted(set(marks))
            refused = await moving.refused(message(CANARY, conversation_id=group))
            assert refused.code == ErrorCode.NOT_MEMBER
            everything = await witness.pull_until(
                max(traffic.acks, key=lambda one: one.conversation_seq).message_id
            )
            if everything[-1].conversation_seq < marks[-1]:
                everything += await witness.pull_until(await last_of(creator, group))
            visible = {
                one.message_id: one.conversation_seq
                for one in everything
                if any(low <= one.conversation_seq <= high for low, high in intervals)
            }
            at = {one.conversation_seq: one.message_id for one in everything}
            got = await moving.pull_until(at[marks[-1]])
            assert {one.message_id: one.conversation_seq for one in got} == visible
            assert len(visible) >= 3 * CHANGES, "each time a message must have met him as a member"
            assert len(visible) < len(everything)
            rows = await moving.history(group)
            assert {one.message_id: one.conversation_seq for one in rows} == visible
            async with await RawClient.log_in(served.target, MOVING, device=b"new") as fresh:
                again = await fresh.pull_until(at[marks[-1]])
                assert [one.message_id for one in again] == [one.message_id for one in got]

    asyncio.run(main())


async def last_of(client: RawClient, group: bytes) -> bytes:
    return (await client.history(group))[-1].message_id


def test_added_while_offline_and_left_for_good(served: Served) -> None:
    """He finds conversation and messages as he comes online; after leaving, nothing more; back again, no gap filled."""

    async def main() -> None:
        async with await RawClient.log_in(served.target, CREATOR) as creator:
            group = (await creator.create_group((WRITER,))).conversation_id
            before = await creator.send(CANARY, conversation_id=group)
            await change(creator, group, GroupAdd)
            sent = [await creator.send(CANARY, conversation_id=group) for _ in range(3)]
            async with await RawClient.log_in(served.target, MOVING, device=b"late") as moving:
                got = await moving.pull_until(sent[-1].message_id)
                mine = [one for one in got if one.conversation_id == group]
                assert [one.kind for one in mine] == [3, 1, 1, 1]
                assert before.message_id not in {one.message_id for one in mine}
                leave = LeaveGroup(
                    client_message_id=new_key(), not_after=soon(), conversation_id=group
                )
                await moving.ask(leave, GroupOk)
                unseen = await creator.send(CANARY, conversation_id=group)
                await change(creator, group, GroupAdd)
                again = await creator.send(CANARY, conversation_id=group)
                later = await moving.pull_until(again.message_id)
                assert [one.kind for one in later] == [3, 3, 1]
                rows = [one.message_id for one in await moving.history(group)]
                assert unseen.message_id not in rows
                assert before.message_id not in rows
                assert [again.message_id] == rows[-1:]
                await moving.send(CANARY, conversation_id=group)

    asyncio.run(main())
