"""A real device of the workload: the product's own client driver and SQLite store, with a shadow that checkers can read.

Every order that the SQLite store has committed is carried out again on a ``Device`` of the simulator, and kept as a fact;
at the end the two must say the same (``differences``), so what is judged is what stands on the disk.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from qim.client.driver import ClientDriver, wall_ms
from qim.client.local_store import LocalStore
from qim.core.client.conversation import DELETED
from qim.core.client.vocabulary import ClientConfig, ClientNotice, OfflineWanted
from qim.core.contract.params import DAY_MS
from qim.core.contract.tokens import AccessToken, sign_token
from qim.core.ports.completion import Failed, Unknown
from qim.core.ports.local import Started
from qim.core.ports.local_store import (
    LocalConversation,
    LocalMessage,
    LocalStoreReply,
    LocalStoreRequest,
)
from qim.sim.cast import TENANT
from qim.sim.localstore import Device

MESSAGES_MAX: Final = 1_000_000


class LocalFact(Struct, frozen=True, kw_only=True):
    """The disk of ``device`` took an order at ``at`` ms of the run."""

    at: int
    device: str
    request: LocalStoreRequest
    answer: LocalStoreReply


class NoticeFact(Struct, frozen=True, kw_only=True):
    """``device`` told its user something at ``at`` ms of the run."""

    at: int
    device: str
    notice: ClientNotice


Fact = LocalFact | NoticeFact


class ShadowedDriver(ClientDriver):
    """Tells what the store has committed before the machine hears of it."""

    def __init__(
        self, *driving: Any, on_local: Callable[[LocalStoreRequest, Any], None], **more: Any
    ) -> None:
        super().__init__(*driving, **more)
        self._on_local = on_local

    def _ordered(self, orders: list[LocalStoreRequest], done: "Future[list[Any]]") -> None:
        if done.exception() is None:
            for order, reply in zip(orders, done.result(), strict=True):
                if not isinstance(reply, Failed | Unknown):
                    self._on_local(order, reply)
        super()._ordered(orders, done)


class Disk(Struct, frozen=True, kw_only=True):
    """What a device's SQLite store says; messages that the user deleted are left out."""

    pending: int
    messages: dict[bytes, LocalMessage]
    conversations: dict[bytes, LocalConversation]


class Hosted:
    """What the simulator's workload expects of a process with one machine: somebody to give commands to."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        self.take = take


class WallClock:
    """The machine's own."""

    def read(self, now: int) -> int:
        """Wall ms, whatever the run's time."""
        return wall_ms()


class RealDevice:
    """A node of the workload (``alive``, ``paused``, ``wall``, ``hosts``) and the device behind it."""

    def __init__(
        self,
        name: str,
        user_id: int,
        device_id: bytes,
        *,
        addresses: tuple[str, ...],
        secret: bytes,
        folder: Path,
        now: Callable[[], int],
        on_fact: Callable[[Fact], None],
        on_notice: Callable[[Device, ClientNotice], None],
    ) -> None:
        self.name = name
        self.shadow = Device(cast(Any, None), user_id, device_id, name)
        self.alive = True
        self.paused = False
        self.wall = WallClock()
        self.hosts = [Hosted(self.take)]
        self.died: Exception | None = None
        self.path = folder / f"{name}.db"
        claims = AccessToken(
            tenant_id=TENANT,
            user_id=user_id,
            device_id=None,
            expires_at=time.time_ns() // 1_000_000 + DAY_MS,
        )
        self._config = ClientConfig(
            user_id=user_id,
            device_id=device_id,
            access_token=sign_token(claims, secret),
            addresses=addresses,
            tenant_id=TENANT,
        )
        self._now = now
        self._on_fact = on_fact
        self._on_notice = on_notice
        self._driver: ShadowedDriver | None = None

    def start(self) -> None:
        """A (new) process over the same disk."""
        self._driver = ShadowedDriver(
            self._config,
            self.path,
            asyncio.get_running_loop(),
            self._noticed,
            self._fell,
            on_local=self._stored,
        )
        self._driver.post(Started(address="", wall=wall_ms()))

    def take(self, command: Any) -> None:
        """A command of the user."""
        assert self._driver is not None, f"{self.name} was not started"
        self._driver.post(command)

    async def stop(self) -> None:
        """Goodbye; what was ordered of the disk is finished."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.post(OfflineWanted())
            await asyncio.sleep(0)
            await driver.stop()

    async def kill(self) -> None:
        """As a phone whose battery goes: no goodbye."""
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.stop()

    def violations(self) -> list[str]:
        """What the machine found wrong with itself."""
        told = [str(self.died)] if self.died else []
        if self._driver is not None:
            told += [f"{one.check}: {one.detail}" for one in self._driver.violations]
        return told

    async def differences(self) -> list[str]:
        """Where disk and shadow disagree, in words; empty when the shadow may be judged instead of the disk."""
        assert self._driver is not None
        # Compared here, behind every order whose commit was told before the disk was read.
        return self.compare(await self._driver.on_store_thread(self._read_disk))

    def _read_disk(self, store: LocalStore) -> Disk:
        conversations = tuple(self.shadow.rows.conversations)
        return Disk(
            pending=store.pending_count(),
            messages={
                one.message_id: one
                for conversation_id in conversations
                for one in store.messages(conversation_id, MESSAGES_MAX)
            },
            conversations={one: store.conversation(one) for one in conversations},
        )

    def compare(self, disk: Disk) -> list[str]:
        """Both ways: what no fact put there, and what a fact put there and is gone."""
        shadow, found = self.shadow, []
        if disk.pending != len(shadow.pending):
            found.append(f"{disk.pending} pending on disk, {len(shadow.pending)} in facts")
        shown = {
            message_id: message
            for message_id, message in shadow.messages.items()
            if not shadow.rows.hidden[message_id] & DELETED
        }
        for message_id in sorted(disk.messages.keys() | shown.keys()):
            if disk.messages.get(message_id) != shown.get(message_id):
                found.append(f"message {message_id.hex()} differs")
        for conversation_id, row in disk.conversations.items():
            if row != shadow.rows.conversation(conversation_id):
                found.append(f"conversation {conversation_id.hex()[:8]} differs")
        return [f"{self.name}: {one}" for one in found]

    def _stored(self, request: LocalStoreRequest, answer: Any) -> None:
        self.shadow.take_order(request)
        self._on_fact(LocalFact(at=self._now(), device=self.name, request=request, answer=answer))

    def _noticed(self, notice: ClientNotice) -> None:
        self._on_fact(NoticeFact(at=self._now(), device=self.name, notice=notice))
        self._on_notice(self.shadow, notice)

    def _fell(self, error: Exception) -> None:
        self.died = error
