"""Recall, deletion and paged history against a real server: what is taken back is gone everywhere (BR kind F)."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from qim.client import Client, SendStatus
from qim.core.contract.entities import MessageKind
from qim.core.contract.frames import HistoryBatch, PullHistory
from qim.core.contract.kinds import HistoryDirection, Tombstone
from qim.core.ports.local_store import LocalMessage
from tests.integration.people import (
    PATIENCE_SECONDS,
    People,
    acked,
    arrived,
    chat_of,
    seen,
    text_of,
)
from tests.integration.raw_client import RawClient
from tests.integration.served import Served

pytestmark = pytest.mark.xdist_group("recalls")

Run = Callable[[Callable[[People], Coroutine[Any, Any, None]]], None]
PAGED = 50
ROUNDS = 30


@pytest.fixture
def run(served: Served, tmp_path: Path) -> Run:
    def go(case: Callable[[People], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with People(served, tmp_path) as people:
                await case(people)

        asyncio.run(main())

    return go


async def local(client: Client, conversation_id: bytes) -> list[LocalMessage]:
    """What stands on the device."""
    driver = client._alive()
    found: list[LocalMessage] = await driver.on_store_thread(
        lambda store: store.messages(conversation_id, 1_000)
    )
    return found


def spoil_cursor(path: Path) -> None:
    """The device comes back with a cursor that the server must refuse: REBUILD."""
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE device SET cursor=?", (b"no cursor of this server",))
    connection.close()


@pytest.mark.parametrize("way", ["mailbox", "rebuild"])
def test_a_recall_reaches_who_was_offline(run: Run, way: str) -> None:
    """BR-062: the body is gone from the device that had it, from history, and from the preview."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, reader = await ann.device(), await bob.device()
        kept = acked(await sender.send("kept", to=bob.user))
        gone = acked(await sender.send("taken back", to=bob.user))
        await arrived(reader, chat, gone.conversation_seq)
        assert [m.body for m in await local(reader, chat)] == [b"kept", b"taken back"]
        await bob.close()
        recall = acked(await sender.recall(chat, gone.conversation_seq))
        if way == "rebuild":
            spoil_cursor(bob.path("phone"))
        reader = await bob.device()
        await arrived(reader, chat, recall.conversation_seq)
        row = await seen(reader, chat)
        assert (row.unread, row.unread_exact, text_of(row)) == (1, True, "kept")
        by_id = {message.message_id: message for message in await local(reader, chat)}
        assert by_id[kept.message_id].body == b"kept"
        assert by_id[gone.message_id].body is None
        assert by_id[gone.message_id].tombstone == Tombstone.RECALLED
        for device in (reader, sender, await bob.device("new")):
            page = await device.history(chat, limit=10)
            told = {message.message_id: message for message in page.messages}
            assert told[gone.message_id].body is None
            assert told[gone.message_id].tombstone == Tombstone.RECALLED
            assert told[kept.message_id].body == b"kept"

    run(case)


def test_quoting_messages_stay(run: Run) -> None:
    """BR-063: recall of a quoted message touches nothing else."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, reader = await ann.device(), await bob.device()
        quoted = acked(await sender.send("quoted", to=bob.user))
        quote = f'{{"quotes": "{quoted.conversation_seq}", "text": "so it is"}}'
        quoting = acked(
            await reader.send(quote, to=ann.user, kind=MessageKind.CUSTOM, custom_type="quote")
        )
        recall = acked(await sender.recall(chat, quoted.conversation_seq))
        for device in (sender, reader):
            await arrived(device, chat, recall.conversation_seq)
            page = await device.history(chat, limit=10)
            told = {message.message_id: message for message in page.messages}
            assert told[quoted.message_id].tombstone == Tombstone.RECALLED
            assert told[quoting.message_id].body == quote.encode()
            assert (await seen(device, chat)).preview is not None
            here = {message.message_id: message for message in await local(device, chat)}
            assert here[quoting.message_id].body == quote.encode()

    run(case)


def test_who_may_recall_what(run: Run) -> None:
    """The sender; in a group its creator; nobody else, nothing that isn't there, nothing twice."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        one, two = await ann.device(), await bob.device()
        at = acked(await one.send("hello", to=bob.user))
        refused = await two.recall(chat, at.conversation_seq)
        assert (refused.status, refused.code) == (SendStatus.FAILED, "FORBIDDEN")
        missing = await one.recall(chat, at.conversation_seq + 1_000)
        assert (missing.status, missing.code) == (SendStatus.FAILED, "NOT_FOUND")
        recall = acked(await one.recall(chat, at.conversation_seq))
        again = await one.recall(chat, at.conversation_seq)
        assert (again.status, again.code) == (SendStatus.FAILED, "NOT_FOUND")
        of_recall = await one.recall(chat, recall.conversation_seq)
        assert of_recall.status is SendStatus.FAILED
        group = (await one.create_group((bob.user,), "g")).conversation_id
        theirs = acked(await two.send("of a member", conversation_id=group))
        acked(await one.recall(group, theirs.conversation_seq))

    run(case)


def test_deleted_for_one_stays_for_the_other(run: Run) -> None:
    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        one, two, other = await ann.device(), await bob.device(), await bob.device("other")
        at = acked(await one.send("hello", to=bob.user))
        await arrived(other, chat, at.conversation_seq)
        deletion = acked(await two.delete_for_me(chat, at.conversation_seq))
        await arrived(other, chat, deletion.conversation_seq)
        for device in (two, other):
            page = await device.history(chat, limit=10)
            assert at.message_id not in [message.message_id for message in page.messages]
            assert at.message_id not in [m.message_id for m in await local(device, chat)]
            assert (await seen(device, chat)).unread == 0
        page = await one.history(chat, limit=10)
        assert [message.message_id for message in page.messages] == [at.message_id]

    run(case)


def test_a_recall_made_offline_goes_out_later(run: Run) -> None:
    """It is a pending row like a send, and lies on one's own device as soon as it is acked."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender = await ann.device()
        at = acked(await sender.send("hello", to=bob.user))
        await ann.close()
        sender = await ann.device(online=False)
        sent = await sender.recall(chat, at.conversation_seq, timeout=None)
        assert sent.status is SendStatus.PENDING
        settled = await sender.settled(sent.client_message_id, timeout=PATIENCE_SECONDS)
        assert settled is not None
        acked(settled)
        assert [m.body for m in await local(sender, chat) if m.message_id == at.message_id] == [
            None
        ]

    run(case)


async def walk(raw: RawClient, chat: bytes, direction: HistoryDirection, limit: int) -> list[int]:
    """The seqs of every page, in the order they came."""
    seqs: list[int] = []
    anchor = 0
    while True:
        page = await raw.ask(
            PullHistory(conversation_id=chat, anchor=anchor, direction=direction, limit=limit),
            HistoryBatch,
        )
        found = [record.conversation_seq for record in page.records]
        assert found == sorted(found)
        assert len(found) <= limit
        assert found or not page.has_more
        older = direction is HistoryDirection.OLDER
        seqs += reversed(found) if older else found
        if not page.has_more:
            return list(reversed(seqs)) if older else seqs
        anchor = found[0 if older else -1]


def test_pages_are_complete_and_without_repeats(run: Run) -> None:
    """BR-056: many messages of the same millisecond, page sizes that divide and don't, both ways and around."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        phone = await ann.device()
        sends = await asyncio.gather(*(phone.send(f"{n}", to=bob.user) for n in range(PAGED)))
        expected = sorted(acked(sent).conversation_seq for sent in sends)
        async with await RawClient.log_in(people.served.target, bob.user) as raw:
            for limit in (1, 7, 10, PAGED, PAGED + 1):
                for direction in (HistoryDirection.OLDER, HistoryDirection.NEWER):
                    assert await walk(raw, chat, direction, limit) == expected, (direction, limit)
            for anchor in expected[:: PAGED // 5]:
                page = await raw.ask(
                    PullHistory(
                        conversation_id=chat,
                        anchor=anchor,
                        direction=HistoryDirection.AROUND,
                        limit=7,
                    ),
                    HistoryBatch,
                )
                found = [record.conversation_seq for record in page.records]
                assert anchor in found
                at = expected.index(found[0])
                assert found == expected[at : at + len(found)], "no hole, no repeat"
                assert page.has_more == (found[0] != expected[0])
                assert page.has_more_newer == (found[-1] != expected[-1])

    run(case)


def test_sends_between_pages_shift_nothing(run: Run) -> None:
    """BR-057: a page goes on from its anchor, whatever was sent meanwhile."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        target = people.served.target
        async with (
            await RawClient.log_in(target, ann.user) as sender,
            await RawClient.log_in(target, bob.user) as reader,
        ):
            expected = [
                (await sender.send(b"%d" % n, peer_user_id=bob.user)).conversation_seq
                for n in range(ROUNDS)
            ]
            seqs: list[int] = []
            anchor = 0
            while True:
                page = await reader.ask(
                    PullHistory(
                        conversation_id=chat,
                        anchor=anchor,
                        direction=HistoryDirection.OLDER,
                        limit=3,
                    ),
                    HistoryBatch,
                )
                seqs = [record.conversation_seq for record in page.records] + seqs
                await sender.send(b"meanwhile", peer_user_id=bob.user)
                if not page.has_more:
                    break
                anchor = page.records[0].conversation_seq
            assert seqs == expected

    run(case)


def test_a_rebuild_keeps_what_is_here_and_finds_what_was_missed(run: Run) -> None:
    """BR-029: messages of old conversations, and conversations the device never saw; unread exact at the end."""

    async def case(people: People) -> None:
        ann, bob, eve = people.persons(3)
        chat, other = chat_of(ann, bob), chat_of(eve, bob)
        sender, reader = await ann.device(), await bob.device()
        for number in range(3):
            at = acked(await sender.send(f"before {number}", to=bob.user))
        await arrived(reader, chat, at.conversation_seq)
        assert await reader.mark_read(chat, at.conversation_seq)
        await bob.close()
        for number in range(4):
            missed = acked(await sender.send(f"missed {number}", to=bob.user))
        stranger = await eve.device()
        unmet = acked(await stranger.send("never met", to=bob.user))
        async with await RawClient.log_in(people.served.target, bob.user) as raw:
            # An ack says nothing of an inbox: what is missing now is nobody's fault.
            await raw.pull_until(missed.message_id, unmet.message_id)
        spoil_cursor(bob.path("phone"))
        reader = await bob.device()
        row = await seen(reader, chat)
        assert (row.unread, row.unread_exact) == (4, True)
        bodies = [message.body for message in await local(reader, chat)]
        assert bodies == [f"before {n}".encode() for n in range(3)] + [
            f"missed {n}".encode() for n in range(4)
        ]
        new = await seen(reader, other)
        assert (new.unread, new.unread_exact, text_of(new)) == (1, True, "never met")

    run(case)
