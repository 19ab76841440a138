"""What users see of their conversations, against a real server: unread, marks, previews, on all devices (BR kind D)."""

import asyncio
from pathlib import Path

import pytest

from qim.client import SendStatus
from qim.core.contract.frames import MarkRead, Ok
from qim.core.contract.ids import single_conversation_id
from tests.integration.people import (
    PATIENCE_SECONDS,
    People,
    Run,
    acked,
    arrived,
    badge,
    chat_of,
    listed_now,
    listing,
    over,
    seen,
    text_of,
    unread,
)
from tests.integration.raw_client import RawClient
from tests.integration.served import Served

pytestmark = pytest.mark.xdist_group("session-list")

ROUNDS = 40
PEERS = 300


@pytest.fixture
def run(served: Served, tmp_path: Path) -> Run:
    return over(served, tmp_path)


def test_own_messages_never_count(run: Run) -> None:
    """BR-032: A sends 3, its app is gone; B sends 2: unread 2 on every device of A, old and new."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        phone = await ann.device("phone")
        for number in range(3):
            acked(await phone.send(f"{number}", to=bob.user))
        await ann.close("phone")
        other = await bob.device()
        for number in range(2):
            last = acked(await other.send(f"answer {number}", to=ann.user))
        for name in ("phone", "laptop"):
            device = await ann.device(name)
            await arrived(device, chat, last.conversation_seq)
            assert await unread(device, chat) == 2

    run(case)


def test_reading_a_part_leaves_the_rest(run: Run) -> None:
    """BR-041: 20 unread, read to 10: exactly 10, here, on another device and in the server's list."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, reader = await ann.device(), await bob.device()
        seqs = [acked(await sender.send(f"{n}", to=bob.user)).conversation_seq for n in range(20)]
        await arrived(reader, chat, seqs[-1])
        assert await unread(reader, chat) == 20
        assert await reader.mark_read(chat, seqs[9])
        assert await unread(reader, chat) == 10
        assert await unread(await bob.device("new"), chat) == 10
        async with await RawClient.log_in(people.served.target, bob.user, device=b"raw") as raw:
            (entry,) = await listing(raw)
            assert (entry.unread, entry.unread_exact, entry.read_seq) == (10, True, seqs[9])
        assert await badge(people.served.target, bob.user) == 10

    run(case)


def test_a_mark_never_goes_back(run: Run) -> None:
    """BR-040: a lower mark of another device, also one from an offline queue, changes nothing."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, one = await ann.device(), await bob.device("one")
        seqs = [acked(await sender.send(f"{n}", to=bob.user)).conversation_seq for n in range(6)]
        two = await bob.device("two", online=False)
        await two.online(PATIENCE_SECONDS)
        await arrived(two, chat, seqs[-1])
        await bob.close("two")
        await arrived(one, chat, seqs[-1])
        assert await one.mark_read(chat, seqs[4])
        two = await bob.device("two", online=False)
        await two.mark_read(chat, seqs[1], timeout=None)  # queued before it is connected
        await two.online(PATIENCE_SECONDS)
        assert await two.mark_read(chat, seqs[2])
        for device in (one, two, await bob.device("three")):
            row = await seen(device, chat)
            assert (row.unread, row.unread_exact, row.read_seq) == (1, True, seqs[4])

    run(case)


def test_a_mark_before_the_first_message_works(run: Run) -> None:
    """BR-037: MARK_READ at once, of more than there is and before anything is projected: unread is what lies beyond."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender = await ann.device()
        async with await RawClient.log_in(people.served.target, bob.user) as raw:
            first = acked(await sender.send("first", to=bob.user)).conversation_seq
            await raw.ask(MarkRead(conversation_id=chat, read_seq=2), Ok)
        rest = [acked(await sender.send(f"{n}", to=bob.user)).conversation_seq for n in range(4)]
        seqs = [first, *rest]
        reader = await bob.device()
        await arrived(reader, chat, seqs[-1])
        row = await seen(reader, chat)
        beyond = sum(seq > 2 for seq in seqs)
        assert (row.unread, row.unread_exact, row.read_seq) == (beyond, True, 2)
        async with await RawClient.log_in(people.served.target, bob.user) as raw:
            (entry,) = await listing(raw)
            assert (entry.unread, entry.unread_exact, entry.read_seq) == (beyond, True, 2)
        assert await badge(people.served.target, bob.user) == beyond

    run(case)


def test_recalled_and_deleted_ones_do_not_count(run: Run) -> None:
    """BR-036: 5 sent, 2 recalled, 1 deleted before reading: unread 2, badge 2, on every device."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, reader = await ann.device(), await bob.device()
        seqs = [acked(await sender.send(f"{n}", to=bob.user)).conversation_seq for n in range(5)]
        await arrived(reader, chat, seqs[-1])
        for seq in seqs[:2]:
            acked(await sender.recall(chat, seq))
        last = acked(await reader.delete_for_me(chat, seqs[2]))
        await arrived(reader, chat, last.conversation_seq)
        assert await unread(reader, chat) == 2
        assert (await reader.unread()).count == 2
        assert await unread(await bob.device("new"), chat) == 2
        async with await RawClient.log_in(people.served.target, bob.user) as raw:
            (entry,) = await listing(raw)
            assert (entry.unread, entry.unread_exact) == (2, True)
        assert await badge(people.served.target, bob.user) == 2

    run(case)


def test_the_preview_is_the_newest_that_may_be_shown(run: Run) -> None:
    """BR-043: after recall and deletion it falls back, at last to none; who left sees nothing newer."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, reader = await ann.device(), await bob.device()
        seqs = [acked(await sender.send(f"{n}", to=bob.user)).conversation_seq for n in range(3)]
        at = acked(await sender.recall(chat, seqs[2]))
        await arrived(reader, chat, at.conversation_seq)
        assert text_of(await seen(reader, chat)) == "1"
        at = acked(await reader.delete_for_me(chat, seqs[1]))
        assert text_of(await seen(reader, chat)) == "0"
        await arrived(reader, chat, at.conversation_seq)
        assert text_of(await seen(await bob.device("new"), chat)) == "0"
        at = acked(await sender.recall(chat, seqs[0]))
        await arrived(reader, chat, at.conversation_seq)
        assert (await seen(reader, chat)).preview is None
        assert (await seen(await bob.device("newer"), chat)).preview is None
        assert text_of(await seen(sender, chat)) == "1", "deleted for one, not for the other"

    run(case)


def test_who_was_away_from_a_group_is_shown_his_own_time(run: Run) -> None:
    """BR-043, BR-046: leave and rejoin: preview and unread are those of the intervals."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        sender, reader = await ann.device(), await bob.device()
        group = (await sender.create_group((bob.user,), "g")).conversation_id
        before = acked(await sender.send("before", conversation_id=group))
        await arrived(reader, group, before.conversation_seq)
        await reader.leave(group)
        acked(await sender.send("between", conversation_id=group))
        row = await seen(await bob.device("left"), group)
        assert row.unread == 1, "before, not between"
        await sender.add_members(group, (bob.user,))
        last = acked(await sender.send("after", conversation_id=group))
        await arrived(reader, group, last.conversation_seq)
        assert await unread(reader, group) == 2
        assert text_of(await seen(reader, group)) == "after"
        new = await bob.device("new")
        assert await unread(new, group) == 2
        history = await new.history(group, limit=50)
        texts = [message.body for message in history.messages if message.kind == 1]
        assert texts == [b"before", b"after"]

    run(case)


def test_a_list_asked_for_beside_sends_is_right_the_next_time(run: Run) -> None:
    """BR-034: send while the list runs; what was acked and delivered before a list began is in it."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        target = people.served.target
        async with (
            await RawClient.log_in(target, ann.user) as sender,
            await RawClient.log_in(target, bob.user) as reader,
        ):
            for number in range(1, ROUNDS + 1):
                beside = asyncio.create_task(listed_now(reader))
                ack = await sender.send(f"{number}".encode(), peer_user_id=bob.user)
                await beside
                await reader.pull_until(ack.message_id)
                (entry,) = await listing(reader)
                assert entry.last_activity_id >= ack.last_activity_id
                assert entry.unread == number
                assert entry.head is not None
                assert entry.head.message_id == ack.message_id, "unread and preview of one moment"

    run(case)


def test_all_conversations_are_right_after_a_reconnect(run: Run) -> None:
    """BR-045: 300 conversations, 3 changed while offline, none on the first page: all right at once."""

    async def case(people: People) -> None:
        (ann,) = people.persons(1)
        peers = [people.persons(1)[0] for _ in range(PEERS)]
        target = people.served.target
        phone = await ann.device()
        sends = await asyncio.gather(*(phone.send("first", to=peer.user) for peer in peers))
        assert all(sent.status is SendStatus.ACKED for sent in sends)
        await phone.sync(PATIENCE_SECONDS)
        await ann.close()
        chosen = peers[5:290:120]
        answers = []
        for peer in chosen:
            async with await RawClient.log_in(target, peer.user) as raw:
                answers.append(await raw.send(b"answer", peer_user_id=ann.user))
        phone = await ann.device()
        for ack in answers:
            await arrived(phone, ack.conversation_id, ack.conversation_seq)
        await phone.listed(PATIENCE_SECONDS)
        rows = await phone.conversations()
        assert len(rows) == PEERS
        changed = {single_conversation_id("default", ann.user, peer.user) for peer in chosen}
        assert {row.conversation_id for row in rows if row.unread} == changed
        assert all(row.unread_exact for row in rows)
        assert {row.conversation_id for row in rows[: len(chosen)]} == changed, "newest first"
        async with await RawClient.log_in(target, ann.user) as raw:
            for limit in (1, 7, 100, PEERS, 500):
                if limit == 1:
                    continue  # as many round trips as conversations: the page sizes below say as much
                entries = await listing(raw, limit)
                assert [entry.conversation_id for entry in entries] == [
                    row.conversation_id for row in rows
                ], limit

    run(case)


def test_states_follow_the_user_to_his_other_devices(run: Run) -> None:
    """Pin, mute, hide and draft by version; muted ones count for no badge; hidden ones come back by news."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, one = await ann.device(), await bob.device("one")
        at = acked(await sender.send("hello", to=bob.user))
        await arrived(one, chat, at.conversation_seq)
        assert await one.set_state(chat, pinned=True, muted=True, draft="to be")
        two = await bob.device("two")
        row = await seen(two, chat)
        assert (row.pinned, row.muted, row.draft, row.unread) == (True, True, "to be", 1)
        assert (await two.unread()).count == 0
        async with await RawClient.log_in(people.served.target, bob.user) as raw:
            assert raw.auth_ok.badge == 0, "muted"
        assert await two.set_state(chat, hidden=True, muted=False)
        await one.sync(PATIENCE_SECONDS)
        await one.listed(PATIENCE_SECONDS)
        assert await one.conversations() == []
        (row,) = await one.conversations(hidden=True)
        assert (row.hidden, row.pinned, row.muted) == (True, True, False)
        at = acked(await sender.send("news", to=bob.user))
        await arrived(one, chat, at.conversation_seq)
        assert [row.conversation_id for row in await one.conversations()] == [chat]

    run(case)


def test_who_has_read(run: Run) -> None:
    async def case(people: People) -> None:
        ann, bob, eve = people.persons(3)
        one, two = await ann.device(), await bob.device()
        group = (await one.create_group((bob.user, eve.user), "g")).conversation_id
        at = acked(await one.send("hello", conversation_id=group))
        await arrived(two, group, at.conversation_seq)
        assert await two.mark_read(group)
        told = await one.read_by(group, at.conversation_seq)
        assert bob.user in told.users
        assert eve.user not in told.users

    run(case)
