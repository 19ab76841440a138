"""Edges of what a user sees, against a real server: page limits, large groups, windows (bug reports of kinds D, E, F)."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qim.core.contract.entities import MembershipDelta
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import (
    GroupAdd,
    GroupOk,
    GroupRemove,
    HistoryBatch,
    MailboxBatch,
    MarkRead,
    Members,
    MembersBatch,
    Ok,
    PullHistory,
    PullMailbox,
    PushEvents,
    ReadBy,
    SendAck,
)
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.params import DEFAULT
from qim.services.config import EMBEDDED_SHARD_COUNT
from tests.integration.people import (
    PATIENCE_SECONDS,
    People,
    Person,
    Run,
    acked,
    arrived,
    badge,
    chat_of,
    listing,
    over,
    seen,
    unread,
)
from tests.integration.raw_client import RawClient, message, new_key, soon
from tests.integration.served import Served, eventually

pytestmark = pytest.mark.xdist_group("visible-edges")

WINDOW = DEFAULT.unread_window_max
STAGES = ("RECORDED", "OUTBOXED", "COMMITTED", "DISPATCHED", "MAILBOXED", "PUSHED")
WAITING = (
    ("qim_queue_depth", "fanout.window"),
    ("qim_fanout_outlet_records", ""),
    ("qim_queue_depth", "mailbox.window"),
    ("qim_queue_depth", "mailbox.push_users"),
)
IN_FLIGHT = "qim_store_calls_inflight"
MARKS = 20
AT_ONCE = 100


@pytest.fixture
def run(served: Served, tmp_path: Path) -> Run:
    return over(served, tmp_path)


async def raw(people: People, person: Person, device: bytes = b"raw") -> RawClient:
    """A connection that ends with the test."""
    client = await RawClient.log_in(people.served.target, person.user, device=device)
    people.stack.push_async_callback(client.close)
    return client


async def at_rest(served: Served) -> dict[str, float]:
    """What the main chain has done, once it has nothing more to do: all is delivered, and nobody is left to be pushed to."""
    await asyncio.to_thread(served.delivered)
    seen: list[dict[str, float]] = [{}, {}]

    def calm() -> bool:
        # Twice the same: what one machine hands to another is in neither's queue for the moment of a look.
        samples = served.metrics()
        done = {stage: samples.get(("qim_stage_total", stage), 0.0) for stage in STAGES}
        done["tasks"] = samples.get(("qim_push_task_total", ""), 0.0)
        seen.append(done)
        calls = sum(value for (name, _), value in samples.items() if name == IN_FLIGHT)
        idle = not calls and not any(samples.get(name, 0.0) for name in WAITING)
        return idle and seen[-1] == seen[-2]

    await eventually(calm)
    return seen[-1]


def test_marks_in_a_group_of_1000_move_nothing_else(run: Run) -> None:
    """MARK_READ by many: no record, no dispatch, no mailbox entry, no push, and nobody's unread but the reader's own."""

    async def case(people: People) -> None:
        owner, witness, *readers = people.persons(2 + MARKS)
        others = tuple(range(5_000_001, 5_000_001 + DEFAULT.group_members_max - 2 - MARKS))
        one = await raw(people, owner)
        members = (witness.user, *(reader.user for reader in readers), *others)
        group = (await one.create_group(members, "a thousand")).conversation_id
        told = await one.ask(Members(conversation_id=group), MembersBatch)
        assert len(told.added) == DEFAULT.group_members_max
        at = await one.send(b"hello", conversation_id=group)
        two = await raw(people, witness)
        await two.pull_until(at.message_id)
        connected = [await raw(people, reader) for reader in readers]
        for client in connected:
            await client.pull_until(at.message_id)
        before = await at_rest(people.served)
        for client in connected:
            await client.ask(MarkRead(conversation_id=group, read_seq=at.conversation_seq), Ok)
        assert await at_rest(people.served) == before
        two.heard.clear()
        assert await two.pull() == []
        assert not any(isinstance(got.frame, PushEvents) for got in two.heard)
        (entry,) = await listing(two)
        assert (entry.unread, entry.unread_exact, entry.read_seq) == (1, True, 0)
        for client in connected:
            (entry,) = await listing(client)
            assert (entry.unread, entry.read_seq) == (0, at.conversation_seq)
        readers_told = await one.ask(
            ReadBy(conversation_id=group, conversation_seq=at.conversation_seq), ReadBy
        )
        assert readers_told.has_more, "a large group is not walked to its end"
        assert set(readers_told.users) == {reader.user for reader in readers}

    run(case)


def test_limits_at_their_edges(run: Run) -> None:
    """0 is the default page, one above the greatest is the greatest, exact multiples end without an empty page."""
    most, default = DEFAULT.page_max, DEFAULT.page_default

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, reader = await raw(people, ann), await raw(people, bob)
        acks: list[SendAck] = []
        for start in range(0, 2 * most, AT_ONCE):
            said = [
                (sent := message(b"%d" % number, peer_user_id=bob.user), sender.say(sent))
                for number in range(start, start + AT_ONCE)
            ]
            acks += [await sender.answered(sent, request, SendAck) for sent, request in said]
        seqs = sorted(ack.conversation_seq for ack in acks)
        for limit, size in ((0, default), (1, 1), (most, most), (most + 1, most), (65_535, most)):
            page = await history(reader, chat, 0, limit)
            assert [r.conversation_seq for r in page.records] == seqs[:size], limit
            assert page.has_more
        second = await history(reader, chat, seqs[most - 1], most)
        assert [r.conversation_seq for r in second.records] == seqs[most:]
        assert not second.has_more, "an exact multiple"
        beyond = await history(reader, chat, seqs[-1], most)
        assert (beyond.records, beyond.has_more) == ((), False)
        await reader.pull_until(max(acks, key=lambda ack: ack.conversation_seq).message_id)
        first = reader.auth_ok.cursor
        for limit, size in ((0, default), (1, 1), (most, most), (most + 1, most)):
            batch = await reader.ask(PullMailbox(cursor=first, limit=limit), MailboxBatch)
            assert len(batch.entries) == size, limit
            assert batch.has_more

    run(case)


async def history(client: RawClient, chat: bytes, anchor: int, limit: int) -> HistoryBatch:
    """A page of newer ones."""
    return await client.ask(
        PullHistory(
            conversation_id=chat, anchor=anchor, direction=HistoryDirection.NEWER, limit=limit
        ),
        HistoryBatch,
    )


def test_the_list_at_the_edges_of_its_pages(run: Run) -> None:
    async def case(people: People) -> None:
        ann, *peers = people.persons(13)
        one, acks = await raw(people, ann), []
        for peer in peers:
            acks.append(await one.send(b"hello", peer_user_id=peer.user))
        await one.pull_until(*(ack.message_id for ack in acks))
        wanted = [chat_of(ann, peer) for peer in reversed(peers)]

        async def names(limit: int) -> list[bytes]:
            return [entry.conversation_id for entry in await listing(one, limit)]

        for limit in (0, 1, 2, 3, 4, 5, 6, 12, 13, DEFAULT.page_max, DEFAULT.page_max + 1, 65_535):
            assert await names(limit) == wanted, limit

    run(case)


def test_unread_and_state_beyond_the_window(run: Run) -> None:
    """More than 200 unread are 200 and inexact, exact again once read to within; a state outlives all windows."""

    async def case(people: People) -> None:
        ann, bob = people.persons(2)
        chat = chat_of(ann, bob)
        sender, reader = await ann.device(), await bob.device()
        first = acked(await sender.send("first", to=bob.user))
        await arrived(reader, chat, first.conversation_seq)
        assert await reader.set_state(chat, pinned=True, draft="to be")
        for start in range(0, WINDOW + 20, 55):
            sends = await asyncio.gather(
                *(sender.send(f"{number}", to=bob.user) for number in range(start, start + 55))
            )
        last = max(acked(sent).conversation_seq for sent in sends)
        await arrived(reader, chat, last)
        row = await seen(await bob.device("second"), chat)
        assert (row.unread, row.unread_exact) == (WINDOW, False)
        assert (row.pinned, row.draft) == (True, "to be")
        async with await RawClient.log_in(people.served.target, bob.user) as wire:
            (entry,) = await listing(wire)
            assert (entry.unread, entry.unread_exact) == (WINDOW, False)
        assert await badge(people.served.target, bob.user) == WINDOW
        assert await reader.mark_read(chat, last - WINDOW)
        assert await unread(reader, chat) == WINDOW
        assert await unread(await bob.device("third"), chat) == WINDOW
        for seq in range(last - 2, last + 1):
            acked(await sender.recall(chat, seq))
        at = acked(await sender.recall(chat, first.conversation_seq))
        await arrived(reader, chat, at.conversation_seq)
        row = await seen(await bob.device("fourth"), chat)
        assert row.unread_exact is False or row.unread == WINDOW - 3
        assert (row.pinned, row.draft) == (True, "to be")

    run(case)


def test_a_member_added_while_offline_finds_it_all_at_login(run: Run) -> None:
    """BR-048: the conversation and its messages are there at once, in the list and in the mailbox; counted since joining."""

    async def case(people: People) -> None:
        ann, bob, eve = people.persons(3)
        one = await ann.device()
        group = (await one.create_group((eve.user,), "g")).conversation_id
        acked(await one.send("before", conversation_id=group))
        await one.add_members(group, (bob.user,))
        for number in range(3):
            last = acked(await one.send(f"{number}", conversation_id=group))
        reader = await bob.device()
        await arrived(reader, group, last.conversation_seq)
        row = await seen(reader, group)
        assert (row.unread, row.unread_exact) == (3, True)
        page = await reader.history(group)
        assert [m.body for m in page.messages if m.kind == 1] == [b"0", b"1", b"2"]

    run(case)


def test_notices_of_removal_tell_the_group_as_it_is_then(run: Run) -> None:
    """BR-051, BR-052: version V+1 and its count in the notice; deltas from any version end without ghosts."""

    async def case(people: People) -> None:
        ann, bob, eve, dan = people.persons(4)
        one, two = await raw(people, ann), await raw(people, bob)
        made = await one.create_group((bob.user, eve.user), "g")
        group = made.conversation_id
        changes = [
            changed(GroupAdd, group, dan.user),
            changed(GroupRemove, group, eve.user, dan.user),
            changed(GroupRemove, group, bob.user),
        ]
        versions = [(await one.ask(change, GroupOk)).version for change in changes]
        assert versions == [made.version + at for at in (1, 2, 3)]
        removed = await two.pull()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(removed) < 4:
                removed += await two.pull()
        counts = [delta_of(entry.body) for entry in removed]
        assert counts == [(made.version, 3), (versions[0], 4), (versions[1], 2), (versions[2], 1)]
        for since in (0, made.version, versions[0], versions[1]):
            told = await one.ask(Members(conversation_id=group, since_version=since), MembersBatch)
            assert told.version == versions[2]
            assert ann.user not in told.removed
            members = {
                0: set(),
                made.version: {ann.user, bob.user, eve.user},
                versions[0]: {ann.user, bob.user, eve.user, dan.user},
                versions[1]: {ann.user, bob.user},
            }[since]
            left = (set() if told.full else members - set(told.removed)) | set(told.added)
            assert left == {ann.user}, (since, told)
        refused = await two.refused(message(b"no more", conversation_id=group))
        assert refused.code == ErrorCode.NOT_MEMBER
        (entry,) = await listing(two)
        assert entry.unread == 0, "membership never counts"

    run(case)


def changed(kind: type[GroupAdd | GroupRemove], group: bytes, *members: int) -> Any:
    """A change of membership under a key of its own."""
    return kind(
        client_message_id=new_key(), not_after=soon(), conversation_id=group, members=members
    )


def delta_of(body: bytes | None) -> tuple[int, int]:
    """(version, count) of a notice."""
    assert body is not None
    delta = msgspec.msgpack.decode(body, type=MembershipDelta)
    return delta.version, delta.count


def test_a_thousand_members_hear_of_a_message_once_a_shard(run: Run) -> None:
    """BR-055: as many dispatches as shards, one mailbox entry a member."""

    async def case(people: People) -> None:
        owner, witness = people.persons(2)
        one = await raw(people, owner)
        others = tuple(range(6_000_001, 6_000_001 + DEFAULT.group_members_max - 2))
        group = (await one.create_group((witness.user, *others), "g")).conversation_id
        two = await raw(people, witness)
        await at_rest(people.served)
        before = dispatches(people.served)
        at = await one.send(b"hello", conversation_id=group)
        await two.pull_until(at.message_id)
        await at_rest(people.served)
        assert dispatches(people.served) - before == EMBEDDED_SHARD_COUNT

    run(case)


def dispatches(served: Served) -> int:
    """Records of the dispatch log."""
    connection = sqlite3.connect(served.data / "log.sqlite")
    try:
        (count,) = connection.execute(
            "SELECT count(*) FROM record WHERE topic='dispatch'"
        ).fetchone()
    finally:
        connection.close()
    assert isinstance(count, int)
    return count
