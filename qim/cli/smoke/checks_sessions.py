"""What users see of their conversations: list, unread, marks, states, recall, and paged history around a message."""

import asyncio

from qim.cli.smoke.stage import STEP_SECONDS_MAX, Check, Person, Stage, acked
from qim.client import Client, Conversation, SendStatus
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.kinds import HistoryDirection, Tombstone

UNREAD = 12
PAGE = 3


async def shown(client: Client, conversation_id: bytes, seq: int) -> Conversation:
    """The conversation once the message at ``seq`` is here, with exact unread: TimeoutError where that never comes.

    The first message of a conversation may be pushed behind that sync, and its unread is a lower bound until it is pulled.
    """
    async with asyncio.timeout(STEP_SECONDS_MAX):
        while True:
            await client.sync(STEP_SECONDS_MAX)
            await client.listed(STEP_SECONDS_MAX)
            row = await client.conversation(conversation_id)
            if row is not None and row.newest_seq >= seq and row.unread_exact:
                return row
            await asyncio.sleep(0.02)


def chat_of(stage: Stage, one: Person, other: Person) -> bytes:
    """The single chat of two users."""
    return single_conversation_id(stage.grounds.tenant_id, one.user_id, other.user_id)


async def fill(client: Client, peer: Person, count: int) -> list[int]:
    """conversation_seqs of so many messages."""
    return [
        acked(await client.send(f"{number}", to=peer.user_id)).conversation_seq
        for number in range(count)
    ]


async def unread_counts_what_others_sent(stage: Stage) -> None:
    alice, bob = stage.people(2)
    chat = chat_of(stage, alice, bob)
    sender, reader = await alice.device(), await bob.device()
    seqs = await fill(sender, bob, UNREAD)
    assert (await shown(reader, chat, seqs[-1])).unread == UNREAD
    assert (await shown(sender, chat, seqs[-1])).unread == 0, "own messages never count"
    assert (await reader.unread()).count == UNREAD


async def a_read_mark_holds_on_every_device(stage: Stage) -> None:
    alice, bob = stage.people(2)
    chat = chat_of(stage, alice, bob)
    sender, reader = await alice.device(), await bob.device()
    seqs = await fill(sender, bob, UNREAD)
    await shown(reader, chat, seqs[-1])
    assert await reader.mark_read(chat, seqs[4]), "the server has the mark"
    assert await reader.mark_read(chat, seqs[2]), "a lower one is no error"
    for device in (reader, await bob.device()):
        row = await shown(device, chat, seqs[-1])
        assert (row.unread, row.read_seq) == (UNREAD - 5, seqs[4])
    told = await sender.read_by(chat, seqs[4])
    assert bob.user_id in told.users
    later = await sender.read_by(chat, seqs[5])
    assert bob.user_id not in later.users


async def a_recall_reaches_everybody(stage: Stage) -> None:
    alice, bob = stage.people(2)
    chat = chat_of(stage, alice, bob)
    sender, reader = await alice.device(), await bob.device()
    seqs = await fill(sender, bob, 3)
    await shown(reader, chat, seqs[-1])
    refused = await reader.recall(chat, seqs[0])
    assert refused.status is SendStatus.FAILED, "only the sender recalls"
    recall = acked(await sender.recall(chat, seqs[2]))
    for device in (reader, await bob.device()):
        row = await shown(device, chat, recall.conversation_seq)
        assert row.unread == 2
        assert row.preview is not None
        assert row.preview.body == b"1", "the preview falls back"
        page = await device.history(chat, limit=10)
        (gone,) = [one for one in page.messages if one.conversation_seq == seqs[2]]
        assert (gone.body, gone.tombstone) == (None, Tombstone.RECALLED)


async def a_deletion_is_for_one_alone(stage: Stage) -> None:
    alice, bob = stage.people(2)
    chat = chat_of(stage, alice, bob)
    sender, reader = await alice.device(), await bob.device()
    seqs = await fill(sender, bob, 2)
    await shown(reader, chat, seqs[-1])
    deletion = acked(await reader.delete_for_me(chat, seqs[0]))
    for device in (reader, await bob.device()):
        assert (await shown(device, chat, deletion.conversation_seq)).unread == 1
        page = await device.history(chat, limit=10)
        assert seqs[0] not in [one.conversation_seq for one in page.messages]
    page = await sender.history(chat, limit=10)
    assert [one.body for one in page.messages] == [b"0", b"1"]


async def states_follow_the_user(stage: Stage) -> None:
    alice, bob = stage.people(2)
    chat = chat_of(stage, alice, bob)
    sender, one = await alice.device(), await bob.device()
    (seq,) = await fill(sender, bob, 1)
    await shown(one, chat, seq)
    assert await one.set_state(chat, pinned=True, muted=True, draft="to be continued")
    row = await shown(await bob.device(), chat, seq)
    assert (row.pinned, row.muted, row.draft) == (True, True, "to be continued")
    assert (await one.unread()).count == 0, "muted ones are not in the badge"
    assert await one.set_state(chat, hidden=True)
    assert await one.conversations() == []
    (seq,) = await fill(sender, bob, 1)
    await shown(one, chat, seq)
    assert len(await one.conversations()) == 1, "something newer shows it again"


async def history_around_a_message(stage: Stage) -> None:
    alice, bob = stage.people(2)
    chat = chat_of(stage, alice, bob)
    sender, reader = await alice.device(), await bob.device()
    seqs = await fill(sender, bob, UNREAD)
    for at in (0, UNREAD // 2, UNREAD - 1):
        page = await reader.history(
            chat, anchor=seqs[at], direction=HistoryDirection.AROUND, limit=PAGE
        )
        found = [one.conversation_seq for one in page.messages]
        assert seqs[at] in found
        begin = seqs.index(found[0])
        assert found == seqs[begin : begin + len(found)], "no hole, no repeat"
        assert page.has_more == (begin > 0)
        assert page.has_more_newer == (found[-1] != seqs[-1])


CHECKS = (
    Check(name="unread-counts-what-others-sent", run=unread_counts_what_others_sent),
    Check(name="read-mark-on-every-device", run=a_read_mark_holds_on_every_device),
    Check(name="recall-reaches-everybody", run=a_recall_reaches_everybody),
    Check(name="deletion-is-for-one-alone", run=a_deletion_is_for_one_alone),
    Check(name="states-follow-the-user", run=states_follow_the_user),
    Check(name="history-around-a-message", run=history_around_a_message),
)
