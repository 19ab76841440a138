"""What users see of their conversations after the server died, and after the hot store was lost (BR kind D)."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from tests.integration.people import People, acked, arrived, badge, chat_of, listing, seen, text_of
from tests.integration.raw_client import RawClient
from tests.integration.served import Served
from tests.integration.test_archive import archived
from tests.integration.test_archive_restores import retain


def test_marks_survive_the_death_of_the_server(tmp_path: Path) -> None:
    """BR-033: what was answered is still read after SIGKILL and a start, and stays so."""
    served = Served(tmp_path / "data")
    served.start()

    async def main() -> None:
        async with People(served, tmp_path) as people:
            ann, bob = people.persons(2)
            chat = chat_of(ann, bob)
            sender, reader = await ann.device(), await bob.device()
            for number in range(4):
                at = acked(await sender.send(f"{number}", to=bob.user))
            await arrived(reader, chat, at.conversation_seq)
            assert await reader.mark_read(chat)
            await asyncio.to_thread(served.kill)
            await asyncio.to_thread(served.start)
            fresh = await bob.device("fresh")
            await arrived(fresh, chat, at.conversation_seq)
            row = await seen(fresh, chat)
            assert (row.unread, row.unread_exact, row.read_seq) == (0, True, at.conversation_seq)

    try:
        asyncio.run(main())
        served.end()
    finally:
        served.close()


def test_a_list_whose_last_messages_stand_in_the_archive_alone(tmp_path: Path) -> None:
    """BR-044: the hot rows are gone: list, preview and unread are as before."""
    served = Served(tmp_path / "data")

    async def fill(people: People) -> list[Any]:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, reader = await ann.device(), await bob.device()
        seqs = [acked(await sender.send(f"{n}", to=bob.user)).conversation_seq for n in range(30)]
        await arrived(reader, chat, seqs[-1])
        assert await reader.mark_read(chat, seqs[9])
        last = acked(await sender.recall(chat, seqs[-1]))
        await arrived(reader, chat, last.conversation_seq)
        return [bob, chat]

    async def shown(people: People, bob: Any, chat: bytes, name: str) -> tuple[Any, ...]:
        bob._people = people
        row = await seen(await bob.device(name), chat)
        async with await RawClient.log_in(served.target, bob.user, device=b"raw") as raw:
            entries = await listing(raw)
        counts = [(e.unread, e.unread_exact, e.read_seq, e.head) for e in entries]
        badged = await badge(served.target, bob.user)
        return (row.unread, row.unread_exact, text_of(row), counts, badged)

    async def before() -> list[Any]:
        async with People(served, tmp_path) as people:
            bob, chat = await fill(people)
            told = await shown(people, bob, chat, "before")
            await archived(served)
            return [bob, chat, told]

    async def after(bob: Any, chat: bytes) -> tuple[Any, ...]:
        async with People(served, tmp_path) as people:
            return await shown(people, bob, chat, "after")

    try:
        served.start()
        bob, chat, told = asyncio.run(before())
        assert told[:3] == (19, True, "28")
        served.end()
        retain(served.data / "log.sqlite")
        shutil.rmtree(served.data / "store")
        served.start()
        assert served.metric("qim_conversations_restored_total") >= 1
        assert asyncio.run(after(bob, chat)) == told
        served.end()
    finally:
        served.close()
