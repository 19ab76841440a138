"""What a smoke check is given: users nobody else uses, their clients and raw connections, and a server to look at."""

import asyncio
import secrets
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from msgspec import Struct

from qim.cli.smoke.wire import Wire
from qim.client import Client, ClientTls, SendStatus, Sent
from qim.core.ports.local_store import Coordinates, LocalMessage

STEP_SECONDS_MAX: Final = 15.0
USER_BITS: Final = 62


class Skipped(Exception):
    """This check can't be made here; the text says what it needs."""


class Grounds(Struct, frozen=True, kw_only=True):
    """The server under test. ``sign(user_id, expires_in_ms)`` is None where only one token is known.

    ``metrics``: operator's endpoints of every process; empty where none is known.
    """

    address: str
    metrics: tuple[str, ...]
    tenant_id: str
    sign: Callable[[int, int], str] | None
    token: str | None
    token_user: int
    tls: ClientTls | None = None

    def __repr__(self) -> str:
        return f"Grounds({self.address})"  # never the token


class Person:
    """A user with as many devices as a check wants."""

    def __init__(self, stage: "Stage", user_id: int, token: str) -> None:
        self._stage = stage
        self.user_id = user_id
        self.token = token

    async def device(self, name: str = "", *, connect: bool = True) -> Client:
        """A device of its own with an empty local store; ONLINE unless told otherwise."""
        device_id = (name or secrets.token_hex(8)).encode()
        client = Client(
            user_id=self.user_id,
            access_token=self.token,
            addresses=(self._stage.grounds.address,),
            store_path=self.store_path(device_id),
            device_id=device_id,
            tenant_id=self._stage.grounds.tenant_id,
            tls=self._stage.grounds.tls,
        )
        await self._stage.stack.enter_async_context(client)
        self._stage.clients.append(client)
        if connect:
            await client.online(STEP_SECONDS_MAX)
        return client

    def store_path(self, device_id: bytes) -> Path:
        """The file of a device."""
        return self._stage.folder / f"{self.user_id}-{device_id.hex()}.db"

    async def wire(self, device_id: bytes | None = None) -> Wire:
        """A raw connection, ONLINE."""
        wire = await self._stage.wire()
        await wire.enter(self.token, device_id or secrets.token_bytes(8))
        return wire


class Stage:
    """One check's own; everything is closed at its end."""

    def __init__(self, grounds: Grounds) -> None:
        self.grounds = grounds
        self.stack = AsyncExitStack()
        self.folder = Path()
        self.clients: list[Client] = []
        self._users = 0

    async def __aenter__(self) -> "Stage":
        folder = tempfile.TemporaryDirectory(prefix="qim-smoke-")
        self.folder = Path(self.stack.enter_context(folder))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stack.aclose()

    def judge_devices(self) -> None:
        """Raises AssertionError where a device saw an invariant broken: only a client can see a cursor that a push moved."""
        found = [str(one) for client in self.clients for one in client.violations]
        assert not found, f"a device's own checks fired: {found}"

    def person(self) -> Person:
        """A user that never was before. Raises Skipped where tokens can't be signed and one user was given."""
        self._users += 1
        sign, token = self.grounds.sign, self.grounds.token
        if sign is not None:
            user_id = secrets.randbits(USER_BITS) | 1 << USER_BITS
            return Person(self, user_id, sign(user_id, 3_600_000))
        if self._users > 1 or token is None:
            raise Skipped(
                "needs several users: give --data DIR or $QIM_AUTH_SECRET, so that tokens can be signed"
            )
        return Person(self, self.grounds.token_user, token)

    def people(self, count: int) -> list[Person]:
        """Several of them."""
        return [self.person() for _ in range(count)]

    async def wire(self) -> Wire:
        """A raw connection on which nothing was said."""
        wire = await Wire.open(self.grounds.address, self.grounds.tls)
        self.stack.push_async_callback(wire.close)
        return wire


class Check(Struct, frozen=True, kw_only=True):
    """A named check; it holds when ``run`` returns."""

    name: str
    run: Callable[[Stage], Awaitable[None]]


def acked(sent: Sent) -> Coordinates:
    """Where a send that must be ACKED stands."""
    assert sent.status is SendStatus.ACKED, f"not acked: {sent.status} {sent.code}"
    assert sent.coordinates is not None
    return sent.coordinates


async def take(client: Client, wanted: int) -> list[LocalMessage]:
    """Messages in order of arrival until ``wanted`` came; those of membership changes are among them."""
    found: list[LocalMessage] = []
    async with asyncio.timeout(STEP_SECONDS_MAX):
        async for message in client.messages():
            found.append(message)
            if len(found) == wanted:
                break
    return found


def texts(messages: list[LocalMessage]) -> list[str]:
    """The bodies of text messages."""
    return [(message.body or b"").decode() for message in messages if message.kind == 1]
