"""A hot store that comes back empty, over a log that no longer reaches back: the archive restores it (docs: pipeline §1.8)."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from qim.adapters.embedded.sqlite_log import SqliteLog
from qim.client import Client, SendStatus
from qim.core.contract.ids import single_conversation_id
from qim.core.ports.log import EndsRead, ReadEnds, Topic
from tests.integration.raw_client import PATIENCE_SECONDS
from tests.integration.served import Served
from tests.integration.test_archive import PARTITIONS, archived, client

CHAT = single_conversation_id("default", 1, 2)
MESSAGES = 30
KEPT = 3
"""Records of each outbox partition that retention leaves."""


async def with_users(
    served: Served, stores: Path, talk: Callable[[list[Client]], Awaitable[Any]]
) -> Any:
    """Users 1, 2, 3 online."""
    secret = (served.data / "secret").read_bytes()
    users = [client(served, secret, user, "restore", stores) for user in (1, 2, 3)]
    for one in users:
        await one.__aenter__()
        await one.online(PATIENCE_SECONDS)
    found = await talk(users)
    for one in users:
        await one.close()
    return found


async def fill(users: list[Client]) -> bytes:
    """A chat, and a group whose members come and go; the group's id."""
    one = users[0]
    group: bytes = (await one.create_group((1, 2), "friends", b"meta")).conversation_id
    for number in range(MESSAGES):
        assert (await one.send(f"chat {number}", to=2)).status is SendStatus.ACKED
        if number == 10:
            await one.add_members(group, (3,))
        if number == 20:
            await one.remove_members(group, (2,))
        sent = await one.send(f"group {number}", conversation_id=group)
        assert sent.status is SendStatus.ACKED
    return group


async def shown(users: list[Client], group: bytes) -> list[Any]:
    """What each user is shown of both, and who is in the group."""
    told: list[Any] = []
    for user, one in enumerate(users, start=1):
        for conversation_id in (CHAT, group):
            if (user, conversation_id) != (3, CHAT):
                page = await one.history(conversation_id, limit=200)
                told.append([(m.conversation_seq, m.message_id, m.body) for m in page.messages])
    members = await users[0].members(group)
    return [*told, (members.version, sorted(members.added), members.name, members.creator)]


def retain(path: Path) -> list[int]:
    """Retention takes all but the newest records of the outbox; the new starts."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        log = SqliteLog(path, loop, partitions={Topic.OUTBOX: len(PARTITIONS)})
        starts = []
        for number in PARTITIONS:
            ends: asyncio.Future[Any] = loop.create_future()
            log.submit(ReadEnds(op=1, topic=Topic.OUTBOX, partition=number), ends.set_result)
            read = await ends
            assert isinstance(read, EndsRead)
            done: asyncio.Future[Any] = loop.create_future()
            before = max(0, read.end - KEPT)
            log.trim(Topic.OUTBOX, number, before=before, done=done.set_result)
            starts.append(await done)
        await log.close()
        return starts

    return asyncio.run(main())


def test_history_members_and_seqs_come_back(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    try:
        served.start()
        group = asyncio.run(with_users(served, tmp_path, fill))
        before = asyncio.run(with_users(served, tmp_path, lambda users: shown(users, group)))
        asyncio.run(archived(served))
        served.end()
        assert any(start > MESSAGES for start in retain(served.data / "log.sqlite"))
        shutil.rmtree(served.data / "store")
        served.start()
        assert served.metric("qim_conversations_restored_total") >= 2
        after = asyncio.run(with_users(served, tmp_path, lambda users: shown(users, group)))
        assert after == before
        last = asyncio.run(with_users(served, tmp_path, lambda users: go_on(users, group)))
        assert last == [page[-1][0] + 1 for page in (before[0], before[1])]
        served.end()
    finally:
        served.close()


async def go_on(users: list[Client], group: bytes) -> list[int]:
    """The next message of each: its seq."""
    seqs = []
    for target in ({"to": 2}, {"conversation_id": group}):
        sent = await users[0].send("after", **target)
        assert sent.coordinates is not None
        seqs.append(sent.coordinates.conversation_seq)
    return seqs


def test_without_the_archive_the_missing_range_is_named(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    try:
        served.start()
        asyncio.run(with_users(served, tmp_path, fill))
        asyncio.run(archived(served))
        served.end()
        starts = retain(served.data / "log.sqlite")
        shutil.rmtree(served.data / "store")
        for file in served.data.glob("archive.sqlite*"):
            file.unlink()
        try:
            served.start()
        except AssertionError as error:
            assert "ended with 2" in str(error)  # noqa: PT017 - what start raises has the server's words
        else:
            raise AssertionError("served over a hole")
        assert any(f"[0, {start})" in served.log() for start in starts if start)
    finally:
        served.close()
