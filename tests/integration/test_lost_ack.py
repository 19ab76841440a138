"""An answer that never arrives: the same key again is the same message, ever; another content or sender is not."""

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec

from qim.client import Client, SendStatus, Sent
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import CreateGroup, Error, GroupOk, SendAck, SendMessage
from qim.core.contract.wire import RawFrame
from tests.integration.cutting_proxy import cutting_proxy
from tests.integration.raw_client import (
    NO_TIME,
    PATIENCE_SECONDS,
    Bystanders,
    RawClient,
    Target,
    message,
    new_key,
    soon,
    token,
)
from tests.integration.served import CANARY, Served

SENDER, PEER, THIRD = 401, 402, 403
RESENDS = 20
BURST = 5_000
BURST_CONVERSATIONS = 10


class FirstAck:
    """Swallows the first SEND_ACK (or GROUP_OK) that passes and lets all others through."""

    def __init__(self, opcode: int) -> None:
        self.opcode = opcode
        self.swallowed = 0

    def __call__(self, raw: RawFrame) -> bool:
        if raw.opcode != self.opcode or self.swallowed:
            return False
        self.swallowed += 1
        return True


async def lose_the_answer(
    target: Target, frame: SendMessage | CreateGroup, kind: type[Any]
) -> None:
    """Send through a proxy that swallows the answer and cuts: the server did it, the sender doesn't know."""
    swallow = FirstAck(kind.OPCODE)
    async with (
        cutting_proxy(target.tcp, swallow) as through,
        await RawClient.log_in(Target(through, target.secret), SENDER) as client,
    ):
        client.say(frame)
        heard = []
        while (one := await client.hear()) is not None:
            heard.append(one)
            if isinstance(one.frame, Error) and one.frame.code in NO_TIME:
                client.say(frame)
        assert swallow.swallowed == 1
        assert not any(isinstance(one.frame, SendAck | GroupOk) for one in heard)


def test_a_lost_ack_and_twenty_resends_are_one_message(served: Served) -> None:
    """One message_id and seq, one entry a member, one history row (BR-001)."""

    async def main() -> None:
        target = served.target
        async with (
            Bystanders.of(target) as others,
            await RawClient.log_in(target, PEER) as peer,
            await RawClient.log_in(target, THIRD) as third,
            await RawClient.log_in(target, SENDER, device=b"other") as own,
        ):
            group = (await own.create_group((PEER, THIRD))).conversation_id
            sent = message(CANARY, conversation_id=group)
            await lose_the_answer(target, sent, SendAck)
            acks = []
            for _ in range(RESENDS):
                async with await RawClient.log_in(target, SENDER) as again:
                    acks.append(await again.ask(sent, SendAck))
            assert acks == [acks[0]] * RESENDS
            for member in (peer, third, own):
                entries = await member.pull_until(acks[0].message_id)
                assert [one.body for one in entries if one.kind == 1] == [CANARY]
            rows = [one for one in await peer.history(group) if one.kind == 1]
            assert [(one.message_id, one.conversation_seq) for one in rows] == [
                (acks[0].message_id, acks[0].conversation_seq)
            ]
            # The next message is the next entry: the resends used up nothing.
            ack = await own.send(CANARY, conversation_id=group)
            assert [one.message_id for one in await peer.pull_until(ack.message_id)] == [
                ack.message_id
            ]
            await others.go_on()

    asyncio.run(main())


def test_resends_that_overtake_the_first_attempt(served: Served) -> None:
    """Twenty at once, from one socket: they share one commit."""

    async def main() -> None:
        async with (
            await RawClient.log_in(served.target, SENDER) as client,
            await RawClient.log_in(served.target, PEER) as peer,
        ):
            await peer.pull()
            sent = message(CANARY, peer_user_id=PEER)
            requests = [client.say(sent) for _ in range(RESENDS)]
            answers = [await client.answer(request) for request in requests]
            acks = [one for one in answers if isinstance(one, SendAck)]
            assert acks
            assert acks == [acks[0]] * len(acks)
            # Beyond sixteen waiters of one commit the others are told to come again.
            late = [one.code for one in answers if not isinstance(one, SendAck)]  # type: ignore[union-attr]
            assert set(late) <= {ErrorCode.RATE_LIMITED, *NO_TIME}
            assert [one.body for one in await peer.pull_until(acks[0].message_id)] == [CANARY]

    asyncio.run(main())


def test_a_lost_group_ok_and_its_resends_are_one_group(served: Served) -> None:
    async def main() -> None:
        create = CreateGroup(client_message_id=new_key(), not_after=soon(), members=(PEER,))
        async with await RawClient.log_in(served.target, PEER) as peer:
            await peer.pull()
            await lose_the_answer(served.target, create, GroupOk)
            async with await RawClient.log_in(served.target, SENDER) as again:
                oks = [await again.ask(create, GroupOk) for _ in range(RESENDS)]
                assert oks == [oks[0]] * RESENDS
                ack = await again.send(CANARY, conversation_id=oks[0].conversation_id)
            entries = await peer.pull_until(ack.message_id)
            assert [one.conversation_id for one in entries] == [oks[0].conversation_id] * 2
            assert [one.kind for one in entries] == [3, 1]

    asyncio.run(main())


def test_the_same_key_for_something_else(served: Served) -> None:
    """Another body, conversation, kind or operation: a conflict. Another sender: a message of his own (BR-003)."""

    async def main() -> None:
        async with (
            await RawClient.log_in(served.target, SENDER) as client,
            await RawClient.log_in(served.target, THIRD) as other,
            await RawClient.log_in(served.target, PEER) as peer,
        ):
            await peer.pull()
            sent = message(CANARY, peer_user_id=PEER)
            ack = await client.ask(sent, SendAck)
            replace = msgspec.structs.replace
            for changed in (
                replace(sent, body=CANARY + b"!"),
                replace(sent, custom_type="t"),
                replace(sent, kind=2),
                replace(sent, peer_user_id=THIRD),
            ):
                error = await client.refused(changed)
                assert error.code == ErrorCode.IDEMPOTENCY_CONFLICT, changed
                assert error.client_message_id == sent.client_message_id
            # not_after is no content: a retry may come on a connection with another clock.
            assert await client.ask(replace(sent, not_after=sent.not_after + 1), SendAck) == ack
            theirs = await other.ask(sent, SendAck)
            assert theirs.message_id != ack.message_id
            entries = await peer.pull_until(theirs.message_id)
            assert [one.sender_id for one in entries] == [SENDER, THIRD]

    asyncio.run(main())


class CutAt:
    """Swallows the answers with these numbers, cutting each time."""

    def __init__(self, numbers: list[int]) -> None:
        self.left = sorted(numbers)
        self._seen = 0

    def __call__(self, raw: RawFrame) -> bool:
        self._seen += raw.opcode == SendAck.OPCODE
        if self.left and self._seen >= self.left[0]:
            self.left.pop(0)
            return True
        return False


async def burst(served: Served, tcp: str, store: Path) -> dict[bytes, list[tuple[bytes, Sent]]]:
    """5,000 sends handed to one client at once, round and round over ten groups; what it said of each."""
    async with Client(
        user_id=SENDER,
        access_token=token(served.target.secret, SENDER),
        addresses=(tcp,),
        device_id=b"burst",
        store_path=store,
    ) as client:
        await client.online(PATIENCE_SECONDS)
        groups = [
            (await client.create_group((PEER,), f"burst {number}")).conversation_id
            for number in range(BURST_CONVERSATIONS)
        ]
        sends: list[tuple[bytes, bytes, asyncio.Task[Sent]]] = []
        for number in range(BURST):
            group = groups[number % BURST_CONVERSATIONS]
            body = CANARY + b" %d" % number
            send = client.send(body, conversation_id=group, timeout=300)
            sends.append((group, body, asyncio.create_task(send)))
        results: dict[bytes, list[tuple[bytes, Sent]]] = {group: [] for group in groups}
        for group, body, task in sends:
            results[group].append((body, await task))
    return results


def test_five_thousand_unpaced_sends_on_sockets_that_are_cut(
    served: Served, tmp_path: Path
) -> None:
    """What the device calls sent is what the server has, in the order it was sent in (BR-004)."""

    async def main() -> None:
        cut_at = CutAt(random.Random(20261129).sample(range(100, BURST - 100), 6))
        async with cutting_proxy(served.tcp, cut_at) as through:
            results = await burst(served, through, tmp_path / "burst.db")
        assert cut_at.left == []
        async with await RawClient.log_in(served.target, PEER) as peer:
            for group, sends in results.items():
                assert {sent.status for _, sent in sends} == {SendStatus.ACKED}
                history = [one for one in await peer.history(group) if one.kind == 1]
                assert [one.body for one in history] == [body for body, _ in sends]
                acked = [sent.coordinates for _, sent in sends if sent.coordinates is not None]
                assert [(one.conversation_seq, one.message_id) for one in history] == [
                    (one.conversation_seq, one.message_id) for one in acked
                ]

    asyncio.run(main())
