"""How long until messages flow again after SIGKILL: devices of the SDK that send all the while, each ack and arrival timed.

A lane is one user writing to the next. Recovered is a lane when a message that was DUE after the kill is acked (``ack_s``)
and has arrived at the other user (``end_s``); the figure is that of the last lane, so a shard nobody serves is seen. Where
a role does something else than carry messages, ``own_s`` is when that was done again for the last lane (_own_work.py).
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from _own_work import OWN_WORK

from qim.client import Client, SendStatus
from qim.core.ports.local_store import Coordinates
from tests.integration.cluster.cluster import PARTITIONS, SHARDS, Cluster
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.raw_client import token

LANES: Final = 12
PAUSE_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 180.0
CALM_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 0.05
LEASED: Final = {
    "writer": PARTITIONS,
    "fanout": PARTITIONS,
    "mailbox": SHARDS,
    "session": SHARDS,
    "archiver": PARTITIONS,
    "auditor": 1,
}


_first_users = itertools.count(50_100, 100)
"""Of a cluster that lives on from round to round: who was told something before is told it again on a new device."""


class Lanes:
    """Open loop: a message every ``PAUSE_SECONDS`` a lane, whatever became of those before."""

    def __init__(self, cluster: Cluster, folder: Path, first_user: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._users = tuple(range(first_user, first_user + LANES))
        self._stop = asyncio.Event()
        self.due: dict[tuple[int, int], float] = {}
        self.acked: dict[tuple[int, int], float] = {}
        self.arrived: dict[tuple[int, int], float] = {}
        self._stands: dict[tuple[int, int], Coordinates] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Lanes"]:
        """Until the block ends; then every send has been acked, or PATIENCE_SECONDS have passed."""
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(self._client(u)) for u in self._users]
            for client in clients:
                await client.online(PATIENCE_SECONDS)
            reading = [asyncio.create_task(self._read(c)) for c in clients]
            async with asyncio.TaskGroup() as sends:
                for lane, client in enumerate(clients):
                    sends.create_task(self._write(lane, client, sends))
                try:
                    yield self
                finally:
                    self._stop.set()
            for task in reading:
                task.cancel()

    async def recovered(self, killed_at: float) -> dict[str, float]:
        """Seconds after ``killed_at`` until the last lane was served again. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                first = [self._first(times, killed_at) for times in (self.acked, self.arrived)]
                if all(len(of) == LANES for of in first):
                    ack, end = (max(of.values()) - killed_at for of in first)
                    return {"ack_s": ack, "end_s": end}
                await asyncio.sleep(LOOK_SECONDS)

    async def placed(self, killed_at: float) -> dict[int, Coordinates]:
        """user who receives → where the first message due after the kill stands, once each lane has one."""
        while True:
            first: dict[int, tuple[int, int]] = {}
            for at in sorted(self._stands):
                if self.due[at] > killed_at:
                    first.setdefault(at[0], at)
            if len(first) == LANES:
                return {self._peer(lane): self._stands[at] for lane, at in first.items()}
            await asyncio.sleep(LOOK_SECONDS)

    def _peer(self, lane: int) -> int:
        return self._users[(lane + 1) % LANES]

    def _first(self, times: dict[tuple[int, int], float], after: float) -> dict[int, float]:
        found: dict[int, float] = {}
        for (lane, number), at in times.items():
            if self.due[lane, number] > after and at < found.get(lane, float("inf")):
                found[lane] = at
        return found

    async def _write(self, lane: int, client: Client, sends: asyncio.TaskGroup) -> None:
        peer, number = self._peer(lane), 0
        while not self._stop.is_set():
            number += 1
            self.due[lane, number] = time.monotonic()
            sends.create_task(self._send(client, peer, (lane, number)))
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send(self, client: Client, peer: int, at: tuple[int, int]) -> None:
        sent = await client.send(f"{at[0]} {at[1]}", to=peer, timeout=PATIENCE_SECONDS)
        if sent.status is SendStatus.ACKED:
            self.acked[at] = time.monotonic()
            assert sent.coordinates is not None
            self._stands[at] = sent.coordinates

    async def _read(self, client: Client) -> None:
        async for message in client.messages():
            if message.sender_id != client.config.user_id and message.kind == 1:
                lane, _, number = (message.body or b"").decode().partition(" ")
                self.arrived.setdefault((int(lane), int(number)), time.monotonic())

    def _client(self, user: int) -> Client:
        return Client(
            user_id=user,
            access_token=token(self._cluster.target.secret, user),
            addresses=self._cluster.addresses,
            store_path=self._folder / f"{user}.db",
            device_id=b"recovery",
        )


async def recoveries(
    cluster: Cluster, folder: Path, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """After the kill of one of two processes of each role, and of each server (started again at once)."""
    told: dict[str, dict[str, Any]] = {}
    for name, kill, mend in (*_of_roles(cluster), *_of_servers(cluster)):
        first_user = next(_first_users)
        stores = folder / f"{first_user}"
        stores.mkdir(parents=True)
        await _calm(cluster)
        async with Lanes(cluster, stores, first_user).running() as lanes:
            await lanes.recovered(time.monotonic())
            await asyncio.sleep(CALM_SECONDS)
            killed_at = await asyncio.to_thread(kill)
            mending = asyncio.ensure_future(mend(False))
            told[name] = await _figures(cluster, lanes, name, killed_at)
            await mending
            await mend(True)
        say(f"{name}: {told[name]}")
    return told


async def _figures(cluster: Cluster, lanes: Lanes, name: str, killed_at: float) -> dict[str, Any]:
    """None: not within PATIENCE_SECONDS."""
    told: dict[str, Any] = {"ack_s": None, "end_s": None, "own_s": None}
    own = OWN_WORK.get(name)
    async with asyncio.TaskGroup() as tasks:

        async def carried() -> None:
            with contextlib.suppress(TimeoutError):
                told.update(await lanes.recovered(killed_at))

        async def done() -> None:
            if own is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        told["own_s"] = await own(cluster, lanes, killed_at)

        tasks.create_task(carried())
        tasks.create_task(done())
    if own is None:
        del told["own_s"]
    return told


Kill = Callable[[], float]
"""When it was, by the monotonic clock."""
Mend = Callable[[bool], Awaitable[None]]
"""Called at once with False, and with True when the figures are taken."""


def _of_roles(cluster: Cluster) -> list[tuple[str, Kill, Mend]]:
    """The other process of the role takes over; the killed one comes back afterwards."""
    return [(role, *_killed(cluster, role)) for role in (*LEASED, "gateway")]


def _killed(cluster: Cluster, role: str) -> tuple[Kill, Mend]:
    """Of two that share by their names' chance: the one that holds more when the time has come."""
    victims: list[RoleProcess] = []

    def kill() -> float:
        held = {one.name: one.metric("qim_leases_held", role) for one in cluster.roles(role)}
        victim = max(cluster.roles(role), key=lambda one: held[one.name])
        victims.append(victim)
        killed_at = time.monotonic()
        victim.kill()
        return killed_at

    async def mend(after: bool) -> None:
        if after:
            await victims[0].started()

    return kill, mend


def _of_servers(cluster: Cluster) -> list[tuple[str, Kill, Mend]]:
    """Each comes back at once, as its supervisor would have it; its own start is part of the figure."""
    servers = {
        "redis messages": cluster.message_redis.process,
        "redis mailboxes": cluster.mailbox_redis.process,
        "kafka": cluster.kafka[0].process,
    }
    if cluster.etcd is not None:
        servers["etcd"] = cluster.etcd.process
    if cluster.cassandra is not None:
        servers["cassandra"] = cluster.cassandra.process

    def killed(name: str) -> tuple[Kill, Mend]:
        def kill() -> float:
            killed_at = time.monotonic()
            servers[name].kill()
            return killed_at

        async def mend(after: bool) -> None:
            if not after:
                servers[name].launch()
                await asyncio.to_thread(servers[name].wait_ready)

        return kill, mend

    return [(name, *killed(name)) for name in servers]


async def _calm(cluster: Cluster) -> None:
    """Everybody serves, and every lease is held."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await asyncio.to_thread(_serving, cluster):  # noqa: ASYNC110 - asked over HTTP: nothing tells
            await asyncio.sleep(0.2)


def _serving(cluster: Cluster) -> bool:
    held = dict.fromkeys(LEASED, 0.0)
    for process in cluster.processes.values():
        if process.get("/readyz")[0] != 200:
            return False
        if process.role in held:
            held[process.role] += process.metric("qim_leases_held", process.role)
    return all(held[role] == count for role, count in LEASED.items())
