"""kill -9 of `qim up` at any moment under load, twenty times over: nothing acknowledged is lost, doubled or reordered.

The real processes, the real protocol, the SDK on both sides. What counts as acked is what ``Client.send`` returned as
ACKED; what counts as delivered is what a NEW device of each user pulls afterwards from the server alone.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from qim.client import Client, SendStatus, Sent
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.ports.local_store import LocalMessage
from tests.integration.up_process import UpProcess, run_qim

KILLS = 20
USERS = (1, 2, 3, 4)
SENDS_INFLIGHT = 8
SETTLE_SECONDS = 240.0


def client(server: UpProcess, secret: bytes, user: int, device: str, stores: Path) -> Client:
    token = AccessToken(tenant_id="default", user_id=user, device_id=None, expires_at=2**45)
    return Client(
        user_id=user,
        access_token=sign_token(token, secret),
        addresses=(server.tcp,),
        store_path=stores / f"{user}-{device}.db",
        device_id=device.encode(),
    )


async def send_until(
    stop: asyncio.Event,
    send: Callable[[str], Awaitable[Sent]],
    name: str,
    acked: list[tuple[str, Sent]],
) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        text = f"{name}-{number}"
        sent = await send(text)
        assert sent.status is SendStatus.ACKED, (text, sent)
        acked.append((text, sent))


async def drain(device: Client) -> list[LocalMessage]:
    await device.sync(timeout=60)
    taken: list[LocalMessage] = []
    while batch := await device.take_new():
        taken.extend(batch)
    return taken


async def under_load(
    server: UpProcess, secret: bytes, stores: Path
) -> dict[int, list[tuple[str, Sent]]]:
    """Four users write to each other and to a group while the server is killed again and again."""
    acked: dict[int, list[tuple[str, Sent]]] = {user: [] for user in USERS}
    clients = [client(server, secret, user, "load", stores) for user in USERS]
    for one in clients:
        await one.__aenter__()
        await one.online(30)
    group = (await clients[0].create_group(USERS, "everyone")).conversation_id
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for user, one in zip(USERS, clients, strict=True):
            peer = USERS[user % len(USERS)]
            for lane in range(SENDS_INFLIGHT):

                async def send(
                    text: str, one: Client = one, peer: int = peer, to_group: bool = lane == 0
                ) -> Sent:
                    if to_group:
                        return await one.send(text, conversation_id=group, timeout=SETTLE_SECONDS)
                    return await one.send(text, to=peer, timeout=SETTLE_SECONDS)

                tasks.create_task(send_until(stop, send, f"{user}.{lane}", acked[user]))
        dice = random.Random(20261129)
        for _ in range(KILLS):
            before = sum(map(len, acked.values()))
            # The kill must hit a server at work: wait until it acked something, then at any moment after.
            while sum(map(len, acked.values())) <= before:  # noqa: ASYNC110 - the lists are the only sign
                await asyncio.sleep(0.01)
            await asyncio.sleep(dice.uniform(0.0, 0.4))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        stop.set()
    for one in clients:
        await one.close()
    return acked


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    server = UpProcess(tmp_path / "data")
    server.start()
    try:
        secret = (tmp_path / "data" / "secret").read_bytes()
        acked = asyncio.run(under_load(server, secret, tmp_path))
        everything = {text: sent for sends in acked.values() for text, sent in sends}
        assert len(everything) > KILLS, "the load must have been under way"
        asyncio.run(check_mailboxes(server, secret, tmp_path, everything))
        report = json.loads(run_qim("audit", "--data", str(tmp_path / "data"), "--json"))
        assert report["verdict"] == "CLEAN", report
        assert report["orphans"] == []
        assert server.stop() == 0
        stopped = json.loads(run_qim("audit", "--data", str(tmp_path / "data"), "--json"))
        assert stopped["verdict"] == "CLEAN", stopped
    finally:
        server.close()


async def check_mailboxes(
    server: UpProcess, secret: bytes, stores: Path, everything: dict[str, Sent]
) -> None:
    for user in USERS:
        async with client(server, secret, user, "fresh", stores) as fresh:
            await fresh.online(30)
            got = await drain(fresh)
        texts = [message.body.decode() for message in got if message.body and message.kind == 1]
        assert len(texts) == len(set(texts)), "a message stands twice in one mailbox"
        strangers = [text for text in texts if not concerns(user, text)]
        assert not strangers, f"user {user} sees what was not for them: {strangers[:5]}"
        expected = {text for text in everything if concerns(user, text)}
        missing = expected - set(texts)
        assert not missing, (
            f"user {user} lacks {len(missing)} acked messages: {sorted(missing)[:5]}"
        )
        for message in got:
            if message.body and message.kind == 1 and message.body.decode() in everything:
                coordinates = everything[message.body.decode()].coordinates
                assert coordinates is not None
                assert message.message_id == coordinates.message_id
                assert message.conversation_seq == coordinates.conversation_seq
        check_order(got)


def concerns(user: int, text: str) -> bool:
    """Lane 0 writes to the group of all; the others to the next user; a sender has a copy of its own."""
    sender, _, rest = text.partition(".")
    lane = rest.partition("-")[0]
    return lane == "0" or int(sender) == user or USERS[int(sender) % len(USERS)] == user


def check_order(got: list[LocalMessage]) -> None:
    """Within a conversation the mailbox brings messages in the order of conversation_seq."""
    last: dict[bytes, int] = {}
    for message in got:
        assert message.conversation_seq > last.get(message.conversation_id, 0), "out of order"
        last[message.conversation_id] = message.conversation_seq
