"""Users that write to each other through the SDK while a test does harm, and the proof afterwards that nothing was lost.

Acked is what ``Client.send`` returned as ACKED; delivered is what a NEW device of each user pulls from the server alone.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from qim.client import Client, SendStatus, Sent
from qim.core.client import ClientConfig
from qim.core.contract.params import DEFAULT
from qim.core.ports.local_store import LocalMessage
from tests.integration.raw_client import PATIENCE_SECONDS, Target, token
from tests.integration.served import CANARY
from tests.integration.up_process import run_qim

USERS_COUNT = 4
QUICK_HEARTS = replace(DEFAULT, heartbeat_ms=5_000)
"""A server that sleeps is noticed in seconds, not in a minute."""
SENDS_INFLIGHT = 4
SETTLE_SECONDS = 240.0


class Loaded(Protocol):
    """What can be put under load: an embedded server, or a cluster."""

    @property
    def target(self) -> Target: ...

    @property
    def addresses(self) -> tuple[str, ...]: ...

    def audited(self) -> dict[str, Any]: ...


class Load:
    """Each user writes to the next one in turn, and one lane of each to the group of all.

    Loads of one server after another need users of their own: ``first_user`` and the three behind.
    """

    def __init__(self, served: Loaded, stores: Path, first_user: int = 1) -> None:
        self.users = tuple(range(first_user, first_user + USERS_COUNT))
        self._served = served
        self._stores = stores
        self._stop = asyncio.Event()
        self._acked_one = asyncio.Event()
        self.acked: dict[str, Sent] = {}
        self._by_lane: Counter[tuple[int, int]] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        """Under way until the block ends, and then until every send begun has been acked."""
        async with AsyncExitStack() as open_clients:
            clients = [
                await open_clients.enter_async_context(self._client(user, "load"))
                for user in self.users
            ]
            for client in clients:
                await client.online(PATIENCE_SECONDS)
            group = (await clients[0].create_group(self.users, "everyone")).conversation_id
            async with asyncio.TaskGroup() as tasks:
                for user, client in zip(self.users, clients, strict=True):
                    for lane in range(SENDS_INFLIGHT):
                        target = group if lane == 0 else None
                        tasks.create_task(self._lane(client, user, lane, target))
                try:
                    yield self
                finally:
                    self._stop.set()

    async def acks(self, count: int = 1) -> None:
        """Wait until so many more sends were acked: the server is at work now."""
        wanted = len(self.acked) + count
        async with asyncio.timeout(SETTLE_SECONDS):
            while len(self.acked) < wanted:
                self._acked_one.clear()
                await self._acked_one.wait()

    async def every_lane(self, count: int = 2) -> None:
        """Wait until every lane had so many more sends acked: whatever conversation it writes to is served."""
        wanted = {lane: self._by_lane[lane] + count for lane in self._lanes()}
        async with asyncio.timeout(SETTLE_SECONDS):
            while any(self._by_lane[lane] < least for lane, least in wanted.items()):
                await self.acks()

    def _lanes(self) -> list[tuple[int, int]]:
        return [(user, lane) for user in self.users for lane in range(SENDS_INFLIGHT)]

    async def check(self, device: str = "fresh") -> None:
        """Every acked message once in each recipient's mailbox, in order; the orphan audit CLEAN.

        ``device`` is one that nobody has used before: one that has pulled is owed nothing of it again.
        """
        for user in self.users:
            self._check_theirs(user, await self._whole(user, device))
        # Now nothing is under way: what another new device gets comes by pull alone, in the mailbox's own order. On the
        # first one a push may have overtaken the pull (take_new tells in order of arrival).
        for user in self.users:
            self._check_mailbox(user, await self._whole(user, f"{device}-after"))
        report = await self._audited()
        assert report["verdict"] == "CLEAN", report
        assert report["orphans"] == []

    async def _audited(self) -> dict[str, Any]:
        """INCOMPLETE may only mean that a consumer is a moment behind: again, for as long as anything is waited for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS
        while True:
            report = await asyncio.to_thread(self._served.audited)
            if report["verdict"] != "INCOMPLETE" or loop.time() > deadline:
                return report
            await asyncio.sleep(0.2)

    async def _whole(self, user: int, device: str) -> list[LocalMessage]:
        async with self._client(user, device) as fresh:
            await fresh.online(PATIENCE_SECONDS)
            return await self._drained(user, fresh)

    async def _drained(self, user: int, fresh: Client) -> list[LocalMessage]:
        """What a new device gets, once it has got what was acked; the last of it may still be on its way."""
        missing = {text for text in self.acked if self._concerns(user, text)}
        got: list[LocalMessage] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                await fresh.sync(timeout=PATIENCE_SECONDS)
                while batch := await fresh.take_new():
                    got += [one for one in batch if one.kind == 1]
                missing -= {one.body.decode() for one in got if one.body is not None}
                if not missing:
                    return got
                await asyncio.sleep(0.05)

    def _client(self, user: int, device: str) -> Client:
        access_token = token(self._served.target.secret, user)
        addresses = self._served.addresses
        return Client(
            user_id=user,
            access_token=access_token,
            addresses=addresses,
            store_path=self._stores / f"{user}-{device}.db",
            device_id=device.encode(),
            config=ClientConfig(
                user_id=user,
                device_id=device.encode(),
                access_token=access_token,
                addresses=addresses,
                parameters=QUICK_HEARTS,
                dead_peer_ms=2 * QUICK_HEARTS.heartbeat_ms,
            ),
            tls=getattr(self._served, "tls", None),
        )

    async def _lane(self, client: Client, user: int, lane: int, group: bytes | None) -> None:
        peer = self._next(user)
        number = 0
        while not self._stop.is_set():
            number += 1
            text = f"{CANARY.decode()} {user}.{lane}-{number}"
            if group is None:
                sent = await client.send(text, to=peer, timeout=SETTLE_SECONDS)
            else:
                sent = await client.send(text, conversation_id=group, timeout=SETTLE_SECONDS)
            assert sent.status is SendStatus.ACKED, (text, sent)
            self.acked[text] = sent
            self._by_lane[user, lane] += 1
            self._acked_one.set()

    def _check_mailbox(self, user: int, got: list[LocalMessage]) -> None:
        texts = self._check_theirs(user, got)
        last: dict[bytes, int] = {}
        for one, text in zip(got, texts, strict=True):
            assert one.conversation_seq > last.get(one.conversation_id, 0), "out of order"
            last[one.conversation_id] = one.conversation_seq
            if text in self.acked:
                coordinates = self.acked[text].coordinates
                assert coordinates is not None
                assert (one.message_id, one.conversation_seq) == (
                    coordinates.message_id,
                    coordinates.conversation_seq,
                )

    def _check_theirs(self, user: int, got: list[LocalMessage]) -> list[str]:
        """Each once, and nothing that was meant for others; the texts."""
        texts = [one.body.decode() for one in got if one.body is not None]
        assert len(texts) == len(set(texts)) == len(got), "a message stands twice in one mailbox"
        strangers = [text for text in texts if not self._concerns(user, text)]
        assert not strangers, f"user {user} sees what was not for them: {strangers[:5]}"
        return texts

    def _next(self, user: int) -> int:
        return self.users[(user - self.users[0] + 1) % len(self.users)]

    def _concerns(self, user: int, text: str) -> bool:
        sender, _, rest = text.split(" ")[1].partition(".")
        lane = rest.partition("-")[0]
        return lane == "0" or int(sender) == user or self._next(int(sender)) == user


def audit(data: Path) -> str:
    """The audit command's JSON, which says CLEAN; INCOMPLETE may only mean that a consumer is a moment behind."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        said = run_qim("audit", "--data", str(data), "--json", or_else=4)
        if '"INCOMPLETE"' not in said or time.monotonic() > deadline:
            assert '"CLEAN"' in said, said
            return said
