"""What users see: messages arrive, once, in order, on every device, and history has them all."""

import asyncio
import os
import time

from qim.cli.smoke.stage import Check, Stage, acked, take, texts
from qim.cli.smoke.wire import Wire
from qim.client.local_store import LocalStore
from qim.core.contract.entities import MessageKind, RetentionClass
from qim.core.contract.frames import MailboxBatch, MailboxEntry, PullMailbox, SendAck, SendMessage
from qim.core.contract.ids import single_conversation_id
from qim.core.contract.kinds import HistoryDirection
from qim.core.contract.params import HOUR_MS
from qim.core.ports.local_store import LocalMessage, PendingMessage, SavePending

ORDERED = 40
PAGED = 25
PAGE = 10


def message_frame(
    peer: int, text: str, *, cmid: bytes | None = None, not_after: int = 0
) -> SendMessage:
    """SEND_MESSAGE as a client sends it."""
    return SendMessage(
        client_message_id=cmid or os.urandom(16),
        conversation_id=None,
        peer_user_id=peer,
        kind=MessageKind.TEXT,
        custom_type="",
        body=text.encode(),
        retention_class=RetentionClass.DEFAULT,
        not_after=not_after or time.time_ns() // 1_000_000 + HOUR_MS,
    )


async def mailbox_of(wire: Wire, cursor: bytes, wanted: bytes) -> list[MailboxEntry]:
    """Entries from the cursor on, once the message ``wanted`` is among them."""
    while True:
        batches = await wire.pull_all(cursor)
        entries = [entry for batch in batches for entry in batch.entries]
        if any(entry.message_id == wanted for entry in entries):
            return entries
        await asyncio.sleep(0.02)


async def single_chat_is_delivered(stage: Stage) -> None:
    alice, bob = stage.people(2)
    sender, receiver = await alice.device(), await bob.device()
    at = acked(await sender.send("hello", to=bob.user_id))
    (message,) = await take(receiver, 1)
    assert message.body == b"hello"
    assert (message.message_id, message.conversation_seq) == (at.message_id, at.conversation_seq)
    assert message.sender_id == alice.user_id
    assert message.conversation_id == single_conversation_id(
        stage.grounds.tenant_id, alice.user_id, bob.user_id
    )


async def own_devices_get_a_copy(stage: Stage) -> None:
    alice, bob = stage.people(2)
    phone, laptop = await alice.device("phone"), await alice.device("laptop")
    sent = await phone.send("from the phone", to=bob.user_id)
    (copy,) = await take(laptop, 1)
    assert copy.message_id == acked(sent).message_id
    assert copy.client_message_id == sent.client_message_id, "the own copy tells the sender's key"


async def a_chat_with_oneself_is_delivered_once(stage: Stage) -> None:
    alice = stage.person()
    device = await alice.device()
    text = os.urandom(8).hex()
    at = acked(await device.send(text, to=alice.user_id))
    history = await device.history(at.conversation_id, limit=PAGE)
    assert [one.message_id for one in history.messages].count(at.message_id) == 1


async def order_is_kept(stage: Stage) -> None:
    alice, bob = stage.people(2)
    sender, receiver = await alice.device(), await bob.device()
    words = [f"{number}" for number in range(ORDERED)]
    sends = [asyncio.ensure_future(sender.send(word, to=bob.user_id)) for word in words]
    seqs = [acked(sent).conversation_seq for sent in await asyncio.gather(*sends)]
    assert seqs == sorted(seqs), "conversation_seq follows the order of sending"
    got = await take(receiver, ORDERED)
    assert texts(sorted(got, key=lambda message: message.conversation_seq)) == words
    assert len({message.message_id for message in got}) == ORDERED


async def every_byte_arrives(stage: Stage) -> None:
    alice, bob = stage.people(2)
    sender, receiver = await alice.device(), await bob.device()
    bodies = [bytes(range(256)), b"", b"\0" * 64, os.urandom(100_000)]
    for body in bodies:
        acked(await sender.send(body, to=bob.user_id, kind=MessageKind.CUSTOM, custom_type="x/y"))
    got = await take(receiver, len(bodies))
    assert sorted(message.body or b"" for message in got) == sorted(bodies)


async def offline_users_find_it_later(stage: Stage) -> None:
    alice, bob = stage.people(2)
    sender = await alice.device()
    at = acked(await sender.send("while you were away", to=bob.user_id))
    receiver = await bob.device()
    (message,) = await take(receiver, 1)
    assert message.message_id == at.message_id


async def a_repeated_send_commits_once(stage: Stage) -> None:
    alice, bob = stage.people(2)
    wire, reader = await alice.wire(), await stage.wire()
    cursor = await reader.enter(bob.token, b"reader")
    frame = message_frame(bob.user_id, "once")
    first = await wire.ask(frame, SendAck)
    both = [wire.send(frame), wire.send(frame)]
    assert [await wire.answer(one) for one in both] == [first, first], "the ack is replayed"
    last = await wire.ask(message_frame(bob.user_id, "last"), SendAck)
    entries = await mailbox_of(reader, cursor, last.message_id)
    assert [entry.message_id for entry in entries] == [first.message_id, last.message_id]


async def a_restarted_device_settles_what_was_sent(stage: Stage) -> None:
    alice, bob = stage.people(2)
    wire = await alice.wire()
    frame = message_frame(bob.user_id, "sent, then the device died before its ack")
    ack = await wire.ask(frame, SendAck)
    await wire.close()
    path = alice.store_path(b"died")
    row = PendingMessage(
        order=1,
        client_message_id=frame.client_message_id,
        conversation_id=None,
        peer_user_id=bob.user_id,
        kind=frame.kind,
        custom_type="",
        body=frame.body,
        retention_class=frame.retention_class,
        created_at=0,
        not_after=frame.not_after,
    )
    store = LocalStore(path)
    store.execute([SavePending(op=1, row=row)])
    store.close()
    device = await alice.device("died")
    sent = await device.settled(frame.client_message_id)
    assert sent is not None
    assert acked(sent).message_id == ack.message_id
    page = await device.history(ack.conversation_id)
    assert [one.message_id for one in page.messages] == [ack.message_id]


async def history_pages_are_complete(stage: Stage) -> None:
    alice, bob = stage.people(2)
    sender, reader = await alice.device(), await bob.device()
    sends = [sender.send(f"{number}", to=bob.user_id) for number in range(PAGED)]
    all_acked = [acked(sent) for sent in await asyncio.gather(*sends)]
    expected = sorted(at.message_id for at in all_acked)
    conversation = all_acked[0].conversation_id
    for direction in (HistoryDirection.OLDER, HistoryDirection.NEWER):
        found: list[LocalMessage] = []
        anchor, more = 0, True
        while more:
            page = await reader.history(
                conversation, anchor=anchor, direction=direction, limit=PAGE
            )
            seqs = [message.conversation_seq for message in page.messages]
            assert seqs == sorted(seqs), "a page rises by conversation_seq"
            assert len(seqs) <= PAGE
            found += page.messages
            more = page.has_more
            anchor = seqs[0 if direction is HistoryDirection.OLDER else -1] if seqs else 0
            assert seqs or not more, "a page with more behind it holds something"
        assert sorted(message.message_id for message in found) == expected, direction.name


async def pulls_come_in_pages(stage: Stage) -> None:
    alice, bob = stage.people(2)
    reader = await stage.wire()
    cursor = await reader.enter(bob.token, b"pages")
    sender = await alice.device()
    last = b""
    for number in range(3):
        last = acked(await sender.send(f"{number}", to=bob.user_id)).message_id
    await mailbox_of(reader, cursor, last)
    seqs: list[int] = []
    for number in range(3):
        batch = await reader.ask(PullMailbox(cursor=cursor, limit=1), MailboxBatch)
        assert len(batch.entries) == 1, "limit 1 gives one entry"
        assert batch.has_more == (number < 2)
        seqs.append(batch.entries[0].mailbox_seq)
        cursor = batch.cursor
    assert seqs == sorted(set(seqs))


CHECKS = (
    Check(name="single-chat-is-delivered", run=single_chat_is_delivered),
    Check(name="own-devices-get-a-copy", run=own_devices_get_a_copy),
    Check(name="chat-with-oneself", run=a_chat_with_oneself_is_delivered_once),
    Check(name="order-is-kept", run=order_is_kept),
    Check(name="every-byte-arrives", run=every_byte_arrives),
    Check(name="offline-users-find-it-later", run=offline_users_find_it_later),
    Check(name="repeated-send-commits-once", run=a_repeated_send_commits_once),
    Check(name="restarted-device-settles-pending", run=a_restarted_device_settles_what_was_sent),
    Check(name="history-pages-are-complete", run=history_pages_are_complete),
    Check(name="pulls-come-in-pages", run=pulls_come_in_pages),
)
