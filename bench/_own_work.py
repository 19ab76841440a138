"""What a role does beside carrying messages, timed after its kill: lists, the archive, audits.

The lanes of _recovery.py send all the while; what is looked for is always the first message of each that was DUE after the
kill, so that a shard or partition nobody serves is seen.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from qim.adapters.cassandra import CassandraArchive
from qim.adapters.cassandra.settings import settings_from
from qim.adapters.rpc.admin import AuditorUnreachable
from qim.adapters.start_refused import StartRefused
from qim.core.contract.frames import PullSessionList, SessionListBatch
from qim.core.ports.archive import ArchiveRead, ReadArchive
from qim.core.ports.local_store import Coordinates
from tests.integration.cluster.cluster import Cluster
from tests.integration.raw_client import RawClient

LOOK_SECONDS: Final = 0.05
ANSWER_SECONDS_MAX: Final = 10.0


class Lanes(Protocol):
    """As _recovery.py has them."""

    async def placed(self, killed_at: float) -> dict[int, Coordinates]:
        """user who receives → where the first message due after the kill stands; each lane has one."""


OwnWork = Callable[[Cluster, Lanes, float], Awaitable[float]]
"""Seconds after ``killed_at`` (monotonic) until the last of it was done again."""


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    while not await holds():  # noqa: ASYNC110 - asked of servers: nothing tells
        await asyncio.sleep(LOOK_SECONDS)


async def listed_again(cluster: Cluster, lanes: Lanes, killed_at: float) -> float:
    """Every receiver's conversation list has the message, by the session projection alone."""

    async def listed(user: int, at: Coordinates) -> None:
        async with await RawClient.log_in(cluster.target, user, device=b"lists") as client:
            await _until(partial(_lists, client, at))

    async with asyncio.TaskGroup() as tasks:
        for user, at in (await lanes.placed(killed_at)).items():
            tasks.create_task(listed(user, at))
    return time.monotonic() - killed_at


async def _lists(client: RawClient, at: Coordinates) -> bool:
    answer = await client.answer(client.say(PullSessionList(revision=0, after=None, limit=0)))
    if not isinstance(answer, SessionListBatch):
        return False
    return any(
        entry.conversation_id == at.conversation_id
        and entry.last_activity_id >= at.last_activity_id
        for entry in answer.conversations
    )


async def archived_again(cluster: Cluster, lanes: Lanes, killed_at: float) -> float:
    """A row of each message stands in the archive."""
    loop = asyncio.get_running_loop()
    archive = CassandraArchive(settings_from(cluster.settings()), loop)
    placed = await lanes.placed(killed_at)
    while True:
        try:
            await archive.start()
            break
        except StartRefused:  # it is what was killed
            await asyncio.sleep(LOOK_SECONDS)
    try:
        for at in placed.values():
            await _until(partial(_has, archive, at))
    finally:
        await archive.close()
    return time.monotonic() - killed_at


async def _has(archive: CassandraArchive, at: Coordinates) -> bool:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    seq = at.conversation_seq
    request = ReadArchive(
        op=0,
        conversation_id=at.conversation_id,
        low=seq - 1,
        high=seq + 1,
        newest_first=False,
        limit=1,
    )
    archive.submit(request, answered.set_result)
    read = await asyncio.wait_for(answered, ANSWER_SECONDS_MAX)
    return isinstance(read, ArchiveRead) and bool(read.stored)


async def audited_again(cluster: Cluster, lanes: Lanes, killed_at: float) -> float:
    """The other auditor holds all coverage, and an audit that it began then has come to its end."""
    (other,) = [one for one in cluster.roles("auditor") if one.alive]

    async def holds() -> bool:
        return await asyncio.to_thread(other.metric, "qim_leases_held", other.role) == 1

    async def audited() -> bool:
        try:
            await asyncio.to_thread(cluster.audited, other.name)
        except AuditorUnreachable:
            return False
        return True

    await _until(holds)
    await _until(audited)
    return time.monotonic() - killed_at


OWN_WORK: Final[dict[str, OwnWork]] = {
    "session": listed_again,
    "archiver": archived_again,
    "auditor": audited_again,
    "cassandra": archived_again,
}
