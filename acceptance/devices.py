"""Devices of the SDK beside the load: few messages, but each with a real client's cursor, store and checks of its own."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from qim.client import Client, ClientTls, SendStatus
from qim.core.contract.params import DAY_MS
from qim.core.contract.tokens import AccessToken, sign_token

DEVICES: Final = 4
PAUSE_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 60.0


class DeviceLane:
    """Each user writes to the next one, a message a second, until ``stop`` is set; then everything acked must be here."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        secret: bytes,
        folder: Path,
        *,
        first_user: int,
        tls: ClientTls | None,
    ) -> None:
        self._addresses = addresses
        self._secret = secret
        self._folder = folder
        self._users = tuple(range(first_user, first_user + DEVICES))
        self._tls = tls
        self._owed: dict[int, set[bytes]] = {user: set() for user in self._users}
        self._got: dict[int, list[bytes]] = {user: [] for user in self._users}
        self._unsettled = 0
        self._acked = 0

    async def run(self, stop: asyncio.Event) -> dict[str, Any]:
        """acked, delivered, lost, doubled, unsettled, violations: as ``judge_devices`` wants them."""
        self._folder.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(self._client(user)) for user in self._users]
            for client in clients:
                await client.online(PATIENCE_SECONDS)
            async with asyncio.TaskGroup() as tasks:
                for place, client in enumerate(clients):
                    tasks.create_task(self._write(client, self._peer(place), stop))
            for user, client in zip(self._users, clients, strict=True):
                await self._read(user, client)
            violations = [str(one) for client in clients for one in client.violations]
        return {
            "acked": self._acked,
            "delivered": sum(map(len, self._got.values())),
            "lost": sum(len(self._owed[user] - set(self._got[user])) for user in self._users),
            "doubled": sum(len(got) - len(set(got)) for got in self._got.values()),
            "unsettled": self._unsettled,
            "violations": violations,
        }

    async def _write(self, client: Client, peer: int, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            sent = await client.send(f"{number}", to=peer, timeout=PATIENCE_SECONDS)
            if sent.status is SendStatus.ACKED and sent.coordinates is not None:
                self._acked += 1
                self._owed[peer].add(sent.coordinates.message_id)
            else:
                self._unsettled += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read(self, user: int, client: Client) -> None:
        """Until what is owed is here, or patience ends: then it is lost."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            await client.sync(PATIENCE_SECONDS)
            while batch := await client.take_new():
                self._got[user] += [one.message_id for one in batch]
            if self._owed[user] <= set(self._got[user]):
                return
            await asyncio.sleep(PAUSE_SECONDS)

    def _peer(self, place: int) -> int:
        return self._users[(place + 1) % len(self._users)]

    def _client(self, user: int) -> Client:
        expires_at = time.time_ns() // 1_000_000 + DAY_MS
        claims = AccessToken(
            tenant_id="default", user_id=user, device_id=None, expires_at=expires_at
        )
        return Client(
            user_id=user,
            access_token=sign_token(claims, self._secret),
            addresses=self._addresses,
            store_path=self._folder / f"{user}.db",
            device_id=b"acceptance",
            tls=self._tls,
        )
