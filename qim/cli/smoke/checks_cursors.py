"""What a device holds is what it pulled: pushes move nothing, and a cursor goes on where it stood."""

import asyncio
import os

from qim.cli.smoke.checks_delivery import mailbox_of, message_frame
from qim.cli.smoke.stage import Check, Stage, acked, take, texts
from qim.cli.smoke.wire import Wire
from qim.core.contract.entities import RetentionClass
from qim.core.contract.frames import (
    OnlineReady,
    Ping,
    Pong,
    PushEvents,
    SendAck,
    SyncComplete,
)

MEMBERS = 8
AT_ONCE = 5


async def pushes_move_no_cursor(stage: Stage) -> None:
    alice, bob = stage.people(2)
    reader, sender = await stage.wire(), await alice.wire()
    cursor = await reader.enter(bob.token, b"pushed")
    sent: list[bytes] = []
    while not (sent and await _hinted(reader, sent)):
        # A push may be lost, as while the gateway is dialled for the first time.
        ack = await sender.ask(message_frame(bob.user_id, "pushed"), SendAck)
        sent.append(ack.message_id)
    await reader.close()
    again = await stage.wire()
    hello = await again.authenticate(bob.token, b"pushed", cursor=cursor)
    assert hello.has_offline, "what was only pushed is still to be pulled"
    entries = await mailbox_of(again, hello.cursor, sent[-1])
    assert [one.message_id for one in entries] == sent


async def _hinted(reader: Wire, sent: list[bytes]) -> bool:
    """Whether one of these messages is pushed within the time of an answer."""
    try:
        while sent[-1] not in [e.message_id for e in (await reader.unasked(PushEvents)).entries]:
            pass
    except TimeoutError:
        return False
    return True


async def a_cursor_goes_on_where_it_stood(stage: Stage) -> None:
    alice, bob = stage.people(2)
    sender, reader = await alice.wire(), await stage.wire()
    start = await reader.enter(bob.token, b"resumes")
    first = await sender.ask(message_frame(bob.user_id, "before"), SendAck)
    await mailbox_of(reader, start, first.message_id)
    cursor = (await reader.pull_all(start))[-1].cursor
    await reader.close()
    second = await sender.ask(message_frame(bob.user_id, "meanwhile"), SendAck)
    again = await stage.wire()
    hello = await again.authenticate(bob.token, b"resumes", cursor=cursor)
    entries = await mailbox_of(again, hello.cursor, second.message_id)
    assert [one.message_id for one in entries] == [second.message_id], (
        "nothing twice, nothing left out"
    )
    await again.ask(SyncComplete(sync_to_seq=hello.sync_to_seq), OnlineReady)


async def pings_tell_the_watermark(stage: Stage) -> None:
    alice, bob = stage.people(2)
    sender, reader = await alice.wire(), await stage.wire()
    cursor = await reader.enter(bob.token, b"pings")
    at = await sender.ask(message_frame(bob.user_id, "seen by a ping"), SendAck)
    (entry,) = await mailbox_of(reader, cursor, at.message_id)
    told = [await reader.ask(Ping(client_time=number), Pong) for number in range(1, 4)]
    assert [one.client_time for one in told] == [1, 2, 3]
    marks = [one.watermark for one in told]
    assert marks == sorted(marks), "a watermark never falls"
    ping = Ping(client_time=4)
    while (await reader.ask(ping, Pong)).watermark < entry.mailbox_seq:  # noqa: ASYNC110 - asked again on purpose: nothing tells when
        await asyncio.sleep(0.05)


async def a_group_reaches_every_member(stage: Stage) -> None:
    people = stage.people(MEMBERS)
    readers = [await stage.wire() for _ in people]
    cursors = [await r.enter(p.token, b"reader") for r, p in zip(readers, people, strict=True)]
    devices = [await person.device() for person in people]
    others = tuple(person.user_id for person in people[1:])
    group = (await devices[0].create_group(others, "everybody")).conversation_id
    sends = [one.send(os.urandom(4).hex(), conversation_id=group) for one in devices]
    sent = [acked(one) for one in await asyncio.gather(*sends)]
    seqs = {at.message_id: at.conversation_seq for at in sent}
    last = max(sent, key=lambda at: at.conversation_seq)
    for reader, cursor in zip(readers, cursors, strict=True):
        entries = await mailbox_of(reader, cursor, last.message_id)
        got = [(one.message_id, one.conversation_seq) for one in entries if one.message_id in seqs]
        assert sorted(got) == sorted(seqs.items()), "each message of each member, once"


async def devices_of_one_user_agree(stage: Stage) -> None:
    alice, bob = stage.people(2)
    phone, laptop = await bob.device("phone"), await bob.device("laptop")
    sender = await alice.device()
    sends = [sender.send(f"{number}", to=bob.user_id) for number in range(AT_ONCE)]
    await asyncio.gather(*sends)
    one, other = await take(phone, AT_ONCE), await take(laptop, AT_ONCE)
    assert sorted(texts(one)) == sorted(texts(other)) == [f"{n}" for n in range(AT_ONCE)]
    assert {m.message_id for m in one} == {m.message_id for m in other}


async def short_lived_messages_arrive(stage: Stage) -> None:
    alice, bob = stage.people(2)
    sender, receiver = await alice.device(), await bob.device()
    short = RetentionClass.EPHEMERAL
    sent = await sender.send("for a day", to=bob.user_id, retention_class=short)
    (message,) = await take(receiver, 1)
    assert message.message_id == acked(sent).message_id


CHECKS = (
    Check(name="pushes-move-no-cursor", run=pushes_move_no_cursor),
    Check(name="cursor-goes-on-where-it-stood", run=a_cursor_goes_on_where_it_stood),
    Check(name="pings-tell-the-watermark", run=pings_tell_the_watermark),
    Check(name="group-reaches-every-member", run=a_group_reaches_every_member),
    Check(name="devices-of-one-user-agree", run=devices_of_one_user_agree),
    Check(name="short-lived-messages-arrive", run=short_lived_messages_arrive),
)
